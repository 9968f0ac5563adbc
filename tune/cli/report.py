"""`rayfed-ssl report`: one HTML file on runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tune.cli.options import Trust
from tune.terminal import echo

if TYPE_CHECKING:
    from rayfed_ssl.reports.html.sources import Sources


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

    is_new, opened = not out.parent.is_dir(), list["Sources"]()
    written = write_report(directories, out, trust=trust, on_opened=opened.append, read_table=read_study)
    _tell(*opened)  # not before, as drawing may start this program again for `engine.cpu=portable`
    if is_new:
        echo(f"note: {out.parent} was not there and has been made", err=True)
    echo(f"report: {written.resolve()}")


def _tell(sources: "Sources") -> None:
    """Say what the report is about, and what is left out."""
    for line in sources.left_out:
        echo(f"left out: {line}", err=True)
    for table in sources.tables:
        echo(f"{table.kind}: {table.directory}")
    names = [run.name for run in sources.runs]
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    echo(f"runs: {', '.join(names[:6]) or 'none'}{more}")
