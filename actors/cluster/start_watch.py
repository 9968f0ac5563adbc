"""Watching Ray start: a start that died or stands still is given up within seconds, a slow one is waited for."""

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

STILL_TIMEOUT = 7.0
"""Seconds without work after which a start counts as stuck; a healthy one pauses for a second at most."""

STILL_SHARE = 0.25
"""Part of a core at which Ray's processes make up for as much time of stillness; idle ones take a twentieth."""

VITAL = ("gcs_server", "raylet")
"""Ray's processes without which no start succeeds; Ray itself waits half a minute for one that died."""

LONGEST_REASON = 160
"""Characters of a log's message that are shown."""

_LOG_LINE = re.compile(r"^\[[^\]]* [ECF] [^\]]*\] (?:\([^)]*\) )?(?:\S+:\d+: +)?(.+)")


@dataclass
class StartWatch:
    """Looks, every time it is asked, at the processes that a start has made.

    Args:
        directory: Ray's files.
    """

    directory: Path
    _before: set[int] = field(default_factory=lambda: {child.pid for child in psutil.Process().children()})
    _vital: dict[int, str] = field(default_factory=dict)
    _work: float = 0.0
    _seen: float = field(default_factory=time.monotonic)
    _still: float = 0.0

    def trouble(self) -> str | None:
        """Say why the start cannot succeed any more; None while it can."""
        children = {child.pid: child for child in self.children()}
        for pid, child in children.items():
            with suppress(psutil.Error):
                if child.name() in VITAL:
                    self._vital[pid] = child.name()
        for pid, name in self._vital.items():
            if pid not in children or has_ended(children[pid]):
                return f"its {name} died{last_words(self.directory, name)}"
        self._measure([psutil.Process(), *children.values()])
        return f"its processes do nothing for {STILL_TIMEOUT:g} s" if self._still >= STILL_TIMEOUT else None

    def children(self) -> Iterator[psutil.Process]:
        """List what this process has started since the watch began."""
        return (child for child in psutil.Process().children() if child.pid not in self._before)

    def _measure(self, processes: list[psutil.Process]) -> None:
        now, work = time.monotonic(), sum(map(_work_of, processes))
        spent, passed = work - self._work, now - self._seen
        if any(_waits_for_disk(process) for process in processes):
            self._still = 0.0
        self._still = max(0.0, self._still + passed - spent / STILL_SHARE)
        self._seen, self._work = now, work


def last_words(directory: Path, name: str) -> str:
    """Find the last error in the log of one of Ray's processes, with a colon before it."""
    errors = []
    for path in sorted((directory / "session_latest" / "logs").glob(f"{name}*.*")):
        with suppress(OSError):
            errors += [
                found[1] for line in path.read_text(errors="replace").splitlines() if (found := _LOG_LINE.match(line))
            ]
    return f": {_shorten(errors[-1])}" if errors else ""


def _shorten(message: str) -> str:
    """Take the sentences of an error that say something, without the page that Ray adds."""
    said = message.rpartition("Check failed: ")[2].strip()
    whole = re.match(rf".{{1,{LONGEST_REASON}}}\.(?=\s)", said)
    return whole[0].strip(" .") if whole else said[:LONGEST_REASON]


def has_ended(process: psutil.Process) -> bool:
    """Whether a process is gone, or only its parent has not noticed yet."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


def _work_of(process: psutil.Process) -> float:
    """Seconds for which a process ran or, on Linux, had to wait for a core: on a busy machine most of a start is that."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    waited = 0
    for path in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
        with suppress(OSError, IndexError, ValueError):
            waited += int(path.read_text().split()[1])
    return float(times.user + times.system + waited / 1e9)


def _waits_for_disk(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_DISK_SLEEP)
    except psutil.Error:
        return False
