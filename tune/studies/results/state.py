"""The state of a study, as one table: its trials, the rounds that each run has reached, and what cannot be run.

It is read from a directory, whose study may run in another process or on another machine meanwhile, or is that of a study
that has not begun.
"""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.reading import read_json
from tune.studies.definition.search_plan import SearchMethod
from tune.studies.execution.directory import StudyDirectory
from tune.studies.results.results import TrialResult
from tune.studies.results.trial_results import best_of, read_results, scores_text
from tune.terminal import echo, print_json, print_table

if TYPE_CHECKING:
    from rayfed_ssl.config.schema import Config


@dataclass(frozen=True)
class RunState:
    """A run of a trial: "finished", "to do", "round 3 of 10", or why it has failed or cannot be run."""

    trial: int
    point: str
    seed: int | None
    run: str
    state: str


@dataclass(frozen=True)
class StudyState:
    """How far a study is.

    Attributes:
        running: Whether a process of this machine runs it; null where that cannot be found out.
        finished: When all trials had ended.
        trials: How many it has in all.
        rounds: Of all different runs together; an upper bound where trials are stopped early.
        skipped: Column, or "row, column" -> why it is not run.
        best: The best complete trial by the first goal, as text.
        resume: The command to resume with; null where it has not begun, is finished or runs.
    """

    name: str
    title: str
    running: bool | None
    finished: str | None
    trials: int
    rounds: int
    runs: tuple[RunState, ...]
    skipped: Mapping[str, str]
    best: str | None = None
    resume: str | None = None

    def lines(self) -> Iterator[str]:
        """Write what stands above the table."""
        ended = sum(run.state == "finished" for run in self.runs)
        state = f"finished {self.finished}" if self.finished else ("running" if self.running else "not running")
        different = len({run.run for run in self.runs if run.run})
        yield f"{self.name}: {self.title}"
        yield f"{state}; {self.trials} trials, {different} different runs, at most {self.rounds} rounds; {ended} ended"
        yield from (f"left out, {name}: {why}" for name, why in self.skipped.items())
        yield from [f"best{' so far' * (not self.finished)}: {self.best}"] * (self.best is not None)
        yield from [f"resume with: {self.resume}"] * (self.resume is not None)


def print_state(state: StudyState, as_json: bool) -> None:
    """Print a study's state, for people or as JSON."""
    if as_json:
        print_json(asdict(state))
        return
    for line in state.lines():
        echo(line)
    rows = [
        [str(run.trial), run.point, "" if run.seed is None else str(run.seed), run.run, run.state] for run in state.runs
    ]
    print_table(["trial", "settings", "seed", "run", "state"], rows)


def state_of(path: Path) -> StudyState:
    """Read how far the study in a directory is; loads neither Ray nor torch."""
    directory = StudyDirectory.open(path)
    study, record = directory.study, directory.record
    trials, rounds = read_results(directory, study), _rounds(directory.runs)
    runs = [run for trial in trials for run in _runs(trial, rounds)]
    listed = {run.run for run in runs}
    runs += [RunState(-1, "", None, name, f"round {last}") for name, last in rounds.items() if name not in listed]
    best, running, finished = best_of(trials, study.goals), directory.is_running(), record.finished
    resume = f"rayfed-ssl sweep --resume {shlex.quote(str(path))}" if study.kind == "sweep" else record.command
    lengths = {run: trial.rounds or 0 for trial in trials for run in trial.runs}
    return StudyState(
        name=study.name,
        title=study.heading,
        running=running,
        finished=finished,
        trials=study.num_trials,
        rounds=sum(lengths.values()),
        runs=tuple(runs),
        skipped=record.skipped,
        best=None if best is None else f"trial {best.number} ({best.label}): {scores_text(best)}",
        resume=None if finished or running else resume,
    )


def _rounds(runs: Path) -> dict[str, int]:
    """Read the last round of each run that has started, by its directory relative to the study's."""
    last = {}
    for file in sorted(runs.glob("*/run.json")):
        with suppress(OSError, ValueError, LookupError, TypeError):  # a damaged record; resuming reports it
            rounds = read_json(file)["rounds"]
            last[f"{runs.name}/{file.parent.name}"] = max((row["round"] for row in rounds), default=0)
    return last


def _runs(trial: TrialResult, rounds: Mapping[str, int]) -> Iterator[RunState]:
    if not trial.runs:
        yield RunState(trial.number, trial.label, None, "", f"{trial.state}: {trial.reason}")
    for seed, run in zip(trial.seeds, trial.runs, strict=True):
        state = "to do" if run not in rounds else f"round {rounds[run]} of {trial.rounds}"
        if trial.state == "complete":
            state = "finished"
        elif trial.state != "waiting":
            state = f"{trial.state}: {trial.reason}"
        yield RunState(trial.number, trial.label, seed, run, state)


def state_before(directory: StudyDirectory, *, open_data: bool = True) -> StudyState:
    """Say what a study would run, and which of its settings are impossible.

    The points of a search that has not begun are drawn at random. With `open_data` the data of all runs are opened.
    """
    from tune.studies.search.search import Search

    study = directory.study
    method = study.search if study.search.name == "grid" else SearchMethod(name="random")
    search = Search(study.model_copy(update={"search": method, "stop": None}))
    while search.next() is not None:
        pass
    states, lengths = list[RunState](), dict[str, int]()
    finished = _rounds(directory.runs)
    for trial in search.trials:
        label, refused = study.label(trial.point), trial.reason
        for seed, run in trial.runs.items():
            refused = refused or (_refusal(run.config) if open_data else "")
            name, last = f"{directory.runs.name}/{run.name}", run.config.rounds
            reached = finished.get(name)
            state = "to do" if reached is None else "finished" if reached == last else f"round {reached} of {last}"
            states.append(RunState(trial.number, label, seed, name, f"impossible: {refused}" if refused else state))
            lengths |= {} if refused else {name: last}
        if not trial.runs:
            states.append(RunState(trial.number, label, None, "", f"impossible: {refused}"))
    if not lengths:
        raise ConfigError(f"no trial of {study.name} can be run: {states[0].state}")
    return StudyState(
        name=study.name,
        title=study.heading,
        running=None,
        finished=None,
        trials=len(search.trials),
        rounds=sum(lengths.values()),
        runs=tuple(states),
        skipped=directory.record.skipped,
    )


def _refusal(config: "Config") -> str:
    """Open the data of a run; returns why that fails, or ""."""
    from rayfed_ssl.engine.federation import Federation

    try:
        Federation.open(config)
    except (ValueError, OSError) as error:
        return "; ".join(str(error).splitlines())
    return ""
