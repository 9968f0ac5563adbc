"""Trials on Ray Tune: each segment of a run is a Tune trial with a placement group for all of its processes.

A trial of `engine.executor=local` is one process in which its clients train one after the other; one of `ray` is a process
that drives client actors of its own, all of them reserved together with it, so that no trial waits for a part of what
another holds.
"""

import json
import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import actors  # noqa: F401  # it sets what Ray reads while it is imported

# isort: split
import ray.tune as ray_tune
from ray.tune.execution.placement_groups import PlacementGroupFactory
from ray.tune.search import Searcher
from ray.util.placement_group import PlacementGroup, remove_placement_group

from rayfed_ssl.config.schema import Config
from rayfed_ssl.foreign import plugins
from rayfed_ssl.machine.processor import NotPortableError
from tune.studies.execution.resources import TrialResources
from tune.studies.execution.segments import SegmentQueue, outcome_of
from tune.studies.search.search import Outcome

SETTINGS = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_THRESHOLD_S": "60",
    "TUNE_FORCE_TRIAL_CLEANUP_S": "15",
}
"""Keep Tune's tables and advice off the terminal, and let Ctrl-C through to us.

A process gets 15 seconds to end after its segment; Tune's default would keep its resources for ten minutes.
"""

ATTEMPTS = 3
"""How often a segment whose process dies is run."""

DIED = "its process died, in every attempt"


def trainable(config: dict[str, Any]) -> None:
    """Run a segment in a process of Tune's; it comes and goes as JSON, as Tune would take settings and scores apart."""
    plugins.import_from(config["working_directory"])
    segment = json.loads(config["segment"])
    directory, until = Path(segment["directory"]), segment["until"]
    outcome = outcome_of(Config.load(segment["config"]), directory, until, segment["scores"], segment["take"])
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
        while (segment := self._queue.next()) is not None:
            try:
                config, bundles = self._resources.placed(segment.run.config)
                break
            except (ValueError, OSError, NotPortableError) as error:  # no machine can run it, or not this process
                failure = "; ".join(str(error).splitlines()) or type(error).__name__
                self._queue.done(segment.run.name, Outcome(failure=failure))
        else:
            return Searcher.FINISHED if self._queue.search.finished else None
        run, folder = segment.run, self._queue.folder
        self._names[trial_id] = run.name
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
) -> None:
    """Run all segments of a search; what runs when this process ends is lost up to its last round.

    Args:
        queue: The segments.
        resources: What each reserves.
        directory: Where Tune keeps its own files.
        concurrency: Trials at a time at most; None means as many as the machines hold.
    """
    os.environ.update(SETTINGS)
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    searcher = SegmentSearcher(queue, resources)
    _reserved.clear()
    shutil.rmtree(directory / "tune", ignore_errors=True)  # of an earlier call; nothing is read from it
    tuner = ray_tune.Tuner(
        ray_tune.with_resources(trainable, lambda config: RecordedFactory(config["bundles"])),
        tune_config=ray_tune.TuneConfig(
            search_alg=searcher, num_samples=-1, max_concurrent_trials=concurrency, reuse_actors=True
        ),
        run_config=ray_tune.RunConfig(
            name="tune",
            storage_path=str(directory.resolve()),
            failure_config=ray_tune.FailureConfig(max_failures=ATTEMPTS - 1),
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
