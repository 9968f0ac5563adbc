"""`rayfed-ssl verify`: run a run again and say whether it gives the same bits."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from tune.cli.options import Address, Quiet, Trust
from tune.terminal import echo

DIFFERENT = 1
"""Exit code where something differs."""


def verify(
    subject: Annotated[
        str, typer.Argument(metavar="RUN|RECIPE", help="A run's directory, or a recipe such as digits.")
    ],
    out: Annotated[Path | None, typer.Option(help="Keep the second run here; default: it is removed.")] = None,
    address: Address = None,
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Run a run again, and say whether it is equal or which round and state differ first."""
    from actors.runs import make_executor
    from rayfed_ssl.config.schema import Config
    from rayfed_ssl.machine.processor import check_process
    from rayfed_ssl.progress import RunProgress
    from rayfed_ssl.records.run_record import RunRecord
    from rayfed_ssl.verification import verify_recipe, verify_run

    record = RunRecord.open(Path(subject), trust=trust) if Path(subject).is_dir() else None
    config = Config.load(subject, "engine.cpu=portable", trust=trust) if record is None else record.config()
    check_process(config.engine.cpu)
    executor = partial(make_executor, address=address)
    with ExitStack() as stack:
        directory = out or Path(stack.enter_context(TemporaryDirectory(prefix="rayfed-ssl-verify-"))) / "run"
        with RunProgress(config, quiet=quiet) as progress:
            if record is None:
                result = verify_recipe(subject, directory, progress, executor)
            else:
                result = verify_run(record, config, directory, progress, executor)
    for line in result.differences:
        echo(f"different: {line}")
    if not result.differences:
        echo(f"equal: {result.rounds} rounds, state_sha256 {result.state_sha256}")
        return
    echo(f"reason: {result.reason or 'nothing on record explains it: the record was changed, or this is a fault'}")
    raise typer.Exit(DIFFERENT)
