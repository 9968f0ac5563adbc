"""Trials on Ray Tune: each leg of a run is a Tune trial with a placement group for all of its processes.

A trial of `engine.executor=local` is one process in which its clients train one after the other; one of `ray` is a process
that drives client actors of its own, all of them reserved together with it, so that no trial waits for a part of what
another holds.
"""

import errno
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import actors  # noqa: F401  # it sets what Ray reads while it is imported

# isort: split
import ray.tune as ray_tune
from ray.tune.execution.placement_groups import PlacementGroupFactory
from ray.tune.search import Searcher
from ray.util.placement_group import PlacementGroup, remove_placement_group

from actors.runs import draw_figures, make_executor
from rayfed_ssl.config.schema import Config
from rayfed_ssl.errors import BusyError, ConfigError
from tune.sweeps.execution.resources import Room
from tune.sweeps.execution.trial_configs import scores_after, why_none
from tune.sweeps.search.search import Leg, Outcome, Search

PATIENCE = 120.0
"""Seconds that a leg waits for another process to leave its run."""

LINGER = 15
"""Seconds that a process may take to end after its leg; Tune would let it keep its place for ten minutes."""

TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
"""Errors that end a sweep, because the next trial would meet them too."""

DIED = "its process died, in every attempt"


def make_leg(config: Config, directory: Path, until: int) -> str | None:
    """Run a leg, from where the run is; returns why it failed, or None.

    Args:
        config: What the run is.
        directory: Where its record goes.
        until: After which round to stop.

    Raises:
        OSError: The disk is full or broken, which is no result of this trial.
    """
    from rayfed_ssl.runs import resume, run

    limit = time.monotonic() + PATIENCE
    try:
        while True:
            try:
                if (directory / "run.json").is_file():
                    # Where it runs may have changed since it began: the number of actors, for one.
                    resume(directory, *_engine(config), executor=make_executor, until=until, draw=draw_figures)
                else:
                    _clear(directory)
                    run(config, directory, executor=make_executor, until=until, draw=draw_figures)
                return None
            except BusyError:  # the process of an earlier try may still be on its way out
                if time.monotonic() > limit:
                    raise
                time.sleep(1)
    except Exception as error:  # a trial that fails, for whatever reason, must not keep the others from running
        if (trouble := _of_the_machine(error)) is not None:
            raise trouble from error
        return " ".join(f"{error}".split()) or type(error).__name__


def _of_the_machine(error: BaseException | None) -> OSError | None:
    """Find out whether a full or broken disk is behind an error: such trouble says nothing about a trial."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        if isinstance(error, OSError) and error.errno in TROUBLE:
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def _engine(config: Config) -> Iterator[str]:
    for key in ("executor", "actors", "cpus_per_actor", "gpus_per_actor"):
        value = config.dump()["engine"][key]
        yield f"engine.{key}={'null' if value is None else value}"


def _clear(directory: Path) -> None:
    """Remove what a run left that was stopped before its record began."""
    if directory.exists():
        shutil.rmtree(directory)


def trainable(config: dict[str, Any]) -> None:
    """Run a leg in a process of Tune's, and report what came of it.

    Args:
        config: The leg as JSON, as Tune would take settings and scores apart.
    """
    leg = json.loads(config["leg"])
    directory, names = Path(leg["directory"]), leg["names"]
    try:
        failure = make_leg(Config.load(leg["config"]), directory, leg["until"])
    except OSError as error:
        ray_tune.report({"trouble": json.dumps([error.errno, str(error.filename or directory)])})
        return
    scores = None if failure else scores_after(directory, names, leg["take"], leg["until"])
    if failure is None and scores is None:
        failure = why_none(directory, names, leg["take"], leg["until"])
    ray_tune.report({"outcome": json.dumps({"failure": failure, "scores": scores or {}})})


@dataclass
class Ended:
    """A leg that came back.

    Attributes:
        leg: Which.
        outcome: What came of it.
        was_there: Whether an earlier call had run it.
    """

    leg: Leg
    outcome: Outcome
    was_there: bool = False


@dataclass(eq=False)
class Legs:
    """The legs of a search on their way: those that are on disk already are answered at once, equal ones run once.

    Args:
        search: Gives them and takes their outcomes.
        folder: Directory of runs.
        failures: Why legs failed earlier, by run and round. A search that adapts has seen these failures and so is answered
            with them again; else they are tried once more.
        check: Refuses what the machines cannot carry or has no data here, with a `ConfigError`.
        confirm: Refuses to take a run for what this configuration would give, with a `ConfigError`, which ends the sweep.
        say: Is told of each that ended.
        changed: Is called when the search knows it.
    """

    search: Search
    folder: Path
    failures: dict[str, str] = field(default_factory=dict)
    check: Callable[[Config], None] = lambda config: None
    confirm: Callable[[Path, Config], None] = lambda directory, config: None
    say: Callable[[Ended], None] = lambda ended: None
    changed: Callable[[], None] = lambda: None
    _flying: dict[str, list[Leg]] = field(default_factory=dict)
    _ready: list[Leg] = field(default_factory=list)
    _told: int = 0

    def names_at(self, leg: Leg) -> list[str]:
        """What is read of a run after a leg: before the end only what decides about stopping."""
        sweep = self.search.sweep
        if leg.until < leg.config.rounds and sweep.stop is not None:
            return [sweep.stop.score]
        return [goal.score for goal in sweep.goals]

    def next(self) -> Leg | None:
        """Give a leg that has to be run; None if there is none now."""
        leg = self._ready.pop() if self._ready else self._new()
        if len(self.search.trials) > self._told:
            self._told = len(self.search.trials)
            self.changed()
        return leg

    def _new(self) -> Leg | None:
        while (leg := self.search.next()) is not None:
            outcome = self._known(leg)
            if outcome is not None:
                self._answer(leg, outcome, was_there=True)
            elif leg.name in self._flying:
                self._flying[leg.name].append(leg)
            else:
                self._flying[leg.name] = [leg]
                refusal = self._refusal(leg.config)
                if refusal is None:
                    return leg
                self.done(leg.name, Outcome(failure=refusal))
        return None

    def _refusal(self, config: Config) -> str | None:
        try:
            self.check(config)
        except (ValueError, OSError) as error:
            return "; ".join(str(error).splitlines()) or type(error).__name__
        return None

    def give_back(self, leg: Leg) -> None:
        """Put a leg back that was not begun."""
        self._ready.append(leg)

    def _known(self, leg: Leg) -> Outcome | None:
        """Find what an earlier call has come to."""
        if self.search.sweep.adapts and (failure := self.failures.get(f"{leg.name}@{leg.until}")) is not None:
            return Outcome(failure=failure)
        try:
            whole = leg.until == leg.config.rounds
            scores = scores_after(
                self.folder / leg.name, self.names_at(leg), self.search.sweep.take, leg.until, whole=whole
            )
        except ConfigError:
            return None  # a damaged record: running it says so
        if scores is None:
            return None
        self.confirm(self.folder / leg.name, leg.config)
        return Outcome(scores)

    def done(self, name: str, outcome: Outcome) -> None:
        """Take the outcome of a run's leg, for all trials that wait for it."""
        for leg in self._flying.pop(name):
            if outcome.failure is not None:
                self.failures[f"{leg.name}@{leg.until}"] = outcome.failure
            self._answer(leg, outcome)

    def _answer(self, leg: Leg, outcome: Outcome, was_there: bool = False) -> None:
        self.say(Ended(leg, outcome, was_there))
        self.search.done(leg, outcome)
        self.changed()


class LegSearcher(Searcher):
    """Hands legs to Tune's controller.

    Args:
        legs: Whose.
        room: Says what each of them reserves.

    Attributes:
        error: What went wrong outside the trials; nothing more is handed out then.
    """

    def __init__(self, legs: Legs, room: Room) -> None:
        super().__init__()
        self._legs, self._room = legs, room
        self._names: dict[str, str] = {}
        self.error: Exception | None = None

    def suggest(self, trial_id: str) -> Any:
        """Give Tune a leg; None while all wait for others."""
        if self.error is not None:
            return Searcher.FINISHED
        try:
            return self._next(trial_id)
        except Exception as error:  # Tune would log it and go on
            self.error = error
            return Searcher.FINISHED

    def _next(self, trial_id: str) -> Any:
        leg = self._legs.next()
        if leg is None:
            return Searcher.FINISHED if self._legs.search.finished else None
        self._names[trial_id] = leg.name
        config, bundles = self._room.placed(leg.config)
        asked = {
            "directory": str((self._legs.folder / leg.name).resolve()),
            "config": config.dump(),
            "until": leg.until,
            "names": self._legs.names_at(leg),
            "take": self._legs.search.sweep.take,
        }
        return {"leg": json.dumps(asked), "bundles": bundles}

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        """Take what a leg came to."""
        name = self._names.pop(trial_id, None)
        if self.error is not None or name is None:
            return
        if result is not None and "trouble" in result:
            number, file = json.loads(result["trouble"])
            self.error = OSError(number, os.strerror(number), file)
            return
        known = result is not None and "outcome" in result and not error
        outcome = Outcome(**json.loads(result["outcome"])) if known and result else Outcome(failure=DIED)
        try:
            self._legs.done(name, outcome)
        except Exception as raised:  # as in `suggest`
            self.error = raised

    def save(self, checkpoint_path: str) -> None:
        """Keep nothing: a search is found again from the runs on disk."""

    def restore(self, checkpoint_path: str) -> None:
        """Find nothing; see `save`."""


_reserved: list[PlacementGroup] = []
"""What trials of this process hold, or have held; Tune copies what functions close over, but not modules."""


class Recorded(PlacementGroupFactory):
    """Keeps in mind what was reserved."""

    def to_placement_group(self) -> PlacementGroup:
        """Reserve."""
        _reserved.append(super().to_placement_group())  # type: ignore[no-untyped-call]
        return _reserved[-1]


def run_legs(legs: Legs, room: Room, directory: Path, *, concurrency: int | None = None, attempts: int = 3) -> None:
    """Run all legs of a search; what is running when this process ends is lost up to its last round.

    Args:
        legs: Which.
        room: What each reserves.
        directory: Where Tune keeps its own files.
        concurrency: Trials at a time at most; None means as many as the machines hold.
        attempts: How often a leg whose process dies is run.
    """
    searcher = LegSearcher(legs, room)
    _reserved.clear()
    shutil.rmtree(directory / "tune", ignore_errors=True)  # of an earlier call; nothing is found again from it
    with _quiet_tune():
        tuner = ray_tune.Tuner(
            ray_tune.with_resources(trainable, lambda config: Recorded(config["bundles"])),
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
            # After Ctrl-C Tune lets nothing go; on a Ray that outlives this call the next trials would wait for ever.
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
    settings |= {"TUNE_FORCE_TRIAL_CLEANUP_S": str(LINGER)}
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
