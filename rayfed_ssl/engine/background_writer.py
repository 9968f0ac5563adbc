"""Writing while the next round runs: one task at a time, in order, whose errors surface in the run."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self


class BackgroundWriter:
    """Runs writing tasks one after the other in a thread of its own; leaving the context waits for the last.

    A task starts when the one before is done, so that at any moment at most one is not written.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "writer")
        self._task: Future[None] | None = None

    def submit(self, write: Callable[[], None]) -> None:
        """Start a task; raises what the one before has raised."""
        self.wait()
        self._task = self._thread.submit(write)

    def wait(self) -> None:
        """Wait until all is written; raises what the task has raised, once."""
        task, self._task = self._task, None
        if task is not None:
            task.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.shutdown()
        if error is None:
            self.wait()
