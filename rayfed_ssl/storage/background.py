"""Flushing rounds to disk while the run goes on: large states take longer to write to disk than to compute."""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

FLUSH_EVERY = 30.0
"""Seconds between two flushes in the background: a disk that is always being flushed holds up who writes to it."""


class Task:
    """What a thread does, from now on.

    Python 3.11 takes a thread for ended whose `join` was interrupted by a signal; who waits here waits for its end.
    """

    def __init__(self, do: Callable[[], None], name: str) -> None:
        self._failure: BaseException | None = None
        self._over = threading.Event()

        def work() -> None:
            try:
                do()
            except BaseException as error:
                self._failure = error
            finally:
                self._over.set()

        self._thread = threading.Thread(target=work, name=name)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._over.is_set()

    def wait(self) -> None:
        """Wait for its end, also when told to stop meanwhile; told twice, do not.

        Raises:
            BaseException: What it raised.
        """
        try:
            self._over.wait()
        finally:
            self._over.wait()
        self._thread.join()
        if self._failure is not None:
            raise self._failure


def side_by_side(function: Callable[[str], None], items: Collection[str], threads: int) -> None:
    """Call a function on each item in several threads; pools of `concurrent.futures` refuse that once a program ends.

    Raises:
        Exception: What the function raised first; all items had their turn.
    """
    waiting, failures = list(items), list[Exception]()

    def work() -> None:
        while True:
            try:
                item = waiting.pop()  # lists are safe between threads
            except IndexError:
                return
            try:
                function(item)
            except Exception as error:
                failures.append(error)

    helpers = [Task(work, "helper") for _ in range(min(threads, len(waiting)) - 1)]
    try:
        work()
    finally:
        for helper in helpers:
            helper.wait()
    if failures:
        raise failures[0]


@dataclass(frozen=True)
class _Flush:
    round: int
    files: frozenset[str]
    task: Task


class Settling:
    """Flushes a round every half a minute; those that come earlier, or while one is being flushed, are passed over.

    Attributes:
        settled: The last round that is known to outlive a power loss, and its files.
    """

    def __init__(self) -> None:
        self.settled: tuple[int, frozenset[str]] | None = None
        self._flush: _Flush | None = None
        self._begun = time.monotonic()

    @property
    def files(self) -> frozenset[str]:
        """Files that need not be flushed again."""
        return frozenset() if self.settled is None else self.settled[1]

    @property
    def needed(self) -> dict[int, frozenset[str]]:
        """Rounds that have to stay, with their files: the last that was settled, and the one that is being."""
        rounds = {} if self.settled is None else dict([self.settled])
        return rounds if self._flush is None else rounds | {self._flush.round: self._flush.files}

    def begin(self, round: int, files: frozenset[str], flush: Callable[[], None]) -> None:
        """Flush a round in the background, if it is time and no other still is.

        Raises:
            Exception: What flushing an earlier round raised.
        """
        if self._flush is not None and not self._flush.task.is_over:
            return
        self.wait()
        if time.monotonic() - self._begun < FLUSH_EVERY:
            return
        self._begun = time.monotonic()
        self._flush = _Flush(round, files, Task(flush, "settling"))

    def wait(self) -> None:
        """Wait until nothing is being flushed.

        Raises:
            Exception: What flushing raised.
        """
        if self._flush is not None:
            flush, self._flush = self._flush, None
            flush.task.wait()
            self.settled = flush.round, flush.files
