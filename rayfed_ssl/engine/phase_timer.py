"""Where the wall time of a run goes: a phase lasts until the next begins, so that all of them add up."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rayfed_ssl.engine.round_loop import Evaluation, Observer, ServerReport
from rayfed_ssl.formats import duration

PHASES = ("imports", "data", "Ray", "start scores", "rounds", "evaluation", "writing", "other")
"""In the order in which they are shown.

"data" are opened and divided, "Ray" and its actors start and end, "rounds" include the server's state before round 1, and
"writing" is what rounds wait for: records, trackers and commits.
"""


class PhaseTimer(Observer):
    """Divides the wall time of a run among phases; as an observer of the run, that of the round loop too."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._phase, self._began = "other", time.perf_counter()

    @classmethod
    def of_process(cls) -> "PhaseTimer":
        """Begin with the imports of this process, when it was created: for a process that only runs one federation."""
        timer = cls()
        timer._phase, timer._began = "imports", timer._began - process_age()
        return timer

    def begin(self, phase: str) -> None:
        """End the current phase."""
        now = time.perf_counter()
        self._seconds[self._phase] += now - self._began
        self._phase, self._began = phase, now

    def seconds(self) -> dict[str, float]:
        """Give the seconds of each phase until now, to milliseconds."""
        self.begin(self._phase)
        return {phase: round(seconds, 3) for phase, seconds in self._seconds.items()}

    def on_round(self, round: int, cohort: Sequence[int]) -> None:
        """A round starts."""
        self.begin("rounds")

    def on_server(self, report: ServerReport) -> None:
        """A round is computed."""
        self.begin("writing")

    def on_evaluations(self, final: bool) -> None:
        """Scoring starts."""
        self.begin("evaluation")

    def on_evaluated(self, evaluations: Sequence[Evaluation]) -> None:
        """Scoring is done."""
        self.begin("writing")


def process_age() -> float:
    """Seconds since this process was created, to hundredths, by Linux's clock of both."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[19])  # since boot: field 22 of proc(5)
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def phases_text(seconds: Mapping[str, float]) -> str:
    """Write seconds by phase in one line, "48.1 s: imports 8.0, data 3.2, rounds 36.9", without phases that took none."""
    parts = [f"{phase} {part:.1f}" for phase, part in seconds.items() if part >= 0.05]  # what is not shown as 0.0
    return f"{duration(sum(seconds.values()))}: {', '.join(parts)}"
