"""What a sweep says while it goes on: a line for each run that came to its rung or end, and for each trial that ended."""

import time
from collections.abc import Callable

from tune.sweeps.definition.sweep import Sweep
from tune.sweeps.execution.trials import Ended
from tune.sweeps.results.trial_results import named
from tune.sweeps.search.search import Trial

__all__ = ["SweepProgress", "named"]


class SweepProgress:
    """Tells how a sweep goes on.

    Args:
        sweep: Which.
        say: Prints a line.
    """

    def __init__(self, sweep: Sweep, say: Callable[[str], None]) -> None:
        self._sweep, self._say = sweep, say
        self._began = time.perf_counter()
        self._ended = self._run = self._there = 0

    def leg_ended(self, ended: Ended, total: int) -> None:
        """A run came to a rung or to its end, or failed.

        Args:
            ended: Which, and what came of it.
            total: Trials of the sweep.
        """
        leg = ended.leg
        if ended.was_there:
            self._there += 1
            return
        if self._there and not self._run:
            self._say(f"{self._there} runs are as far as they are needed already")
        self._run += 1
        scores = ", ".join(f"{name} {value:.4g}" for name, value in ended.outcome.scores.items())
        came = f"failed: {ended.outcome.failure}" if ended.outcome.failure else scores
        self._say(
            f"trial {leg.trial}, seed {leg.seed}, round {leg.until} of {leg.config.rounds}: {came}; {self._left(total)}"
        )

    def _left(self, total: int) -> str:
        took = time.perf_counter() - self._began
        if not self._ended:
            return f"{took:.0f} s so far"
        return f"{self._ended} of {total} trials ended, {took:.0f} s so far"

    def trial_ended(self, trial: Trial) -> None:
        """A trial is complete, stopped or failed."""
        self._ended += 1
        if trial.state == "complete":
            found = ", ".join(
                f"{goal.score} {value:.4g}" for goal, value in zip(self._sweep.goals, trial.values, strict=True)
            )
            told = f"complete, {found}" + (f", mean of {len(trial.runs)} seeds" if len(trial.runs) > 1 else "")
        else:
            told = f"{trial.state}: {trial.reason}"
        self._say(f"trial {trial.number} ({named(trial.point)}): {told}")
