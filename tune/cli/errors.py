"""What a user sees when something is wrong: one line a mistake, and an exit code that says whose it is."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn what a user can mend into one line and a non-zero exit; anything else is our bug and keeps its traceback."""
    from rayfed_ssl.engine.round_loop import ClientError, ServerError
    from rayfed_ssl.errors import CheckpointError, ConfigError

    try:
        yield
    except (ConfigError, CheckpointError) as error:
        fail(str(error), 2)
    except (ClientError, ServerError) as error:
        fail(str(error), 1)
    except OSError as error:
        fail(f"{error.strerror or error}: {error.filename or 'no file named'}; rounds that were committed are kept", 1)
    except Exception as error:
        package = type(error).__module__.partition(".")[0]  # importing it to name its errors would load Ray
        if package == "ray":
            fail(f"Ray failed ({_first_line(error)}): see `ray status`, then resume the run", 3)
        if package != "actors":
            raise
        fail(str(error), 3)


def _first_line(error: BaseException) -> str:
    error = getattr(error, "cause", None) or error  # Ray puts the actor's name first, and a trace
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def fail(message: str, code: int) -> None:
    """Print a message, each line as an error, and exit."""
    for line in message.splitlines():
        typer.echo(f"error: {line}", err=True)
    raise typer.Exit(code)


class Unwritten:
    """Warns in one line that what was found cannot be written, so that it is at least printed.

    Attributes:
        happened: Whether it has.
    """

    def __init__(self) -> None:
        self.happened = False

    def __call__(self, error: OSError) -> None:
        """Warn."""
        self.happened = True
        why = f"{error.strerror or error}: {error.filename or 'no file named'}"
        typer.echo(f"warning: what was found is printed, but not written ({why})", err=True)
