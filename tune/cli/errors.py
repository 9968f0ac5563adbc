"""One line for every mistake, and the exit codes of failures and interruptions."""

import errno
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from tune.terminal import echo

_PLACE = "; change its permissions, or name another place"
ADVICE = {
    errno.EACCES: _PLACE,
    errno.EPERM: _PLACE,
    errno.EROFS: _PLACE,
    errno.ENAMETOOLONG: "; shorten the name",
    errno.ENOSPC: "; make room",
}
"""What to do where the operating system refuses a file, by the error's number."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn what a user can correct into one line and an exit code; anything else is our bug and keeps its traceback."""
    from rayfed_ssl.errors import CheckpointError, ConfigError

    try:
        yield
    except (ConfigError, CheckpointError) as error:
        fail(error.args, 2)
    except OSError as error:
        fail(describe(error), 1)
    except Exception as error:
        from rayfed_ssl.engine.round_loop import ClientError, ServerError  # loads torch

        if isinstance(error, ClientError | ServerError):
            fail(str(error), 1)
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            fail(f"memory ran out ({_first_line(error)}): set a smaller model, batch or engine.actors", 1)
        package = type(error).__module__.partition(".")[0]  # importing it to name its errors would load Ray
        if package == "ray":
            fail(f"Ray failed ({_first_line(error)}): see `ray status`, then resume the run", 3)
        if package != "actors":
            raise
        fail(str(error), 3)


def _first_line(error: BaseException) -> str:
    error = getattr(error, "cause", None) or error  # Ray puts the actor's name first, and a trace
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def describe(error: OSError) -> str:
    """Say what went wrong with which file, and what to do where that is known."""
    return f"{error.strerror or error}: {error.filename or 'no file named'}{ADVICE.get(error.errno or 0, '')}"


def fail(mistakes: str | Iterable[object], code: int) -> NoReturn:
    """Print a mistake, or several, each on a line of its own, and exit."""
    for mistake in (mistakes,) if isinstance(mistakes, str) else mistakes:
        echo(f"error: {shortened(str(mistake))}", err=True)
    raise typer.Exit(code)


MOST = 500
"""Characters of a message."""


def shortened(text: str) -> str:
    """Leave out the middle of a long message: what is wrong stands first, and what to do last."""
    return text if len(text) <= MOST else f"{text[: MOST // 2]} ... {text[5 - MOST // 2 :]}"


class Command(TyperCommand):
    """A command whose mistaken options are one line, as other mistakes are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; of `--out=~/x` a shell leaves "~" as it is."""
        home = re.compile(r"(--[a-z-]+=)?(~(?:/.*)?)")
        args = [(m[1] or "") + os.path.expanduser(m[2]) if (m := home.fullmatch(arg)) else arg for arg in args]
        with _usage_in_one_line(ctx.command_path):
            return super().parse_args(ctx, args)


class Group(TyperGroup):
    """The program, with one line for an unknown command or option."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command."""
        with _usage_in_one_line(ctx.command_path):
            return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what precedes the command."""
        with _usage_in_one_line(ctx.command_path):
            return super().parse_args(ctx, args)


@contextmanager
def _usage_in_one_line(program: str) -> Iterator[None]:
    """Turn a mistake on the command line into one line."""
    try:
        yield
    except Exception as error:  # a UsageError of click or of the copy that newer versions of typer hold
        if not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
            raise
        message = " ".join(error.format_message().split()).rstrip(".")
        fail(message[:1].lower() + message[1:] + ("" if message.endswith("?") else f": see {program} --help"), 2)


def written(write: Callable[[], None]) -> bool:
    """Write results; where that fails, warn that they are printed only."""
    try:
        write()
    except OSError as error:
        echo(f"warning: the results are printed, but not written ({describe(error)})", err=True)
        return False
    return True


@contextmanager
def resumable(hint: Callable[[], str]) -> Iterator[None]:
    """Say how to resume after Ctrl-C, SIGTERM (exit code 128 + the signal's number) or a disk failure."""
    received = signal.SIGINT

    # Spot machines and batch systems send SIGTERM before they take the machine away.
    def terminate(number: int, _: object) -> None:
        nonlocal received
        signal.signal(number, signal.SIG_IGN)  # a second one would stop the cleaning up
        received = signal.SIGTERM
        raise KeyboardInterrupt  # the only exception that passes through Ray's waiting unchanged

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt:
        echo(err=True)
        echo(f"interrupted; {hint()}", err=True)
        raise typer.Exit(128 + received) from None
    except OSError as error:
        fail(f"{describe(error)}; {hint()}", 1)
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_on_ray_death(
    hint: Callable[[], str], stop_progress: Callable[[], None] = lambda: None
) -> Callable[[str], None]:
    """Make what ends this process in one line when Ray has died: the main thread may wait for Ray for ever."""

    def exit_now(why: str) -> None:
        stop_progress()
        echo(f"error: {why.partition(', then resume')[0]}; {hint()}", err=True)
        os._exit(3)

    return exit_now
