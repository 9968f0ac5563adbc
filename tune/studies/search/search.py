"""What a sweep tries next: a function of the sweep and of results, and of nothing else.

Points are chosen a generation at a time, from the results of the generations before; within a generation, trials reach a
rung together and are judged in the order of their numbers. So neither the number of parallel trials nor their order nor any
interruption changes what is tried, stopped or chosen: on resume the search runs again from its start, and is answered with
the results on disk (docs/decisions/0006).
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from optuna.trial import TrialState

from tune.studies.definition.space import Point
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


@dataclass(frozen=True)
class Outcome:
    """The result of a segment: scores after its last round, or in one line why there are none.

    Attributes:
        ends_study: Whether the disk failed, and not this trial: the next one would meet that too.
    """

    scores: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None
    ends_study: bool = False


@dataclass
class Trial:
    """A point and its state.

    Attributes:
        asked: Optuna's trial.
        runs: Those that give its result, by seed; empty where the settings are impossible.
        reason: Why it failed or was stopped, in one line.
        values: Of the goals, means over seeds; of a complete trial alone.
        reached: Round that all its runs have reached.
    """

    number: int
    point: Point
    asked: Any
    runs: dict[int, TrialRun] = field(default_factory=dict)
    state: State = "waiting"
    reason: str = ""
    values: tuple[float, ...] = ()
    reached: int = 0

    @property
    def rounds(self) -> int:
        """Rounds of a whole run."""
        return next(iter(self.runs.values())).config.rounds

    @property
    def names(self) -> list[str]:
        """Names of the runs' directories, in the order of seeds."""
        return [run.name for run in self.runs.values()]


@dataclass
class Generation:
    """Trials that were chosen together and reach rungs together.

    Attributes:
        level: The rung that they run to; the first rung of runs that start from others is the end of these.
        missing: Trial and seed of each segment to this rung that has not ended.
        outcomes: Those of the others.
    """

    trials: list[Trial]
    level: int = -1
    missing: set[tuple[int, int]] = field(default_factory=set)
    outcomes: dict[tuple[int, int], Outcome] = field(default_factory=dict)


class Search:
    """Gives segments to be run, takes their outcomes, and chooses what to try next.

    Args:
        study: What is sought.
        on_trial_end: Is called with each trial that has ended.

    Attributes:
        optuna_study: Its trials have the same numbers.
    """

    def __init__(self, study: Study, on_trial_end: Callable[[Trial], None] = lambda trial: None) -> None:
        self.study, self.trials = study, list[Trial]()
        self.optuna_study = make_optuna_study(study)
        self._on_trial_end = on_trial_end
        self._remaining = study.num_trials
        self._queue: deque[Segment] = deque()
        self._generations: list[Generation] = []
        self._grid = iter(study.points()) if study.search.name == "grid" else None

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
            number = min(self._remaining, self.study.generation if self.study.adapts else 1)
            generation = Generation([self._new_trial() for _ in range(number)])
            self._remaining -= number
            self._generations.append(generation)
            self._advance(generation)
        return self._queue.popleft() if self._queue else None

    def _new_trial(self) -> Trial:
        asked = self.optuna_study.ask()
        point = self.study.space.suggest(asked) if self._grid is None else next(self._grid)
        trial = Trial(len(self.trials), point, asked)
        self.trials.append(trial)
        try:
            trial.runs = {seed: run_of(self.study, trial.point, seed) for seed in self.study.seeds}
        except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
            trial.state, trial.reason = "failed", "; ".join(str(error).splitlines()) or type(error).__name__
        return trial

    def done(self, segment: Segment, outcome: Outcome) -> None:
        """Take the outcome of a segment."""
        key = segment.trial, segment.seed
        generation = next(generation for generation in self._generations if key in generation.missing)
        generation.missing.remove(key)
        generation.outcomes[key] = outcome
        if not generation.missing:
            for trial in generation.trials:  # in the order of their numbers, as each judgement sees those before
                if trial.state == "waiting":
                    self._judge(trial, generation)
            self._advance(generation)

    def _advance(self, generation: Generation) -> None:
        """Queue the segments of the trials that continue to the next rung; without any the generation has ended."""
        generation.level, generation.outcomes = generation.level + 1, {}
        segments = [
            self._segment(trial, seed, run, generation.level)
            for trial in generation.trials
            if trial.state == "waiting"
            for seed, run in trial.runs.items()
        ]
        generation.missing = {(segment.trial, segment.seed) for segment in segments}
        self._queue.extend(segments)
        if not segments:
            self._generations.remove(generation)
            for trial in generation.trials:
                self._tell(trial)

    def _segment(self, trial: Trial, seed: int, run: TrialRun, level: int) -> Segment:
        if run.first is not None and level == 0:
            return Segment(trial.number, seed, run.first, run.first.config.rounds)
        until = self._until(trial, level)
        goals = self.study.goals if until == trial.rounds else (self.study.stop_goal,)
        scores = tuple(goal.score for goal in goals)
        return Segment(trial.number, seed, run, until, scores, self.study.cell(trial.point).take)

    def _until(self, trial: Trial, level: int) -> int:
        """The round of a rung; 0 for the rung that ends the runs which a trial's runs start from."""
        level -= any(run.first is not None for run in trial.runs.values())
        rungs = [] if self.study.stop is None else self.study.stop.rungs(trial.rounds)
        return 0 if level < 0 else rungs[level] if level < len(rungs) else trial.rounds

    def _judge(self, trial: Trial, generation: Generation) -> None:
        outcomes = {seed: generation.outcomes[trial.number, seed] for seed in trial.runs}
        failures = {seed: outcome.failure for seed, outcome in outcomes.items() if outcome.failure}
        trial.reached = self._until(trial, generation.level)
        if failures:
            alike = len(failures) == len(outcomes) and len(set(failures.values())) == 1
            reasons = [reason if alike else f"seed {seed}: {reason}" for seed, reason in failures.items()]
            trial.state, trial.reason = "failed", "; ".join(dict.fromkeys(reasons))
            return

        def mean(score: str) -> float:
            return fmean(outcome.scores[score] for outcome in outcomes.values())

        if trial.reached == trial.rounds:
            trial.state, trial.values = "complete", tuple(mean(goal.score) for goal in self.study.goals)
        elif trial.reached:
            score = self.study.stop_goal.score
            trial.asked.report(mean(score), trial.reached)
            if trial.asked.should_prune():
                trial.state, trial.reason = "stopped", f"asha: {score} {mean(score):.4g} after round {trial.reached}"

    def _tell(self, trial: Trial) -> None:
        """Tell Optuna how a trial ended."""
        if trial.state == "complete" and not any(map(math.isnan, trial.values)):
            self.optuna_study.tell(trial.asked, list(trial.values) or [0.0])
        else:
            state = TrialState.PRUNED if trial.state == "stopped" else TrialState.FAIL
            self.optuna_study.tell(trial.asked, state=state)
        self._on_trial_end(trial)
