"""`rayfed-ssl partition`: samples by client and class."""

from pathlib import Path
from typing import Annotated

import typer

from tune.cli.options import RecipeAndSettings, Trust, load_config
from tune.terminal import echo, print_table

MOST_CLASSES = 20
"""Classes that the table has columns for; with more, it counts them only."""

MOST_CLIENTS = 100
"""Clients that the table has rows for; the figure shows all."""


def partition(
    arguments: RecipeAndSettings = None,
    out: Annotated[Path, typer.Option(help="Figure to write (.png, .svg or .pdf).")] = Path("partition.png"),
    trust: Trust = False,
) -> None:
    """Show how the training samples are divided among clients, as a table and as a figure."""
    from rayfed_ssl.data.partitions import count_samples, with_unlabeled
    from rayfed_ssl.engine.federation import Federation
    from rayfed_ssl.reports.figures import draw_partition

    federation = Federation.open(load_config(arguments, trust=trust))
    figure = draw_partition(federation, out)
    train, num_classes = federation.dataset.train, federation.dataset.train.num_classes
    labels, classes = with_unlabeled(train.labels, train.classes)
    columns = classes if len(classes) <= MOST_CLASSES else ()
    rows, has_tests, names = [], bool(federation.own_tests), federation.client_names
    held = count_samples(labels, federation.shards.values(), len(classes)).tolist()
    for (client_id, samples), counts in zip(federation.shards.items(), held, strict=True):
        test = [len(federation.own_tests.get(client_id, ()))] * has_tests
        name = [names[client_id]] if names else []
        cells = (
            client_id,
            *name,
            len(samples),
            *test,
            sum(map(bool, counts[:num_classes])),
            *(counts if columns else ()),
        )
        rows.append([str(cell) for cell in cells])
    if len(rows) > MOST_CLIENTS:
        echo(f"the first {MOST_CLIENTS} of {len(rows):,} clients:")
    named = ["name"] * bool(names)
    print_table(
        ("client", *named, "samples", *["own test"] * has_tests, "classes", *columns),
        rows[:MOST_CLIENTS],
        text=1 + len(named),
    )
    if len(rows) > MOST_CLIENTS:
        sizes = sorted(map(len, federation.shards.values()))
        echo(f"samples of a client: {sizes[0]:,} to {sizes[-1]:,}, median {sizes[len(sizes) // 2]:,}")
    if left_out := federation.num_left_out:
        echo(f"left out: {left_out:,} of {len(labels):,} training samples")
    echo(f"skew: {federation.skew.text}")
    if federation.num_public:
        echo(f"public: {federation.num_public:,} samples from {federation.config.public}")
    for note in (*federation.dataset.notes, *federation.own_scores_notes(), *federation.column_notes()):
        echo(f"note: {note}")
    echo(f"figure: {figure}")
