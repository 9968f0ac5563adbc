"""Commands that look at what runs have given. They import what they need when they run, as `tune/cli.py` does."""

from pathlib import Path
from typing import Annotated

import typer

from tune.errors import plain_errors
from tune.words import AsJson, RunDirectory, Settings

app = typer.Typer()


@app.command()
def evaluate(
    directory: RunDirectory,
    settings: Settings = None,
    round: Annotated[int | None, typer.Option(help="A committed round; default: the last.")] = None,
    initial: Annotated[
        bool, typer.Option("--initial", help="Score the random encoder that the run began with.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Score a run's encoders again, with other settings of evaluation.* if you like."""
    with plain_errors():
        from rayfed_ssl.reports.rescore import rescore
        from tune.tables import print_evaluations

        print_evaluations(rescore(directory, *(settings or []), round=round, initial=initial), as_json)


@app.command()
def compare(
    directories: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of runs.")],
    figure: Annotated[Path | None, typer.Option(help="Draw accuracy over bytes here (.png or .svg).")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs: accuracy against bytes and rounds."""
    with plain_errors():
        from rayfed_ssl.reports.compare import summarise
        from tune.tables import print_comparison

        summaries = [summarise(directory) for directory in directories]
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
        from tune.diagnostics_tables import print_diagnosis
        from tune.tables import print_json

        found = look(directory, round)
        if as_json:
            print_json(found)
        else:
            print_diagnosis(found, directory / FILE)
