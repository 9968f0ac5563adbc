"""`rayfed-ssl sweep`: begin a sweep, go on with one, say how far it is, or what it would take."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from tune.cli.errors import fail, plain_errors
from tune.cli.options import Address, AsJson, Quiet
from tune.cli.signals import terminated_is_interrupted

app = typer.Typer()

INTERRUPTED = 130


@app.command()
def sweep(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE] [KEY=VALUE]...",
            help="One of `list sweeps` or a file of your own, then settings of all trials such as clients.number=20, or of "
            "the sweep: trials, seeds, generation, search, selection.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory for the sweep; must be new or empty.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the sweep in this directory.", metavar="SWEEP")
    ] = None,
    status: Annotated[Path | None, typer.Option(help="Say how far the sweep here is.", metavar="SWEEP")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would take, and stop.")] = False,
    begin: Annotated[
        Path | None,
        typer.Option(help="The finished sweep that settings come from, if FILE says `begin`.", metavar="SWEEP"),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Trials at a time at most; default: as many as the machines hold.")
    ] = None,
    address: Address = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Try many settings: a grid, random points, or a search by Optuna, run on Ray Tune."""
    with plain_errors():
        given = {"--out": out, "--begin": begin, "--dry-run": dry_run or None}
        if status is not None:
            _refuse_more(words, "--status", given | {"--resume": resume, "--concurrency": concurrency})
            from tune.sweeps.results.status import print_status

            print_status(status, as_json)
            return
        if resume is not None:
            _refuse_more(words, "--resume", given)
            _go_on(resume, concurrency, address, quiet, as_json)
            return
        if not words or "=" in words[0]:
            fail("name a sweep: one of `rayfed-ssl list sweeps`, or a YAML file of your own", 2)
            return
        source, overrides = words[0], words[1:]
        from tune.sweeps.definition.inherited_settings import origin_of, settings_from

        begun_with = settings_from(source, begin)
        if dry_run:
            from tune.sweeps.execution.dry_run import print_dry_run

            print_dry_run(source, overrides, begun_with, concurrency, as_json)
            return
        from tune.sweeps.execution.runner import SweepDirectory, default_directory

        target = out or default_directory(source)
        command = shlex.join(["rayfed-ssl", "sweep", *words, *(["--begin", str(begin)] if begin else [])])
        SweepDirectory.create(target, source, overrides, begun_with, command, origin_of(begin, begun_with))
        _go_on(target, concurrency, address, quiet, as_json)


def _refuse_more(words: list[str] | None, option: str, others: Mapping[str, object]) -> None:
    more = [*(words or []), *(name for name, value in others.items() if value is not None)]
    if more:
        fail(f"{option} takes a sweep's directory alone, got {' '.join(more)} as well: a sweep goes on as it began", 2)


def _go_on(directory: Path, concurrency: int | None, address: str | None, quiet: bool, as_json: bool) -> None:
    from tune.sweeps.execution.runner import SweepDirectory, run_sweep
    from tune.sweeps.results.summary import present, write_results

    opened = SweepDirectory.open(directory)

    def say(line: str) -> None:
        if not quiet:
            typer.echo(line, err=True)

    hint = f"rayfed-ssl sweep --resume {shlex.quote(str(directory))}"

    def lost(why: str) -> None:
        typer.echo(
            f"error: {why.partition(', then resume')[0]}; finished rounds are kept; go on with: {hint}", err=True
        )
        os._exit(3)  # the main thread may wait for Ray for ever

    try:
        if opened.is_complete():
            say("all trials have ended: nothing is run")
        else:
            with terminated_is_interrupted():
                run_sweep(opened, concurrency=concurrency, address=address, say=say, lost=lost)
    except KeyboardInterrupt:
        typer.echo(f"\nstopped; finished rounds are kept; go on with: {hint}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    result = write_results(opened)
    present(result, directory, as_json)
    if result.failures:
        raise typer.Exit(1)
