"""`rayfed-ssl reproduce`: a table or figure of a paper beside the published one."""

from pathlib import Path
from typing import Annotated

import typer

from tune.cli.options import Address, AsCsv, AsJson, AsLatex, Quiet, Trust, form_of
from tune.cli.study_command import run_study_command


def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of `list reproductions`, or a file of your own.")],
    settings: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes of all runs.")] = None,
    size: Annotated[str, typer.Option(help="cpu: minutes on two cores; paper: the published settings.")] = "cpu",
    out: Annotated[Path | None, typer.Option(help="Directory; if it holds this reproduction, it is resumed.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Repeatable: a run of each cell for each seed.")] = None,
    row: Annotated[list[str] | None, typer.Option(help="Only this row. Repeatable.")] = None,
    column: Annotated[list[str] | None, typer.Option(help="Only this column. Repeatable.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time; above 1 they are trials on Ray Tune.")] = 1,
    address: Address = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and their state, and stop.")] = False,
    trust: Trust = False,
    quiet: Quiet = False,
    as_csv: AsCsv = False,
    as_latex: AsLatex = False,
    as_json: AsJson = False,
) -> None:
    """Reproduce a table or figure of a paper and compare it with the published one."""
    from tune.studies.results.state import state_before
    from tune.studies.run import StudyRequest

    form = form_of(as_json, as_csv, as_latex, of_state=dry_run)
    rows, columns = (tuple(names) if names else None for names in (row, column))
    words, seeds = tuple(settings or ()), tuple(seed or (0,))
    request = StudyRequest(
        name, "reproduction", words, jobs, address, out, size, seeds, rows, columns, trust=trust, dry_run=dry_run
    )
    if dry_run:
        state_before(request.describe(), open_data=False).print(as_json)
    else:
        run_study_command(request, request.run, quiet, form)
