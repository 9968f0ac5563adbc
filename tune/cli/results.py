"""Commands that look at what runs have given. They import what they need when they run, as `tune/cli/app.py` does."""

from pathlib import Path
from typing import Annotated

import typer

from tune.cli.errors import Unwritten, plain_errors
from tune.cli.options import AsJson, Quiet, RunDirectory, Settings

app = typer.Typer()


@app.command()
def evaluate(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A run's directory; with --protocol also a file of its encoders, or an exported encoder.",
        ),
    ],
    settings: Settings = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(help="Run this protocol (`list protocols`) alone, and append to evaluations.parquet. Repeatable."),
    ] = None,
    round: Annotated[int | None, typer.Option(help="A committed round; default: the last.")] = None,
    initial: Annotated[
        bool, typer.Option("--initial", help="Score the random encoder that the run began with.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Score a run's encoders again, with other settings of evaluation.* if you like, or by the papers' protocols.

    Settings of a protocol are given by their name, such as epochs=5, or linear-moco.epochs=5 for one of several.
    """
    with plain_errors():
        if protocol:
            from rayfed_ssl.reports.measurements import measure_encoders, run_of
            from tune.cli.score_tables import print_measurements

            unwritten = Unwritten()
            found = measure_encoders(
                path, protocol, settings or [], round=round, initial=initial, on_unwritten=unwritten
            )
            print_measurements(found, None if unwritten.happened else run_of(path), as_json)
            return
        from rayfed_ssl.reports.rescore import rescore
        from tune.cli.tables import print_evaluations

        print_evaluations(rescore(path, *(settings or []), round=round, initial=initial), as_json)


@app.command()
def compare(
    directories: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of runs.")],
    figure: Annotated[Path | None, typer.Option(help="Draw accuracy over bytes here (.png or .svg).")] = None,
    seeds: Annotated[
        bool,
        typer.Option("--by-seed", help="Runs that differ in their seed alone as one: mean, standard deviation, n."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare runs: accuracy against bytes and rounds."""
    with plain_errors():
        from rayfed_ssl.records.run_record import RunRecord
        from rayfed_ssl.reports.summary import summarize
        from tune.cli.tables import print_comparison

        summaries = [summarize(RunRecord.open(directory)) for directory in directories]
        if seeds:
            from rayfed_ssl.reports.seeds import by_seed
            from tune.cli.score_tables import print_seed_groups

            print_seed_groups(by_seed(summaries), as_json)
        else:
            print_comparison(summaries, as_json)
        if figure is not None:
            from rayfed_ssl.reports.figures import draw_comparison

            typer.echo(f"figure: {draw_comparison(summaries, figure)}", err=as_json)


@app.command()
def export(
    directory: RunDirectory,
    out: Annotated[Path, typer.Argument(metavar="OUT.safetensors", help="File to write.")],
    encoder: Annotated[str, typer.Option(help="The encoder's name: global, client-3 and so on.")] = "global",
    with_heads: Annotated[
        bool, typer.Option("--with-heads", help="Write projector and other heads into it, too.")
    ] = False,
) -> None:
    """Write an encoder into a file of its own, for plain PyTorch and scikit-learn."""
    with plain_errors():
        from rayfed_ssl.reports.export import export_encoder

        info = export_encoder(directory, out, encoder=encoder, with_heads=with_heads).info
        typer.echo(
            f"{out}: {info.architecture}, {info.channels} x {info.size} x {info.size} pixels to {info.feature_dim} "
            f"features, {info.method} after round {info.round}"
        )


@app.command()
def diagnose(
    directory: RunDirectory,
    round: Annotated[int | None, typer.Option(help="A committed round; default: the last.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look at a run's encoders beside each other, without labels, and write RUN/diagnostics.json."""
    with plain_errors():
        from rayfed_ssl.reports.diagnose import FILE
        from rayfed_ssl.reports.diagnose import diagnose as look
        from tune.cli.diagnostics_tables import print_diagnosis
        from tune.cli.tables import print_json

        unwritten = Unwritten()
        found = look(directory, round, unwritten)
        if as_json:
            print_json(found)
        else:
            print_diagnosis(found, None if unwritten.happened else directory / FILE)


@app.command()
def report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="RUN_OR_SWEEP...", help="Runs, directories of runs, sweeps, reproductions.")
    ],
    out: Annotated[Path, typer.Option(help="HTML file to write; figures go beside it.")] = Path("report.html"),
    embedding: Annotated[
        str, typer.Option(help="How test features are placed on a plane: tsne, or umap where umap-learn is installed.")
    ] = "tsne",
) -> None:
    """Write one HTML file on runs, with all figures as PNG and SVG files beside it."""
    with plain_errors():
        from rayfed_ssl.reports.html import write_report

        def warn(line: str) -> None:
            typer.echo(f"left out: {line}", err=True)

        typer.echo(f"report: {write_report(directories, out, embedding=embedding, on_left_out=warn)}")


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of `list reproductions`, or a file of your own.")],
    settings: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes of all runs.")] = None,
    size: Annotated[str, typer.Option(help="cpu: minutes on two cores; paper: the published settings.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Directory; the same one goes on where it stopped.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Repeatable: a run of each cell for each seed.")] = None,
    row: Annotated[list[str] | None, typer.Option(help="Only this row. Repeatable.")] = None,
    column: Annotated[list[str] | None, typer.Option(help="Only this column. Repeatable.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time; above 1 each is a process of one core.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and stop.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Make a table or figure of a paper and set it beside the published one."""
    with plain_errors():
        from tune.reproductions.command import Wish, listed, present, print_lines
        from tune.reproductions.command import reproduce as make

        rows, columns = (tuple(words) if words else None for words in (row, column))
        wish = Wish(name, size, tuple(seed or (0,)), rows, columns, tuple(settings or ()), jobs, out)
        if dry_run:
            print_lines(*listed(wish))
            return
        try:
            result = make(wish, lambda line: None if quiet else typer.echo(line, err=True))
        except KeyboardInterrupt:
            typer.echo(f"\nstopped; go on with: {wish.command}", err=True)
            raise typer.Exit(130) from None
        present(result, wish.directory, as_json)
        if result.failures:
            raise typer.Exit(1)
