"""The state of a study, as one table: its trials, the rounds that each run has reached, and what cannot be run.

It is read from a directory, whose study may run in another process or on another machine meanwhile, or foreseen for a study
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
    """A run of a trial, of so many `rounds`; `state` is "finished", "to do", "round 3", or why there is none."""

    trial: int | None
    point: str
    seed: int | None
    run: str
    rounds: int
    state: str


@dataclass(frozen=True)
class StudyState:
    """How far a study is.

    Attributes:
        state: "running", "not running" or when it has finished.
        trials: How many it has in all.
        skipped: Column, or "row, column" -> why it is not run.
        best: The best complete trial by the first goal, as text.
        resume: The command to resume with; null where it has not begun, is finished or runs.
    """

    name: str
    title: str
    state: str
    trials: int
    runs: tuple[RunState, ...]
    skipped: Mapping[str, str]
    best: str | None = None
    resume: str | None = None

    def print(self, as_json: bool) -> None:
        """Print it, for people or as JSON."""
        if as_json:
            print_json(asdict(self))
            return
        rounds = {run.run: run.rounds for run in self.runs if run.run}
        counts = f"{self.trials} trials, {len(rounds)} different runs, at most {sum(rounds.values())} rounds"
        echo(f"{self.name}: {self.title}")
        echo(f"{self.state}; {counts}")
        for name, why in self.skipped.items():
            echo(f"left out, {name}: {why}")
        for kind, text in (("best", self.best), ("resume with", self.resume)):
            if text is not None:
                echo(f"{kind}: {text}")
        rows = [[str(run.trial), run.point, str(run.seed), run.run, str(run.rounds), run.state] for run in self.runs]
        print_table(["trial", "settings", "seed", "run", "rounds", "state"], rows)


def state_of(path: Path) -> StudyState:
    """Read how far the study in a directory is; loads neither Ray nor torch."""
    directory = StudyDirectory.open(path)
    study, record = directory.study, directory.record
    trials, reached = read_results(directory, study), _reached(directory.runs)
    runs = [run for trial in trials for run in _runs(trial, reached)]
    listed = {run.run for run in runs}
    runs += [
        RunState(None, "", None, name, last, f"round {last}") for name, last in reached.items() if name not in listed
    ]
    best, running = best_of(trials, study.goals), directory.is_running()
    resume = f"rayfed-ssl sweep --resume {shlex.quote(str(path))}" if study.kind == "sweep" else record.command
    state = f"finished {record.finished}" if record.finished else "running" if running else "not running"
    return StudyState(
        name=study.name,
        title=study.heading,
        state=state,
        trials=study.num_trials,
        runs=tuple(runs),
        skipped=record.skipped,
        best=None if best is None else f"trial {best.number} ({best.label}): {scores_text(best)}",
        resume=resume if state == "not running" else None,
    )


def _reached(runs: Path) -> dict[str, int]:
    """Read the last round of each run that has started, by its directory relative to the study's."""
    last = {}
    for file in sorted(runs.glob("*/run.json")):
        with suppress(OSError, ValueError, LookupError, TypeError):  # a damaged record; resuming reports it
            rounds = read_json(file)["rounds"]
            last[f"{runs.name}/{file.parent.name}"] = max((row["round"] for row in rounds), default=0)
    return last


def _runs(trial: TrialResult, reached: Mapping[str, int]) -> Iterator[RunState]:
    rounds, ended = trial.rounds or 0, {"complete": "finished", "waiting": ""}
    state = ended.get(trial.state, f"{trial.state}: {trial.reason}")
    if not trial.runs:
        yield RunState(trial.number, trial.label, None, "", rounds, state)
    for seed, run in zip(trial.seeds, trial.runs, strict=True):
        so_far = f"round {reached[run]}" if run in reached else "to do"
        yield RunState(trial.number, trial.label, seed, run, rounds, state or so_far)


def state_before(directory: StudyDirectory, *, open_data: bool = True) -> StudyState:
    """Say what a study would run, and which of its settings are impossible.

    The points of a search that has not begun are drawn at random. With `open_data` the data of all runs are opened.
    """
    from tune.studies.search.search import Search

    study, reached = directory.study, _reached(directory.runs)
    method = study.search if study.search.name == "grid" else SearchMethod(name="random")
    search, runs = Search(study.model_copy(update={"search": method, "stop": None})), list[RunState]()
    while search.next() is not None:
        pass
    for trial in search.trials:
        label = study.label(trial.point)
        if not trial.runs:
            runs.append(RunState(trial.number, label, None, "", 0, f"impossible: {trial.reason}"))
        for seed, run in trial.runs.items():
            name, rounds = f"{directory.runs.name}/{run.name}", run.config.rounds
            refused = _refusal(run.config) if open_data else ""
            last = reached.get(name)
            so_far = "to do" if last is None else "finished" if last == rounds else f"round {last}"
            state = f"impossible: {refused}" if refused else so_far
            runs.append(RunState(trial.number, label, seed, name, rounds, state))
    if all(run.state.startswith("impossible") for run in runs):
        raise ConfigError(f"no trial of {study.name} can be run: {runs[0].state}")
    return StudyState(
        study.name, study.heading, "not running", len(search.trials), tuple(runs), directory.record.skipped
    )


def _refusal(config: "Config") -> str:
    """Open the data of a run; returns why that fails, or ""."""
    from rayfed_ssl.engine.federation import Federation

    try:
        Federation.open(config)
    except (ValueError, OSError) as error:
        return "; ".join(str(error).splitlines())
    return ""
