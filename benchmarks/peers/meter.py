"""How all systems are measured: clock, CPU time and memory of a process and all that it started."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import psutil

from benchmarks.peers.work import Case, read_cases
from rayfed_ssl.trees import Weights, digest

SPARE = ("ray::IDLE", "default_worker.py")
"""What commands of Ray's workers say that wait for work, or are still starting to."""


def tree_of(pid: int | None = None) -> list[psutil.Process]:
    """List this process and all that it started."""
    me = psutil.Process(pid)
    return [me, *me.children(recursive=True)]


def core_seconds() -> dict[int, float]:
    """Read the CPU time of each process of this run, in seconds."""
    found = {}
    for process in tree_of():
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        found[process.pid] = times.user + times.system
    return found


def spent(before: dict[int, float], after: dict[int, float]) -> float:
    """Add up the CPU time between two readings; of processes that ended in between nothing is known."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


def memory() -> dict[str, float]:
    """Measure the memory of all processes of this run in MB, each page divided among those that share it.

    Spare workers that Ray keeps without work come and go, so they are left out.

    Returns:
        All of it, and that which is no file's: what other programs of the machine that map the same libraries do not change.
    """
    totals = {"pss_mb": 0.0, "data_mb": 0.0}
    for process in tree_of():
        try:
            spare = any(word in " ".join(process.cmdline()) for word in SPARE)
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        except (OSError, psutil.Error):
            continue
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:] if not spare}
        totals["pss_mb"] += kilobytes.get("Pss", 0) / 1000
        totals["data_mb"] += (kilobytes.get("Pss_Anon", 0) + kilobytes.get("Pss_Shmem", 0)) / 1000
    return totals


@dataclass
class Meter:
    """Measures one case in the process that drives it.

    Attributes:
        case: What is measured.
        system: Whose work it is.
        file: Where the result goes, as one line of JSON.
    """

    case: Case
    system: str
    file: TextIO
    _startup: float = 0.0
    _starts: list[float] = field(default_factory=list)
    _cpu: dict[int, float] = field(default_factory=dict)
    _result: dict[str, Any] = field(default_factory=dict)
    _cohorts: dict[int, list[int]] = field(default_factory=dict)
    _clients: list[float] = field(default_factory=list)
    _failed: dict[int, int] = field(default_factory=dict)
    _killed: list[dict[str, int]] = field(default_factory=list)

    def start_round(self) -> None:
        """Note that a round starts, and that the one before it has ended."""
        if not self._starts:
            self._startup = time.time() - psutil.Process().create_time()
        if len(self._starts) == self.case.warm:
            self._cpu = core_seconds()
        self._starts.append(time.perf_counter())
        print(f"round {len(self._starts)}", file=sys.stderr, flush=True)

    @property
    def round(self) -> int:
        """The running round, from 1."""
        return len(self._starts)

    def note_cohort(self, cohort: Iterable[int], failed: int = 0) -> None:
        """Note who took part in the running round, and how many of them failed."""
        self._cohorts[self.round] = sorted(cohort)
        self._failed[self.round] = failed

    def note_client(self, seconds: float) -> None:
        """Note how long a client's step took."""
        if self.round > self.case.warm:
            self._clients.append(seconds)

    def kill_one(self, name: str, after: float) -> None:
        """Kill, some seconds from now, one process of this run whose command holds a name, as a lack of memory would.

        Who died is written down at once, as the run may not come to its end.
        """

        def kill() -> None:
            time.sleep(after)
            for process in tree_of()[1:]:
                if self._result:
                    return  # the round was shorter than this, and so was the run
                with suppress(psutil.Error):
                    if name in " ".join(process.cmdline()):
                        process.kill()
                        self._killed.append({"pid": process.pid, "round": self.round})
                        self._write({"killed": self._killed})
                        return

        threading.Thread(target=kill, daemon=True).start()

    def stop(self) -> None:
        """End the last round and read clock, CPU time and memory, while all processes are there; once only."""
        if self._result:
            return
        ends = [*self._starts[1:], time.perf_counter()]
        seconds = [end - start for start, end in zip(self._starts, ends, strict=True)][self.case.warm :]
        cores = spent(self._cpu, core_seconds())
        self._result = {"seconds": seconds, "core_seconds": cores / max(len(seconds), 1), **memory()}

    def finish(self, weights: Weights | None = None, **more: Any) -> None:
        """Write the result."""
        self.stop()
        self._result |= {
            "system": self.system,
            "startup": self._startup,
            "cohorts": list(self._cohorts.values()),
            "failed": list(self._failed.values()),
            "killed": self._killed,
            "clients": self._clients,
            "weights": None if weights is None else digest(dict(weights)),
            **more,
        }
        self._write(self._result)

    def _write(self, found: dict[str, Any]) -> None:
        self.file.write(json.dumps(found | {"case": asdict(self.case)}) + "\n")
        self.file.flush()


def main(system: str, measure: Callable[[Case, Meter], None]) -> None:
    """Measure the cases that the arguments name one after the other."""
    cases, file = read_cases()
    with file:
        for case in cases:
            measure(case, Meter(case, system, file))
