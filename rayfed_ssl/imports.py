"""Importing fast where a process imports all that it will ever need at once, as a command and an actor do."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Collect no garbage while modules are imported, and never look through what they made again.

    Python would traverse the ever more objects of torch's modules a hundred times, then in each full collection and when the
    process ends: a fifth of the time of importing this package.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
