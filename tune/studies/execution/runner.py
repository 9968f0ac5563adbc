"""Running and resuming a study: one directory with all that it was and gave.

study.json       what was asked for, with which versions, and the trials so far
trials.parquet   a row for each trial and seed, written anew as runs end
shared/          what the server of several runs starts from, trained once
runs/NAME        the runs, named for their settings: equal runs of several trials are one
tune/            Ray Tune's own files
table.md, best.yaml, results.json, figures   when the study has ended

To resume, the search runs again from its start, and is answered with the runs on disk.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.formats import MeanStd
from rayfed_ssl.machine.environment import environment
from rayfed_ssl.machine.processor import check_process
from tune.studies.definition.space import point_text
from tune.studies.execution.directory import StudyDirectory, TrialRecord
from tune.studies.execution.scores import TrialRows, record_trials
from tune.studies.execution.segments import DataCheck, SegmentQueue, outcome_of
from tune.studies.execution.trial_table import unit_of, write_rows
from tune.studies.search.search import Outcome, Search, Segment, Trial

Say = Callable[[str], None]


class Recorder:
    """Prints how a study goes, a line at a time, and writes down the state of its search."""

    def __init__(self, directory: StudyDirectory, say: Say) -> None:
        self._directory, self._say = directory, say
        self.search = Search(directory.study, self._trial_ended)
        self._before = directory.record.trials
        self._rows = TrialRows(directory.runs)
        self._started = time.perf_counter()
        self._num_ended = self._num_run = self._num_on_disk = 0

    def segment_ended(self, segment: Segment, outcome: Outcome, on_disk: bool) -> None:
        """Say that a run reached a rung or its end, or failed; those on disk are counted."""
        self._rows.forget(segment.run.name)
        if on_disk:
            self._num_on_disk += 1
            return
        if self._num_on_disk and not self._num_run:
            self._say(f"{self._num_on_disk} runs are on disk already")
        self._num_run += 1
        result = f"failed: {outcome.failure}" if outcome.failure else _scores_text(outcome.scores.items()) or "done"
        place = f"trial {segment.trial}, seed {segment.seed}, round {segment.until} of {segment.run.config.rounds}"
        trials = f"{self._num_ended} of {self.search.total} trials ended, " if self._num_ended else ""
        self._say(f"{place}: {result}; {trials}{time.perf_counter() - self._started:.0f} s so far")

    def _trial_ended(self, trial: Trial) -> None:
        self._num_ended += 1
        text = f"{trial.state}: {trial.reason}"
        if trial.state == "complete":
            goals = [goal.score for goal in self.search.study.goals]
            text = ", ".join(filter(None, ["complete", _scores_text(zip(goals, trial.values, strict=True))]))
            text += f", mean of {len(trial.runs)} seeds" * (len(trial.runs) > 1)
        self._say(f"trial {trial.number} ({point_text(trial.point)}): {text}")

    def update(self) -> None:
        """Write the trials as they are now; refuse other points than were chosen before an interruption."""
        record, trials = self._directory.record, record_trials(self.search)
        for number, (old, new) in enumerate(zip(self._before, trials, strict=False)):
            if old.point != new.point:
                self._refuse(number, old.point, new.point)
            if old.runs != (runs := new.runs[: len(old.runs)]):  # more seeds only add runs
                self._refuse(number, old.runs, runs)
        if _size(trials) >= _size(record.trials):
            record.trials = trials
            self._directory.save()
        write_rows(self._rows.of(self.search.study, trials), self._directory.path / "trials.parquet")

    def _refuse(self, number: int, old: Any, new: Any) -> None:
        now, then = environment()["versions"], self._directory.record.versions
        changed = [f"{name} {then.get(name)} is now {now[name]}" for name in now if then.get(name) != now[name]]
        why = f" ({', '.join(changed)})" if changed else ""
        raise ConfigError(
            f"trial {number} was {old} and would now be {new}{why}: resume with the versions and recipes that the study "
            "started with, or start a new one; its runs are kept"
        )


def _scores_text(scores: Any) -> str:
    return ", ".join(f"{name} {MeanStd(value, None, 1).text(unit_of(name))}" for name, value in scores)


def _size(trials: Sequence[TrialRecord]) -> int:
    """Count trials and their runs."""
    return sum(1 + len(trial.runs) for trial in trials)


def run_study(
    directory: StudyDirectory,
    *,
    concurrency: int | None = None,
    address: str | None = None,
    say: Say = lambda line: None,
    on_ray_death: Say | None = None,
) -> None:
    """Run a study to its end on Ray Tune, from wherever it is.

    Args:
        directory: What to run.
        concurrency: Parallel trials at most; None means as many as fit on the machines.
        address: A Ray to join; None starts one here.
        say: Prints a line of progress.
        on_ray_death: As in `actors.cluster.connect.start`.
    """
    from actors.cluster.connect import start
    from tune.studies.execution.resources import TrialResources
    from tune.studies.execution.tune_trials import run_on_tune

    with directory.locked(), open_queue(directory, say) as queue:
        first = queue.next()  # what is on disk is answered before anything is started
        if first is None:
            return
        check_process(first.run.config.engine.cpu)  # a command restarts itself for it
        queue.give_back(first)
        directory.record.finished = None
        cluster = start(address, on_ray_death=on_ray_death)
        try:
            resources = TrialResources(cluster.nodes(), directory.path.resolve() / "shared")
            run_on_tune(queue, resources, directory.path, concurrency=concurrency)
        finally:
            cluster.stop()


def run_study_here(directory: StudyDirectory, say: Say = lambda line: None) -> None:
    """Run a study to its end in this process, one run after the other on its own executor, from wherever it is."""
    with directory.locked(), open_queue(directory, say) as queue:
        while (segment := queue.next()) is not None:
            run, folder = segment.run, directory.runs
            config = run.placed(run.config, folder)
            outcome = outcome_of(config, folder / run.name, segment.until, segment.scores, segment.take)
            queue.done(run.name, outcome)


@contextmanager
def open_queue(directory: StudyDirectory, say: Say = lambda line: None) -> Iterator[SegmentQueue]:
    """Give the segments of a study that have to be run, and record their outcomes."""
    recorder = Recorder(directory, say)
    yield SegmentQueue(
        recorder.search,
        directory.runs,
        directory.forget_last_failures(),
        confirm=DataCheck().confirm,
        on_end=recorder.segment_ended,
        on_change=recorder.update,
    )
    if recorder.search.finished:
        recorder.update()
        if directory.record.finished is None:
            directory.record.finished = datetime.now(UTC).isoformat(timespec="seconds")
            directory.save()
