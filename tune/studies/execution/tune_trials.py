"""Trials on Ray Tune: each segment of a run is a Tune trial with a placement group for all of its processes.

A trial of `engine.executor=local` is one process in which its clients train one after the other; one of `ray` is a process
that drives client actors of its own, all of them reserved together with it, so that no trial waits for a part of what
another holds.
"""

import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import actors  # noqa: F401  # it sets what Ray reads while it is imported

# isort: split
import ray.tune as ray_tune
from ray.tune.execution.placement_groups import PlacementGroupFactory
from ray.tune.search import Searcher
from ray.util.placement_group import PlacementGroup, remove_placement_group

from rayfed_ssl import plugins
from rayfed_ssl.config.schema import Config
from tune.studies.execution.resources import TrialResources
from tune.studies.execution.segments import SegmentQueue, outcome_of
from tune.studies.search.search import Outcome

CLEANUP_TIMEOUT = 15
"""Seconds that a process may take to end after its segment; Tune's default would keep its resources for ten minutes."""

DIED = "its process died, in every attempt"


def trainable(config: dict[str, Any]) -> None:
    """Run a segment in a process of Tune's; it comes and goes as JSON, as Tune would take settings and scores apart."""
    plugins.import_from(config["working_directory"])
    segment = json.loads(config["segment"])
    directory, until = Path(segment["directory"]), segment["until"]
    try:
        outcome = outcome_of(Config.load(segment["config"]), directory, until, segment["scores"], segment["take"])
    except OSError as error:
        ray_tune.report({"disk_error": json.dumps([error.errno, str(error.filename or directory)])})
        return
    ray_tune.report({"outcome": json.dumps(asdict(outcome))})


class SegmentSearcher(Searcher):
    """Hands segments to Tune's controller, until there is an `error` outside the trials."""

    def __init__(self, queue: SegmentQueue, resources: TrialResources) -> None:
        super().__init__()
        self._queue, self._resources = queue, resources
        self._names: dict[str, str] = {}
        self.error: Exception | None = None

    def suggest(self, trial_id: str) -> Any:
        """Give Tune a segment; None while all wait for others."""
        if self.error is not None:
            return Searcher.FINISHED
        try:
            return self._next(trial_id)
        except Exception as error:  # Tune would log it and go on
            self.error = error
            return Searcher.FINISHED

    def _next(self, trial_id: str) -> Any:
        segment = self._queue.next()
        if segment is None:
            return Searcher.FINISHED if self._queue.search.finished else None
        run, folder = segment.run, self._queue.folder
        self._names[trial_id] = run.name
        config, bundles = self._resources.placed(run.config)
        asked = {
            "directory": str((folder / run.name).resolve()),
            "config": run.placed(config, folder).dump(),
            "until": segment.until,
            "scores": segment.scores,
            "take": segment.take,
        }
        return {"segment": json.dumps(asked), "bundles": bundles, "working_directory": os.getcwd()}

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        """Take the outcome of a segment."""
        name = self._names.pop(trial_id, None)
        if self.error is not None or name is None:
            return
        if result is not None and "disk_error" in result:
            number, file = json.loads(result["disk_error"])
            self.error = OSError(number, os.strerror(number), file)
            return
        outcome = Outcome(failure=DIED)
        if result is not None and "outcome" in result and not error:
            outcome = Outcome(**json.loads(result["outcome"]))
        try:
            self._queue.done(name, outcome)
        except Exception as raised:  # as in `suggest`
            self.error = raised

    def save(self, checkpoint_path: str) -> None:
        """Store nothing: a search is restored from the runs on disk."""

    def restore(self, checkpoint_path: str) -> None:
        """Read nothing; see `save`."""


_reserved: list[PlacementGroup] = []
"""Placement groups of the trials of this process; Tune copies what functions close over, but not modules."""


class RecordedFactory(PlacementGroupFactory):
    """Records each placement group that it creates."""

    def to_placement_group(self) -> PlacementGroup:
        """Reserve."""
        _reserved.append(super().to_placement_group())  # type: ignore[no-untyped-call]
        return _reserved[-1]


def run_on_tune(
    queue: SegmentQueue,
    resources: TrialResources,
    directory: Path,
    *,
    concurrency: int | None = None,
    attempts: int = 3,
) -> None:
    """Run all segments of a search; what runs when this process ends is lost up to its last round.

    Args:
        queue: The segments.
        resources: What each reserves.
        directory: Where Tune keeps its own files.
        concurrency: Trials at a time at most; None means as many as the machines hold.
        attempts: How often a segment whose process dies is run.
    """
    searcher = SegmentSearcher(queue, resources)
    _reserved.clear()
    shutil.rmtree(directory / "tune", ignore_errors=True)  # of an earlier call; nothing is read from it
    with _quiet_tune():
        tuner = ray_tune.Tuner(
            ray_tune.with_resources(trainable, lambda config: RecordedFactory(config["bundles"])),
            tune_config=ray_tune.TuneConfig(
                search_alg=searcher, num_samples=-1, max_concurrent_trials=concurrency, reuse_actors=True
            ),
            run_config=ray_tune.RunConfig(
                name="tune",
                storage_path=str(directory.resolve()),
                failure_config=ray_tune.FailureConfig(max_failures=attempts - 1),
                verbose=0,
            ),
        )
        try:
            tuner.fit()
        except BaseException:
            # After Ctrl-C Tune releases nothing; on a Ray that outlives this call the next trials would never start.
            for group in _reserved:
                with suppress(Exception):  # Ray may be gone
                    remove_placement_group(group)
            raise
    if searcher.error is not None:
        raise searcher.error


@contextmanager
def _quiet_tune() -> Iterator[None]:
    """Keep Tune's tables and advice off the terminal, and let Ctrl-C through to us."""
    settings = {"RAY_AIR_NEW_OUTPUT": "0", "TUNE_DISABLE_SIGINT_HANDLER": "1", "TUNE_WARN_THRESHOLD_S": "60"}
    settings |= {"TUNE_FORCE_TRIAL_CLEANUP_S": str(CLEANUP_TIMEOUT)}
    before = {name: os.environ.get(name) for name in settings}
    logger = logging.getLogger("ray.tune")
    level = logger.level
    os.environ.update(settings)
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
