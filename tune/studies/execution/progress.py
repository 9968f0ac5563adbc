"""What a sweep prints while it runs: a line for each run that reached its rung or end, and for each trial that ended."""

import time
from collections.abc import Callable

from rayfed_ssl.formats import MeanStd
from tune.studies.definition.space import point_text
from tune.studies.definition.study import Study
from tune.studies.execution.trial_table import unit_of
from tune.studies.search.search import Outcome, Segment, Trial


class StudyProgress:
    """Prints the progress of a sweep by `say`, a line at a time."""

    def __init__(self, study: Study, say: Callable[[str], None]) -> None:
        self._study, self._say = study, say
        self._started = time.perf_counter()
        self._num_ended = self._num_run = self._num_on_disk = 0

    def segment_ended(self, segment: Segment, outcome: Outcome, on_disk: bool, total: int) -> None:
        """A run reached a rung or its end, or failed; `total` is the sweep's number of trials."""
        if on_disk:
            self._num_on_disk += 1
            return
        if self._num_on_disk and not self._num_run:
            self._say(f"{self._num_on_disk} runs are on disk already")
        self._num_run += 1
        scores = ", ".join(f"{name} {_text(name, value)}" for name, value in outcome.scores.items())
        result = f"failed: {outcome.failure}" if outcome.failure else scores or "done"
        place = f"trial {segment.trial}, seed {segment.seed}, round {segment.until} of {segment.run.config.rounds}"
        self._say(f"{place}: {result}; {self._state(total)}")

    def _state(self, total: int) -> str:
        seconds = f"{time.perf_counter() - self._started:.0f} s so far"
        return f"{self._num_ended} of {total} trials ended, {seconds}" if self._num_ended else seconds

    def trial_ended(self, trial: Trial) -> None:
        """A trial is complete, stopped or failed."""
        self._num_ended += 1
        text = f"{trial.state}: {trial.reason}"
        if trial.state == "complete":
            values = zip(self._study.goals, trial.values, strict=True)
            text = ", ".join(["complete", *(f"{goal.score} {_text(goal.score, value)}" for goal, value in values)])
            text += f", mean of {len(trial.runs)} seeds" * (len(trial.runs) > 1)
        self._say(f"trial {trial.number} ({point_text(trial.point)}): {text}")


def _text(score: str, value: float) -> str:
    return MeanStd(value, None, 1).text(unit_of(score))
