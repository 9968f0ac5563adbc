"""What a sweep tries next: a function of the sweep and of results, and of nothing else.

Points are chosen a generation at a time, from the results of the generations before; within a generation, trials come to a
rung together and are judged in the order of their numbers. So neither the number of trials that run side by side nor their
order nor any interruption changes what is tried, stopped or found: who asks again from the start, and answers with the
results on disk, arrives where the sweep was (docs/decisions/0006).
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from optuna.trial import TrialState

from rayfed_ssl.config.schema import Config
from tune.reproductions.runner import run_name
from tune.sweeps.definition.spaces import Point, stored
from tune.sweeps.definition.sweep import Sweep
from tune.sweeps.execution.trial_configs import config_of
from tune.sweeps.search.early_stopping import Rule, make_rule
from tune.sweeps.search.study import make_study

State = Literal["waiting", "complete", "stopped", "failed"]


@dataclass(frozen=True)
class Leg:
    """A part of a run: to the next round at which it may be stopped, or to the end.

    Attributes:
        trial: Number of the trial.
        seed: The run's.
        name: Of the run's directory; equal runs of two trials share it.
        config: What it runs.
        until: After which round it stops.
    """

    trial: int
    seed: int
    name: str
    config: Config
    until: int


@dataclass(frozen=True)
class Outcome:
    """What came of a leg.

    Attributes:
        scores: Values of the goals, and of what decides about stopping, after the leg's last round.
        failure: Why there are none, in one line.
    """

    scores: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None


@dataclass
class Trial:
    """A point, and how far it is.

    Attributes:
        number: From 0.
        point: Its values.
        runs: Configurations by seed; empty where the settings are impossible.
        state: How it ended, or that it has not.
        reason: Why it failed or was stopped, in one line.
        values: Of the goals, means over seeds; of a complete trial alone.
        reached: Round that all its runs have come to.
        asked: Optuna's side of it.
    """

    number: int
    point: Point
    runs: dict[int, Config] = field(default_factory=dict)
    state: State = "waiting"
    reason: str = ""
    values: tuple[float, ...] = ()
    reached: int = 0
    asked: Any = None

    @property
    def rounds(self) -> int:
        """Rounds of a whole run."""
        return next(iter(self.runs.values())).rounds if self.runs else 0

    @cached_property
    def names(self) -> dict[int, str]:
        """Names of the runs' directories, by seed."""
        return {seed: run_name(config) for seed, config in self.runs.items()}

    def fail(self, reason: str) -> None:
        """End without a result."""
        self.state, self.reason = "failed", reason


class Search:
    """Gives legs to be run, takes their outcomes, and so finds its way.

    Args:
        sweep: What is sought.
        journal: File for Optuna's storage, which is written anew; None keeps the study in memory.
        tell: Is told of each trial that has ended.

    Attributes:
        study: Optuna's study; its trials have the same numbers.
        trials: All that were asked for, by number.
    """

    def __init__(
        self,
        sweep: Sweep,
        journal: Path | None = None,
        *,
        tell: Callable[[Trial], None] = lambda trial: None,
    ) -> None:
        self.sweep, self.trials = sweep, list[Trial]()
        self.study = make_study(sweep, journal)
        self._tell = tell
        self._rule: Rule | None = None if sweep.stop is None else make_rule(sweep.stop)
        self._left = self._enqueue()
        self._waiting: deque[Leg] = deque()
        self._generations: list[Generation] = []

    def _enqueue(self) -> int:
        """Say which points a grid has; returns how many trials there will be."""
        if self.sweep.search != "grid":
            assert self.sweep.trials is not None, "sweep files are checked"
            return self.sweep.trials
        points = self.sweep.space.grid()
        for point in points:
            self.study.enqueue_trial(stored(point))
        return len(points)

    @property
    def finished(self) -> bool:
        """Whether every trial has ended."""
        return not self._left and not self._generations

    @property
    def total(self) -> int:
        """Count the trials, with those that are still to be asked for."""
        return len(self.trials) + self._left

    def next(self) -> Leg | None:
        """Give a leg that may be run now; None if all of them wait for others."""
        while not self._waiting and self._left and not (self._generations and self.sweep.adapts):
            self._ask()
        return self._waiting.popleft() if self._waiting else None

    def _ask(self) -> None:
        """Choose the next generation."""
        number = min(self._left, self.sweep.generation if self.sweep.adapts else 1)
        trials = [self._new_trial() for _ in range(number)]
        self._left -= number
        generation = Generation(self, trials)
        self._generations.append(generation)
        self._go_on(generation)

    def _new_trial(self) -> Trial:
        asked = self.study.ask()
        trial = Trial(len(self.trials), self.sweep.space.suggest(asked), asked=asked)
        self.trials.append(trial)
        try:
            trial.runs = {seed: config_of(self.sweep, trial.point, seed) for seed in self.sweep.seeds}
        except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
            trial.runs = {}
            trial.fail("; ".join(str(error).splitlines()) or type(error).__name__)
        return trial

    def done(self, leg: Leg, outcome: Outcome) -> None:
        """Take what came of a leg."""
        generation = next(one for one in self._generations if leg.trial in one.numbers)
        generation.deliver(leg, outcome)
        self._go_on(generation)

    def _go_on(self, generation: "Generation") -> None:
        """Judge what has come to a rung, and give out the next legs; the last rung ends the generation."""
        while generation.is_complete and not generation.has_ended:
            self._waiting.extend(generation.advance(self._rule))
        if generation.has_ended:
            self._generations.remove(generation)
            for trial in generation.trials:
                self._record(trial)

    def _record(self, trial: Trial) -> None:
        """Tell Optuna how a trial ended."""
        trial.asked.set_user_attr("runs", list(trial.names.values()))
        if trial.reason:
            trial.asked.set_user_attr("reason", trial.reason)
        if trial.state == "complete":
            self.study.tell(trial.asked, list(trial.values))
        else:
            self.study.tell(trial.asked, state=TrialState.PRUNED if trial.state == "stopped" else TrialState.FAIL)
        self._tell(trial)


class Generation:
    """Trials that were chosen together and go from rung to rung together.

    Args:
        search: Whose they are.
        trials: In the order of their numbers.
    """

    def __init__(self, search: Search, trials: Sequence[Trial]) -> None:
        self.trials = list(trials)
        self.numbers = {trial.number for trial in trials}
        self._sweep = search.sweep
        self._level = -1
        self._missing: set[tuple[int, int]] = set()
        self._outcomes: dict[tuple[int, int], Outcome] = {}

    @property
    def _alive(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.state == "waiting"]

    @property
    def is_complete(self) -> bool:
        """Whether all legs to this rung are back."""
        return not self._missing

    @property
    def has_ended(self) -> bool:
        """Whether no trial goes on."""
        return not self._alive

    def _until(self, trial: Trial) -> int:
        rungs = [] if self._sweep.stop is None else self._sweep.stop.rungs(trial.rounds)
        return rungs[self._level] if self._level < len(rungs) else trial.rounds

    def deliver(self, leg: Leg, outcome: Outcome) -> None:
        """Take what came of a leg."""
        self._missing.remove((leg.trial, leg.seed))
        self._outcomes[leg.trial, leg.seed] = outcome

    def advance(self, rule: Rule | None) -> list[Leg]:
        """Judge the trials at this rung in the order of their numbers, and send the others to the next."""
        if self._level >= 0:
            for trial in self._alive:
                self._judge(trial, rule)
        self._level += 1
        self._outcomes = {}
        legs = [
            Leg(trial.number, seed, trial.names[seed], config, self._until(trial))
            for trial in self._alive
            for seed, config in trial.runs.items()
        ]
        self._missing = {(leg.trial, leg.seed) for leg in legs}
        return legs

    def _judge(self, trial: Trial, rule: Rule | None) -> None:
        outcomes = {seed: self._outcomes[trial.number, seed] for seed in trial.runs}
        failures = [f"seed {seed}: {one.failure}" for seed, one in outcomes.items() if one.failure]
        if failures:
            alike = len({one.failure for one in outcomes.values()}) == 1
            trial.fail(failures[0].partition(": ")[2] if alike else "; ".join(failures))
            return
        trial.reached = self._until(trial)

        def mean(name: str) -> float:
            return fmean(one.scores[name] for one in outcomes.values())

        if trial.reached == trial.rounds:
            trial.state, trial.values = "complete", tuple(mean(goal.score) for goal in self._sweep.goals)
            return
        assert rule is not None, "without a rule a trial runs to its end at once"
        assert self._sweep.stop is not None, "a rule comes from the file"
        value = mean(self._sweep.stop.score)
        trial.asked.report(value, trial.reached)
        if rule.stops(trial.number, trial.reached, value):
            trial.state = "stopped"
            trial.reason = f"{self._sweep.stop.rule}: {self._sweep.stop.score} {value:.4g} after round {trial.reached}"
