"""SIGTERM as Ctrl-C, for commands that keep what is finished and go on with it later."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def terminated_is_interrupted() -> Iterator[None]:
    """Let SIGTERM raise `KeyboardInterrupt`, as batch systems send it before they take a machine away."""

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
