"""`rayfed-ssl resume`: continue an interrupted run."""

from functools import partial
from typing import Annotated

import typer

from tune.cli.errors import resumable
from tune.cli.options import Address, Inject, Quiet, RunDirectory
from tune.cli.run import finish, resume_hint


def resume(
    directory: RunDirectory,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes of engine.*, such as engine.actors=4.")
    ] = None,
    round: Annotated[int | None, typer.Option(help="Resume after this round instead of the last.")] = None,
    address: Address = None,
    inject: Inject = None,
    quiet: Quiet = False,
) -> None:
    """Resume an interrupted run; its results are bitwise those of an uninterrupted one."""
    from actors.runs import make_executor
    from rayfed_ssl.engine.faults import parse_faults
    from rayfed_ssl.records.run_record import RunRecord
    from rayfed_ssl.runs import resume as resume_run
    from tune.cli.progress import RunProgress

    faults, overrides = parse_faults(inject), settings or []
    record = RunRecord.open(directory, tables=False)
    progress = RunProgress(record.config(*overrides), quiet=quiet, record=record)
    executor = partial(make_executor, address=address, faults=faults)
    with resumable(lambda: resume_hint(directory)), progress:
        result = resume_run(directory, *overrides, observer=progress, executor=executor, round=round)
    progress.close()
    finish(result)
