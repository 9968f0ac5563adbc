"""The command line's entry point. Commands import what they need when they run: `--help` loads neither Ray nor torch."""

import os
import sys
import threading
import warnings
from importlib import metadata
from typing import Annotated, NoReturn

import typer

from rayfed_ssl.machine.processor import PORTABLE, NotPortableError
from tune.cli import ahead
from tune.cli.audit import audit
from tune.cli.benchmark import benchmark
from tune.cli.clock import clock
from tune.cli.compare import compare
from tune.cli.diagnose import diagnose
from tune.cli.doctor import doctor
from tune.cli.errors import Command, Group, plain_errors
from tune.cli.evaluate import evaluate
from tune.cli.export import export
from tune.cli.list_names import list_names
from tune.cli.partition import partition
from tune.cli.replay import replay
from tune.cli.report import report
from tune.cli.reproduce import reproduce
from tune.cli.run import resume, run
from tune.cli.sweep import sweep
from tune.cli.verify import verify
from tune.terminal import echo

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated self-supervised representation learning, simulated on Ray: same seed, same bits.",
)

for _command in (
    run,
    resume,
    replay,
    verify,
    partition,
    clock,
    doctor,
    evaluate,
    audit,
    compare,
    export,
    diagnose,
    report,
    reproduce,
    sweep,
    benchmark,
):
    app.command(cls=Command)(plain_errors()(_command))
app.command("list", cls=Command)(plain_errors()(list_names))


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(f"rayfed-ssl {metadata.version('rayfed-ssl')}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as errors are printed: one line, without the place in the code."""
    echo(f"warning: {message}", err=True)


def _exit_with_stuck_ray(leaving: SystemExit) -> None:
    """Exit at once where Ray is still starting in a thread, which would crash the interpreter's own exit."""
    is_stuck = bool(leaving.code) and any(thread.name == "ray-init" for thread in threading.enumerate())
    if ahead.abandon() or is_stuck:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None))


def _restart_portable() -> NoReturn:
    """Start this program again with the variables of `engine.cpu=portable`, which libraries read when they are loaded."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | PORTABLE)


def main() -> None:
    """Run the command line."""
    warnings.showwarning = _show_warning
    ahead.is_own_process = True
    try:
        app()
    except NotPortableError:
        _restart_portable()
    except SystemExit as leaving:
        _exit_with_stuck_ray(leaving)
        raise
    except BrokenPipeError:  # the reader of the output, `head` for example, closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except KeyboardInterrupt:
        _exit_with_stuck_ray(interrupted := SystemExit(130))
        raise interrupted from None
