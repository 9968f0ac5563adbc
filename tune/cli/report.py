"""`rayfed-ssl report`: one HTML file on runs."""

from pathlib import Path
from typing import Annotated

import typer

from tune.cli.options import Trust
from tune.terminal import echo


def report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="RUN_OR_SWEEP...", help="Runs, directories of runs, sweeps, reproductions.")
    ],
    out: Annotated[Path, typer.Option(help="HTML file to write; figures go beside it.")] = Path("report.html"),
    trust: Trust = False,
) -> None:
    """Write one HTML file on runs, with all figures as PNG and SVG files beside it."""
    from rayfed_ssl.reports.html import write_report
    from tune.studies.results.reported import read_study

    def warn(line: str) -> None:
        echo(f"left out: {line}", err=True)

    written = write_report(
        directories,
        out,
        trust=trust,
        on_left_out=warn,
        read_table=read_study,
    )
    echo(f"report: {written}")
