"""What a sweep tries next: a function of the sweep and of results, and of nothing else.

Points are chosen a generation at a time, from the results of the generations before; within a generation, trials reach a
rung together and are judged in the order of their numbers. So neither the number of parallel trials nor their order nor any
interruption changes what is tried, stopped or chosen: on resume the search runs again from its start, and is answered with
the results on disk (docs/decisions/0006).
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from optuna.trial import TrialState

from tune.studies.definition.space import Point, encoded
from tune.studies.definition.study import Study
from tune.studies.definition.trial_configs import TrialRun, run_of
from tune.studies.search.optuna_study import make_optuna_study

State = Literal["waiting", "complete", "stopped", "failed"]


@dataclass(frozen=True)
class Segment:
    """A part of a run: to the next rung, at which it may be stopped, or to its end.

    Attributes:
        run: Equal runs of several trials are one.
        until: After which round it ends.
        scores: What is read of the run then.
        take: Of which encoder.
    """

    trial: int
    seed: int
    run: TrialRun
    until: int
    scores: tuple[str, ...] = ()
    take: str | None = None

    @property
    def is_last(self) -> bool:
        """Whether the run ends with it."""
        return self.until == self.run.config.rounds


@dataclass(frozen=True)
class Outcome:
    """The result of a segment: scores after its last round, or in one line why there are none."""

    scores: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None


@dataclass
class Trial:
    """A point and its state.

    Attributes:
        runs: Those that give its result, by seed; empty where the settings are impossible.
        reason: Why it failed or was stopped, in one line.
        failures: Why runs failed, by seed.
        values: Of the goals, means over seeds; of a complete trial alone.
        reached: Round that all its runs have reached.
        asked: Optuna's trial.
    """

    number: int
    point: Point
    runs: dict[int, TrialRun] = field(default_factory=dict)
    state: State = "waiting"
    reason: str = ""
    failures: dict[int, str] = field(default_factory=dict)
    values: tuple[float, ...] = ()
    reached: int = 0
    asked: Any = None

    @property
    def rounds(self) -> int:
        """Rounds of a whole run."""
        return next(iter(self.runs.values())).config.rounds

    @property
    def has_first_run(self) -> bool:
        """Whether its runs start from the encoders of others."""
        return any(run.first for run in self.runs.values())

    @property
    def names(self) -> list[str]:
        """Names of the runs' directories, in the order of seeds."""
        return [run.name for run in self.runs.values()]


class Search:
    """Gives segments to be run, takes their outcomes, and chooses what to try next.

    Args:
        study: What is sought.
        journal: File for Optuna's storage, which is written anew; None keeps the study in memory.
        on_trial_end: Is called with each trial that has ended.

    Attributes:
        optuna_study: Its trials have the same numbers.
    """

    def __init__(
        self, study: Study, journal: Path | None = None, on_trial_end: Callable[[Trial], None] = lambda trial: None
    ) -> None:
        self.study, self.trials = study, list[Trial]()
        self.optuna_study = make_optuna_study(study, journal)
        self._on_trial_end = on_trial_end
        self._remaining = study.num_trials
        self._queue: deque[Segment] = deque()
        self._generations: list[Generation] = []
        if study.search.name == "grid":
            for point in study.points():
                self.optuna_study.enqueue_trial(encoded(point))

    @property
    def finished(self) -> bool:
        """Whether every trial has ended."""
        return not self._remaining and not self._generations

    @property
    def total(self) -> int:
        """Number of trials, with those that are still to be asked for."""
        return len(self.trials) + self._remaining

    def next(self) -> Segment | None:
        """Give a segment that may be run now; None if all of them wait for others."""
        while not self._queue and self._remaining and not (self._generations and self.study.adapts):
            self._start_generation()
        return self._queue.popleft() if self._queue else None

    def _start_generation(self) -> None:
        number = min(self._remaining, self.study.generation if self.study.adapts else 1)
        generation = Generation(self.study, [self._new_trial() for _ in range(number)])
        self._remaining -= number
        self._generations.append(generation)
        self._advance(generation)

    def _new_trial(self) -> Trial:
        asked = self.optuna_study.ask()
        trial = Trial(len(self.trials), self.study.space.suggest(asked), asked=asked)
        self.trials.append(trial)
        try:
            trial.runs = {seed: run_of(self.study, trial.point, seed) for seed in self.study.seeds}
        except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
            trial.state, trial.reason = "failed", "; ".join(str(error).splitlines()) or type(error).__name__
        return trial

    def done(self, segment: Segment, outcome: Outcome) -> None:
        """Take the outcome of a segment."""
        generation = next(each for each in self._generations if segment.trial in each.numbers)
        generation.deliver(segment, outcome)
        self._advance(generation)

    def _advance(self, generation: "Generation") -> None:
        """Judge trials that are at a rung, and queue the next segments; the last rung ends the generation."""
        while generation.alive and not generation.missing:
            self._queue.extend(generation.advance())
        if not generation.alive:
            self._generations.remove(generation)
            for trial in generation.trials:
                self._record(trial)

    def _record(self, trial: Trial) -> None:
        """Tell Optuna how a trial ended."""
        trial.asked.set_user_attr("runs", trial.names)
        if trial.reason:
            trial.asked.set_user_attr("reason", trial.reason)
        if trial.state == "complete":
            self.optuna_study.tell(trial.asked, list(trial.values) or [0.0])
        else:
            self.optuna_study.tell(
                trial.asked, state=TrialState.PRUNED if trial.state == "stopped" else TrialState.FAIL
            )
        self._on_trial_end(trial)


class Generation:
    """Trials that were chosen together and reach rungs together, in the order of their numbers.

    Attributes:
        missing: Trial and seed of each segment to this rung that has not ended.
    """

    def __init__(self, study: Study, trials: Sequence[Trial]) -> None:
        self.trials = list(trials)
        self.numbers = {trial.number for trial in trials}
        self._study = study
        self._level = -1
        self.missing: set[tuple[int, int]] = set()
        self._outcomes: dict[tuple[int, int], Outcome] = {}

    @property
    def alive(self) -> list[Trial]:
        """The trials that continue."""
        return [trial for trial in self.trials if trial.state == "waiting"]

    def deliver(self, segment: Segment, outcome: Outcome) -> None:
        """Take an outcome."""
        self.missing.remove((segment.trial, segment.seed))
        self._outcomes[segment.trial, segment.seed] = outcome

    def advance(self) -> list[Segment]:
        """Judge the trials at this rung in the order of their numbers, and give the others' segments to the next one."""
        if self._level >= 0:
            for trial in self.alive:
                self._judge(trial)
        self._level += 1
        self._outcomes = {}
        segments = [self._segment(trial, seed, run) for trial in self.alive for seed, run in trial.runs.items()]
        self.missing = {(segment.trial, segment.seed) for segment in segments}
        return segments

    def _until(self, trial: Trial) -> int:
        rungs = [] if self._study.stop is None else self._study.stop.rungs(trial.rounds)
        level = self._level - trial.has_first_run
        return rungs[level] if level < len(rungs) else trial.rounds

    def _segment(self, trial: Trial, seed: int, run: TrialRun) -> Segment:
        """Give the next segment of a run; the first rung of a run that starts from another is the end of that one."""
        if run.first is not None and self._level == 0:
            return Segment(trial.number, seed, run.first, run.first.config.rounds)
        until = self._until(trial)
        last = until == trial.rounds
        scores = tuple(goal.score for goal in self._study.goals) if last else (self._study.stop_goal.score,)
        return Segment(trial.number, seed, run, until, scores, self._study.cell(trial.point).take)

    def _judge(self, trial: Trial) -> None:
        outcomes = {seed: self._outcomes[trial.number, seed] for seed in trial.runs}
        trial.failures = {seed: outcome.failure for seed, outcome in outcomes.items() if outcome.failure}
        if trial.failures:
            alike = len({outcome.failure for outcome in outcomes.values()}) == 1
            reasons = [reason if alike else f"seed {seed}: {reason}" for seed, reason in trial.failures.items()]
            trial.state, trial.reason = "failed", "; ".join(dict.fromkeys(reasons))
            return
        if trial.has_first_run and self._level == 0:
            return
        trial.reached = self._until(trial)

        def mean(name: str) -> float:
            return fmean(outcome.scores[name] for outcome in outcomes.values())

        if trial.reached == trial.rounds:
            trial.state, trial.values = "complete", tuple(mean(goal.score) for goal in self._study.goals)
            return
        self._prune(trial, mean(self._study.stop_goal.score))

    def _prune(self, trial: Trial, value: float) -> None:
        """Ask Optuna's pruner, which compares in the direction of the sweep's goal."""
        goal, stop = self._study.stop_goal, self._study.stop
        assert stop is not None
        same_direction = not self._study.goals or goal.maximize == self._study.goals[0].maximize
        trial.asked.report(value if same_direction else -value, trial.reached)
        if trial.asked.should_prune():
            trial.state = "stopped"
            trial.reason = f"{stop.rule}: {goal.score} {value:.4g} after round {trial.reached}"
