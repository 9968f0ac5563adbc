"""`rayfed-ssl run` and `rayfed-ssl resume`: run a federation from the start, or from its last committed round."""

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rayfed_ssl.imports import importing
from tune.cli import ahead
from tune.cli.errors import exit_on_ray_death, resumable
from tune.cli.options import (
    Address,
    Inject,
    Quiet,
    RecipeAndSettings,
    RunDirectory,
    Trust,
    Verbose,
    divide_arguments,
    load_config,
)
from tune.terminal import echo

if TYPE_CHECKING:
    from rayfed_ssl.engine.round_loop import Executor
    from rayfed_ssl.progress import RunProgress
    from rayfed_ssl.runs import Result

DEGRADED = 4
"""Exit code of a run that finished with clients missing from rounds that they belonged to."""


def run(
    arguments: RecipeAndSettings = None,
    out: Annotated[Path | None, typer.Option(help="Directory for the run; must be new or empty.")] = None,
    address: Address = None,
    inject: Inject = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run a federation: rayfed-ssl run [RECIPE] [KEY=VALUE]..."""
    ahead.prepare(*divide_arguments(arguments), address)
    with importing():
        from actors.injection import parse_kills
        from actors.runs import check_fits, make_executor
        from rayfed_ssl.engine.federation import Federation
        from rayfed_ssl.engine.phase_timer import PhaseTimer
        from rayfed_ssl.engine.virtual_time import attach_schedule
        from rayfed_ssl.progress import RunProgress
        from rayfed_ssl.records.run_lock import refuse_used
        from rayfed_ssl.runs import default_directory
        from rayfed_ssl.runs import run as run_federation

    timer = PhaseTimer.of_process()
    timer.begin("data")
    config, kills = load_config(arguments), parse_kills(inject)
    directory = out or default_directory(config)
    refuse_used(directory)
    progress = RunProgress(config, quiet=quiet)
    federation = Federation.open(config, progress.on_decode, partial(check_fits, address=address))
    federation.check_ready()
    attach_schedule(federation)
    check_fits(federation, address, kills)
    progress.introduce(federation, directory)
    start = partial(run_federation, config, directory, federation=federation, timer=timer)
    _finish(directory, start, progress, partial(make_executor, address=address, kills=kills), verbose)


def resume(
    directory: RunDirectory,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Changes of engine.* and evaluation.*, or more rounds."),
    ] = None,
    round: Annotated[int | None, typer.Option(help="Resume after this round instead of the last.")] = None,
    trust: Trust = False,
    address: Address = None,
    inject: Inject = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Resume an interrupted run, to bitwise the same results, or extend one: rayfed-ssl resume RUN rounds=20.

    Where a schedule follows the rounds, as in most recipes, training.schedule_rounds=R beside it repeats the learning rates
    of round R, the last so far.
    """
    ahead.prepare(directory / "config.yaml", settings or [], address)
    with importing():
        from actors.injection import parse_kills
        from actors.runs import make_executor
        from rayfed_ssl.engine.phase_timer import PhaseTimer
        from rayfed_ssl.progress import RunProgress
        from rayfed_ssl.records.resuming import config_to_resume
        from rayfed_ssl.records.run_record import RunRecord
        from rayfed_ssl.runs import resume as resume_run

    timer = PhaseTimer.of_process()
    timer.begin("data")
    kills, overrides = parse_kills(inject), settings or []
    record = RunRecord.open(directory, tables=False, trust=trust)
    progress = RunProgress(config_to_resume(record, *overrides), quiet=quiet, record=record)
    start = partial(resume_run, directory, *overrides, round=round, trust=trust, timer=timer)
    _finish(directory, start, progress, partial(make_executor, address=address, kills=kills), verbose)


def _finish(
    directory: Path,
    start: "Callable[..., Result]",
    progress: "RunProgress",
    make_executor: "Callable[..., Executor]",
    verbose: bool,
) -> None:
    """Run to the end, print the result, and exit with a code of its own if it is degraded."""
    from rayfed_ssl.reports.summary import summarize
    from tune.cli.run_summary import print_run

    def hint() -> str:
        if not (directory / "run.json").exists():
            return "nothing was written"
        return f"resume with: rayfed-ssl resume {shlex.quote(str(directory))}"

    executor = partial(make_executor, on_ray_death=exit_on_ray_death(hint, progress.stop))
    with resumable(hint), progress:
        result = start(observer=progress, executor=executor)
    progress.close()
    print_run(summary := summarize(result.record), verbose, progress.warned)
    for message in sorted(progress.unseen - {*summary.warnings}):  # of trackers, which are on no record
        echo(f"warning: {message}", err=True)
    echo(f"report: rayfed-ssl report {shlex.quote(str(result.directory))}")
    if result.degraded:
        raise typer.Exit(DEGRADED)
