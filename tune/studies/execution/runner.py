"""Running and resuming a sweep: one directory with all that it was and gave.

study.json       what was asked for, with which versions, and how far it is
trials.parquet   a row for each trial and seed, written anew as runs end
study.journal    Optuna's storage, for `optuna-dashboard DIR/study.journal`
shared/          what the server of several runs starts from, trained once
runs/NAME        the runs, named for their settings: equal runs of several trials are one
tune/            Ray Tune's own files
table.md, best.yaml, results.json, figures   when the sweep has ended

To resume, the search runs again from its start, and is answered with the runs on disk.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from rayfed_ssl.environment import environment
from rayfed_ssl.errors import ConfigError
from tune.studies.execution.directory import StudyDirectory
from tune.studies.execution.progress import StudyProgress
from tune.studies.execution.segments import DataCheck, SegmentQueue, run_here
from tune.studies.execution.trial_table import TrialTable, write_rows
from tune.studies.search.search import Search

Say = Callable[[str], None]


class Recorder:
    """Writes down the state of a search while it runs."""

    def __init__(self, directory: StudyDirectory, search: Search) -> None:
        self._directory, self._search = directory, search
        record = directory.record
        self._before = list(zip(record.points, record.runs, strict=False))
        self._table = TrialTable(directory.runs)
        self._failures = 0

    def update(self) -> None:
        """Write the trials as they are now; refuse other points than were chosen before an interruption."""
        record, trials = self._directory.record, self._search.trials
        points, runs = [dict(trial.point) for trial in trials], [trial.names for trial in trials]
        for number, (old, new) in enumerate(zip(self._before, zip(points, runs, strict=True), strict=False)):
            now = (new[0], new[1][: len(old[1])])  # more seeds only add runs
            if old != now:
                self._refuse(number, *((old[0], now[0]) if old[0] != now[0] else (old[1], now[1])))
        if _size(runs) > _size(record.runs) or len(record.failures) > self._failures:
            self._failures = len(record.failures)
            record.points, record.runs = points, runs
            self._directory.save()
        write_rows(self._table.rows(self._search), self._directory.path / "trials.parquet")

    def _refuse(self, number: int, old: Any, new: Any) -> None:
        now, then = environment()["versions"], self._directory.record.versions
        changed = [f"{name} {then.get(name)} is now {now[name]}" for name in now if then.get(name) != now[name]]
        why = f" ({', '.join(changed)})" if changed else ""
        raise ConfigError(
            f"trial {number} was {old} and would now be {new}{why}: resume with the versions and recipes that the sweep "
            "started with, or start a new one; its runs are kept"
        )


def _size(runs: Sequence[Sequence[str]]) -> int:
    """Count trials and their runs."""
    return sum(1 + len(names) for names in runs)


def run_study(
    directory: StudyDirectory,
    *,
    concurrency: int | None = None,
    address: str | None = None,
    say: Say = lambda line: None,
    on_ray_death: Say | None = None,
) -> Search:
    """Run a sweep to its end on Ray Tune, from wherever it is.

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

    with directory.locked():
        cluster = start(address, on_ray_death=on_ray_death)
        try:
            resources = TrialResources(cluster.nodes(), directory.path.resolve() / "shared")
            with open_queue(directory, say) as queue:
                queue.check = resources.placed
                first = queue.next()  # what is on disk is answered before anything is started
                if first is not None:
                    directory.record.finished = None
                    queue.give_back(first)
                    run_on_tune(queue, resources, directory.path, concurrency=concurrency, attempts=3)
            return queue.search
        finally:
            cluster.stop()


def run_study_here(directory: StudyDirectory, say: Say = lambda line: None) -> Search:
    """Run a sweep to its end in this process, one run after the other, from wherever it is."""
    with directory.locked(), open_queue(directory, say) as queue:
        run_here(queue)
    return queue.search


@contextmanager
def open_queue(directory: StudyDirectory, say: Say = lambda line: None) -> Iterator[SegmentQueue]:
    """Give the segments of a sweep that have to be run, and record their outcomes."""
    progress = StudyProgress(directory.study, say)
    search = Search(directory.study, directory.path / "study.journal", progress.trial_ended)
    recorder = Recorder(directory, search)
    yield SegmentQueue(
        search,
        directory.runs,
        directory.forget_last_failures(),
        confirm=DataCheck().confirm,
        on_end=lambda segment, outcome, on_disk: progress.segment_ended(segment, outcome, on_disk, search.total),
        on_change=recorder.update,
    )
    if search.finished:
        recorder.update()
        if directory.record.finished is None:
            directory.record.finished = datetime.now(UTC).isoformat(timespec="seconds")
            directory.save()
