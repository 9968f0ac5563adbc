"""`rayfed-ssl sweep`: start a sweep, resume one, show its status or count its runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from tune.cli.errors import fail
from tune.cli.options import Address, AsCsv, AsJson, AsLatex, Quiet, Trust, form_of
from tune.cli.study_command import run_study_command


def sweep(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE] [KEY=VALUE]...",
            help="One of `list sweeps` or a file of your own, then settings of all trials such as clients.number=20, or of "
            "the sweep: trials, seeds, generation, search, selection.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory for the sweep; must be new or empty.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Resume the sweep in this directory; seeds=N runs more seeds.", metavar="SWEEP"),
    ] = None,
    status: Annotated[
        Path | None, typer.Option(help="Show the progress of the sweep in this directory.", metavar="SWEEP")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List trials and runs, and stop.")] = False,
    begin: Annotated[
        Path | None,
        typer.Option(help="The finished sweep that settings come from, if FILE says `begin`.", metavar="SWEEP"),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Most trials at a time; default: as many as fit the machines.")
    ] = None,
    address: Address = None,
    trust: Trust = False,
    quiet: Quiet = False,
    as_csv: AsCsv = False,
    as_latex: AsLatex = False,
    as_json: AsJson = False,
) -> None:
    """Run a sweep on Ray Tune: a grid, random points, or a search by Optuna."""
    form = form_of(as_json, as_csv, as_latex, of_state=dry_run or status is not None)
    given = {"--out": out, "--begin": begin, "--dry-run": dry_run or None}
    if status is not None:
        _refuse_more(arguments, "--status", given | {"--resume": resume, "--concurrency": concurrency})
        from tune.studies.results.state import state_of

        state_of(status).print(as_json)
        return
    from tune.studies.run import StudyRequest

    words = arguments or []
    if resume is not None:
        seeds = [text for text in words if text.startswith("seeds=")]
        _refuse_more([text for text in words if text not in seeds[:1]], "--resume", given, " but seeds=N")
        request = StudyRequest(str(resume), "sweep", tuple(seeds), concurrency, address, resume, trust=trust)
        run_study_command(request, request.resume, quiet, form)
        return
    if not words or "=" in words[0]:
        fail("name a sweep: one of `rayfed-ssl list sweeps`, or a YAML file of your own", 2)
    request = StudyRequest(
        words[0], "sweep", tuple(words[1:]), concurrency, address, out, begin=begin, trust=trust, dry_run=dry_run
    )
    if dry_run:
        from tune.studies.results.state import state_before

        state_before(request.describe()).print(as_json)
        return
    run_study_command(request, request.run, quiet, form)


def _refuse_more(arguments: list[str] | None, option: str, others: Mapping[str, object], allowed: str = "") -> None:
    extra = [*(arguments or []), *(name for name, value in others.items() if value is not None)]
    if extra:
        fail(f"{option} takes a sweep's directory and no new settings{allowed}, got {' '.join(extra)}", 2)
