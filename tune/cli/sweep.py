"""`rayfed-ssl sweep`: start a sweep, resume one, show its status or count its runs."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from tune.cli.errors import exit_on_ray_death, fail, resumable
from tune.cli.options import Address, AsJson, Quiet, Trust
from tune.terminal import echo


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
    as_json: AsJson = False,
) -> None:
    """Run a sweep on Ray Tune: a grid, random points, or a search by Optuna."""
    given = {"--out": out, "--begin": begin, "--dry-run": dry_run or None}
    if status is not None:
        _refuse_more(arguments, "--status", given | {"--resume": resume, "--concurrency": concurrency})
        from tune.studies.results.state import state_of

        state_of(status).print(as_json)
        return
    if resume is not None:
        seeds = [text for text in arguments or [] if text.startswith("seeds=")]
        rest = [text for text in arguments or [] if text not in seeds]
        _refuse_more(rest, "--resume", given, " but seeds=N")
        if len(seeds) > 1:
            fail(f"seeds are named once, got {' '.join(seeds)}", 2)
        _run(resume, concurrency, address, quiet, as_json, *seeds, trust=trust)
        return
    if not arguments or "=" in arguments[0]:
        fail("name a sweep: one of `rayfed-ssl list sweeps`, or a YAML file of your own", 2)
    source, overrides = arguments[0], arguments[1:]
    from tune.studies.execution.directory import StudyDirectory
    from tune.studies.results.inherited_settings import inherited_settings

    inherited, origin = inherited_settings(source, begin)
    directory = out or Path("runs") / f"sweep-{Path(source).stem}"
    options = [word for name, path in (("--begin", begin), ("--out", out)) if path for word in (name, str(path))]
    command = shlex.join(["rayfed-ssl", "sweep", *arguments, *options])
    asked = StudyDirectory.asked_for(directory, source, overrides, inherited, command, origin)
    if dry_run:
        from tune.studies.results.state import state_before

        state_before(asked).print(as_json)
        return
    asked.create()
    _run(directory, concurrency, address, quiet, as_json)


def _refuse_more(arguments: list[str] | None, option: str, others: Mapping[str, object], allowed: str = "") -> None:
    extra = [*(arguments or []), *(name for name, value in others.items() if value is not None)]
    if extra:
        fail(f"{option} takes a sweep's directory and no new settings{allowed}, got {' '.join(extra)}", 2)


def _run(
    directory: Path,
    concurrency: int | None,
    address: str | None,
    quiet: bool,
    as_json: bool,
    more_seeds: str | None = None,
    *,
    trust: bool = False,
) -> None:
    from tune.studies.execution.directory import StudyDirectory
    from tune.studies.execution.runner import run_study
    from tune.studies.results.summary import print_results, write_results

    opened = StudyDirectory.open(directory, trust=trust)
    if opened.study.kind != "sweep":
        fail(f"{directory} holds a reproduction: resume it with `{opened.record.command}`", 2)
    if more_seeds is not None or not opened.is_complete():
        opened.check_trusted()
    if more_seeds is not None:
        opened.add_seeds(more_seeds)
    hint = f"finished rounds are kept; resume with: rayfed-ssl sweep --resume {shlex.quote(str(directory))}"

    def say(line: str) -> None:
        if not quiet:
            echo(line, err=True)

    if opened.is_complete():
        say("all trials have ended: nothing is run")
    else:
        with resumable(lambda: hint):
            run_study(
                opened, concurrency=concurrency, address=address, say=say, on_ray_death=exit_on_ray_death(lambda: hint)
            )
    result = write_results(opened)
    print_results(result, directory, as_json)
    if result.states["failed"]:
        raise typer.Exit(1)
