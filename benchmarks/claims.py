"""What the documentation says of the published runs in docs/log: differences of two rows, and the figures.

    uv run python -m benchmarks.claims difference long-training FCL FedMoCo --seeds 0 1 2
    uv run python -m benchmarks.claims figures docs
    uv run python -m benchmarks.claims privacy
    uv run python -m benchmarks.claims seeds 0.54 0.30

A difference is paired over the seeds that both rows have, in points, with its 95 % interval (Student's t).
"""

import argparse
import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from rayfed_ssl.formats import MeanStd
from rayfed_ssl.reports.style import save_figure, styled
from tune.studies.definition.files import load_study
from tune.studies.results.figures import axis_of, draw_systems
from tune.studies.results.paired_differences import paired_difference
from tune.studies.results.panels import BESIDE
from tune.studies.results.results import Difference

DOCS = Path(__file__).parents[1] / "docs"
LOG = DOCS / "log"
FILES = ("long-training", "long-training-linear", "long-training-200", "mechanisms-and-federation", "benchmark-cifar10")
SEEDS = (0, 1, 2)
"""Of the figures."""

SCORE = re.compile(r"(knn|linear)(_\d+)?")

Table = dict[str, dict[int, dict[str, float]]]
"""Row -> seed -> score -> value in [0, 1]."""

ATTACKS = (
    *(("class-distribution", "tv"), ("encoder-mi", "auc"), ("embedding-norm", "auc"), ("rmia", "auc")),
    *(("matched-representation", metric) for metric in ("auc", "tpr", "guesses", "epsilon")),
)
"""Attacks and metrics of the two tables of docs/privacy.md."""

BENCHMARK_ROW = re.compile(
    r"^\| ?([^|]*) \| ([^|]+) \| ([\d.]+)(?: ± ([\d.]+))? \|[^|]*\|[^|]*\| ([\d.]+) \|", re.MULTILINE
)

PUBLIC = (100, 250, 500, 1000, 2000, 4000)
GAINS = {
    "FLESD, 10 local epochs": ("{} public, FLESD, 10 local epochs", "tab:orange", "-o"),
    "FLESD, 30 local epochs": ("{} public, FLESD, 30 local epochs", "tab:red", "-s"),
    "FedSimCLR, 10 local epochs": ("FedSimCLR, 10 local epochs", "tab:green", ":v"),
    "FedSimCLR, 30 local epochs": ("FedSimCLR, 30 local epochs", "tab:green", "--^"),
    "FedSimCLR, 100 local epochs": ("FedSimCLR, 100 local epochs", "tab:green", "-D"),
    "FLESD, 1000 of two other classes": ("2 other classes public, FLESD, 10 local epochs", "tab:purple", "P"),
    "FLESD, 1000 digits": ("1000 digits public, FLESD, 10 local epochs", "tab:purple", "X"),
    "FLESD, 100 local epochs": ("{} public, FLESD, 100 local epochs", "tab:brown", "-p"),
}
"""Label -> row, of a number of public photographs where it has one, color and style."""

CONTRASTIVE = {
    "SSD": ("tab:purple", "-"),
    "FedSimCLR": ("tab:green", "-"),
    "SimCLR on a public tenth": ("black", ":"),
    "FCL": ("tab:blue", "-"),
    "FedMoCo": ("tab:blue", "--"),
    "FLESD": ("tab:orange", "-"),
    "SimCLR alone": ("tab:gray", "--"),
    "FedCA": ("tab:red", "-"),
}
BYOL = {
    "FedBYOL": ("tab:blue", "-"),
    "FedEMA": ("tab:orange", "-"),
    "FedEMA, no warm-up": ("tab:orange", "--"),
    "FedBYOL, no warm-up": ("tab:blue", "--"),
    "FedU, no warm-up": ("tab:red", "--"),
    "FedFoA over FedEMA, no warm-up": ("tab:green", "--"),
}
"""Row -> color and line; FedU with a warm-up has the scores of FedBYOL."""


def read(name: str) -> Table:
    """Read the scores of a file of docs/log; a row of the benchmark is SYSTEM, SPLIT, and in percent there."""
    table: Table = {}
    with (LOG / f"{name}.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            row, unit = (line["row"], 1) if "row" in line else (f"{line['system']}, {line['split']}", 100)
            values = {
                key.lower(): float(value) / unit
                for key, value in line.items()
                if SCORE.fullmatch(key.lower()) and value
            }
            table.setdefault(row, {})[int(line["seed"])] = values
    return table


def differences(
    table: Table, row: str, baseline: str, seeds: Sequence[int] | None = None
) -> Iterator[tuple[str, Difference]]:
    """Compare two rows in each score that both have for a seed, of some seeds or all."""
    both = [
        (scores, table[baseline][seed])
        for seed, scores in table[row].items()
        if seed in table[baseline] and (seeds is None or seed in seeds)
    ]
    for score in dict.fromkeys(score for ours, _ in both for score in ours):
        pairs = [(ours[score], theirs[score]) for ours, theirs in both if score in ours and score in theirs]
        if pairs:
            yield score, paired_difference(pairs)


def attack_cells(system: str) -> list[str]:
    """Write what attacks on a system's uploads reached as docs/privacy.md does: the mean over clients, and the range."""
    with (LOG / "privacy-2-classes.csv").open(newline="") as file:
        rows = [line for line in csv.DictReader(file) if line["system"] == system]
    cells = []
    for measure in ATTACKS:
        values = [float(row["value"]) for row in rows if (row["attack"], row["metric"]) == measure]
        cells.append(f"{fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else "-")
    return cells


def seeds_needed(mean: float, deviation: float, power: float = 0.8) -> int:
    """Count the seeds with which a paired t test finds a difference at 5 %, if it and its deviation are as seen."""
    from scipy import stats

    number, found = 1, 0.0
    while found < power:
        number += 1
        noncentral = abs(mean) / deviation * number**0.5
        found = 1 - stats.nct.cdf(stats.t.ppf(0.975, number - 1), number - 1, noncentral)
    return number


def read_benchmark() -> dict[str, dict[str, tuple[float, MeanStd]]]:
    """Read the table of docs/benchmark.md: split -> system -> MB and linear accuracy in percent."""
    splits: dict[str, dict[str, tuple[float, MeanStd]]] = {}
    for split, system, mean, deviation, megabytes in BENCHMARK_ROW.findall((DOCS / "benchmark.md").read_text()):
        name = split.strip() or list(splits)[-1]
        linear = MeanStd(float(mean), float(deviation) if deviation else None, 3 if deviation else 1)
        splits.setdefault(name, {})[system] = (float(megabytes), linear)
    return splits


def draw_benchmark(splits: dict[str, dict[str, tuple[float, MeanStd]]], file: Path) -> None:
    """Draw the benchmark's accuracy over the megabytes of all clients, a panel for each split."""
    study = load_study("cifar10", kind="benchmark")
    rows = [system for system in study.rows if any(system in systems for systems in splits.values())]
    legend = BESIDE if len(splits) == 1 else None
    with styled():
        save_figure(draw_systems(splits, rows, axis_of(study.goals[0]), study.heading, legend), file)


def draw_gains(table: Table, file: Path) -> None:
    """Draw what federation gains over the public photographs alone, over their number."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.6), sharey=True, layout="constrained")
    for axes, score in zip(panels, ("linear", "knn"), strict=True):
        for index, (label, (row, color, style)) in enumerate(GAINS.items()):
            alone = PUBLIC if style[:-1] else (1000,)  # a marker without a line is of a thousand images
            gains = {
                public: [100 * (ours[seed][score] - base[seed][score]) for seed in SEEDS if seed in ours]
                for public in alone
                if (ours := table.get(row.format(public))) and (base := table.get(f"{public} public, alone"))
            }
            places = [PUBLIC.index(public) + 0.03 * (index - 3) for public in gains]  # beside each other, not on top
            axes.plot(places, [fmean(gain) for gain in gains.values()], style, color=color, label=label)
            for place, gain in zip(places, gains.values(), strict=True):
                axes.plot([place] * len(gain), gain, ".", color=color, alpha=0.5)
        axes.axhline(0, color="black", linewidth=1)
        axes.set(title="linear probe" if score == "linear" else "kNN", xlabel="public photographs")
        axes.set_xticks(range(len(PUBLIC)), [str(public) for public in PUBLIC])
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("points above the public photographs alone")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(file)


def draw_curves(axes: Axes, table: Table, rows: dict[str, tuple[str, str]], score: str, title: str) -> None:
    """Draw rows over epochs: the mean of seeds 0 to 2, and their range where there are several."""
    for row, (color, style) in rows.items():
        seeds = [scores for seed, scores in table.get(row, {}).items() if seed in SEEDS]
        names = [name for name in (seeds[0] if seeds else {}) if name.startswith(f"{score}_")]
        if not names:
            continue
        epochs = [int(name.split("_")[1]) for name in names]
        values = [[100 * scores[name] for scores in seeds] for name in names]
        axes.plot(epochs, [fmean(value) for value in values], style, color=color, label=row)
        if len(seeds) > 1:
            axes.fill_between(epochs, [*map(min, values)], [*map(max, values)], color=color, alpha=0.12, linewidth=0)
    axes.set(title=title, xlabel="epochs of each client's data", ylabel="accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, frameon=False)


def draw_long_training(file: Path) -> None:
    """Draw the curves of `long-training`."""
    figure, panels = plt.subplots(1, 3, figsize=(15, 4.4), layout="constrained")
    table = read("long-training")
    draw_curves(panels[0], table, CONTRASTIVE, "knn", "kNN, 2,500 photographs")
    draw_curves(panels[1], table, BYOL, "knn", "kNN, BYOL's family, 4,000 photographs")
    draw_curves(panels[2], read("long-training-linear"), CONTRASTIVE, "linear", "linear probe, 2,500 photographs")
    figure.savefig(file)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print differences or draw the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    comparing = commands.add_parser("difference", help="print a row's scores minus those of another")
    comparing.add_argument("file", choices=FILES)
    comparing.add_argument("row")
    comparing.add_argument("baseline")
    comparing.add_argument("--seeds", type=int, nargs="+", help="default: all that both rows have")
    drawing = commands.add_parser("figures", help="draw the figures of docs/claims.md and docs/benchmark.md")
    drawing.add_argument("out", type=Path)
    commands.add_parser("privacy", help="write what attacks reached, as docs/privacy.md has it")
    counting = commands.add_parser("seeds", help="count the seeds that a paired difference and its deviation need")
    counting.add_argument("mean", type=float)
    counting.add_argument("deviation", type=float)
    options = parser.parse_args(arguments)
    if options.command == "seeds":
        print(seeds_needed(options.mean, options.deviation))
        return
    if options.command == "privacy":
        with (LOG / "privacy-2-classes.csv").open(newline="") as file:
            for system in dict.fromkeys(line["system"] for line in csv.DictReader(file)):
                print(f"| {' | '.join([system, *attack_cells(system)])} |")
        return
    if options.command == "figures":
        (options.out / "benchmark-pictures").mkdir(parents=True, exist_ok=True)
        draw_gains(read("mechanisms-and-federation"), options.out / "when-federation-pays.png")
        draw_long_training(options.out / "long-training.png")
        splits = read_benchmark()
        draw_benchmark(splits, options.out / "benchmark-pictures" / "accuracy-over-bytes.png")
        draw_benchmark(dict([*splits.items()][:1]), options.out / "accuracy-over-bytes.png")
        return
    table = read(options.file)
    for row in (options.row, options.baseline):
        if row not in table:
            parser.error(f"{options.file} has no row {row!r}: choose from {', '.join(table)}")
    found = list(differences(table, options.row, options.baseline, options.seeds))
    for score, difference in found:
        asked = f" of {len(options.seeds)} that were asked for" if difference.n < len(options.seeds or ()) else ""
        print(f"{score} {difference.text}, seeds: {difference.n}{asked}")
    if not found:
        parser.error("the rows have no score of one seed in common")


if __name__ == "__main__":
    main()
