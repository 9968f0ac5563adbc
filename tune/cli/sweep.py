"""`rayfed-ssl sweep`: start a sweep, resume one, show its status or estimate its cost."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from tune.cli.errors import fail, resumable
from tune.cli.options import Address, AsJson, Quiet


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
    resume: Annotated[Path | None, typer.Option(help="Resume the sweep in this directory.", metavar="SWEEP")] = None,
    status: Annotated[
        Path | None, typer.Option(help="Show the progress of the sweep in this directory.", metavar="SWEEP")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Estimate the cost, and stop.")] = False,
    begin: Annotated[
        Path | None,
        typer.Option(help="The finished sweep that settings come from, if FILE says `begin`.", metavar="SWEEP"),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Most trials at a time; default: as many as fit the machines.")
    ] = None,
    address: Address = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a sweep on Ray Tune: a grid, random points, or a search by Optuna."""
    given = {"--out": out, "--begin": begin, "--dry-run": dry_run or None}
    if status is not None:
        _refuse_more(arguments, "--status", given | {"--resume": resume, "--concurrency": concurrency})
        from tune.sweeps.results.status import print_status

        print_status(status, as_json)
        return
    if resume is not None:
        _refuse_more(arguments, "--resume", given)
        _run(resume, concurrency, address, quiet, as_json)
        return
    if not arguments or "=" in arguments[0]:
        fail("name a sweep: one of `rayfed-ssl list sweeps`, or a YAML file of your own", 2)
        return
    source, overrides = arguments[0], arguments[1:]
    from tune.sweeps.definition.inherited_settings import origin_of, settings_from

    inherited = settings_from(source, begin)
    if dry_run:
        from tune.sweeps.execution.dry_run import print_dry_run

        print_dry_run(source, overrides, inherited, concurrency, as_json)
        return
    from tune.sweeps.execution.runner import SweepDirectory, default_directory

    directory = out or default_directory(source)
    command = shlex.join(["rayfed-ssl", "sweep", *arguments, *(["--begin", str(begin)] if begin else [])])
    SweepDirectory.create(directory, source, overrides, inherited, command, origin_of(begin, inherited))
    _run(directory, concurrency, address, quiet, as_json)


def _refuse_more(arguments: list[str] | None, option: str, others: Mapping[str, object]) -> None:
    extra = [*(arguments or []), *(name for name, value in others.items() if value is not None)]
    if extra:
        fail(f"{option} takes a sweep's directory and no new settings, got {' '.join(extra)}", 2)


def _run(directory: Path, concurrency: int | None, address: str | None, quiet: bool, as_json: bool) -> None:
    from tune.sweeps.execution.runner import SweepDirectory, run_sweep
    from tune.sweeps.results.summary import present, write_results

    opened = SweepDirectory.open(directory)
    hint = f"finished rounds are kept; resume with: rayfed-ssl sweep --resume {shlex.quote(str(directory))}"

    def say(line: str) -> None:
        if not quiet:
            typer.echo(line, err=True)

    def lost(why: str) -> None:
        typer.echo(f"error: {why.partition(', then resume')[0]}; {hint}", err=True)
        os._exit(3)  # the main thread may wait for Ray for ever

    if opened.is_complete():
        say("all trials have ended: nothing is run")
    else:
        with resumable(lambda: hint):
            run_sweep(opened, concurrency=concurrency, address=address, say=say, lost=lost)
    result = write_results(opened)
    present(result, directory, as_json)
    if result.failures:
        raise typer.Exit(1)
