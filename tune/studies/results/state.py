"""The state of a study, as one table: its trials, the rounds that each run has reached, and what cannot be run.

It is read from a directory, whose study may run in another process or on another machine meanwhile, or foreseen for a study
that has not begun.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.foreign.reading import read_json
from tune.studies.definition.schema import SearchMethod
from tune.studies.definition.study import Study
from tune.studies.execution.directory import StudyDirectory, TrialRecord
from tune.terminal import echo, print_json, print_table


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
        resume: The command to resume with; null where it has not begun, is finished or runs.
    """

    name: str
    title: str
    state: str
    trials: int
    runs: tuple[RunState, ...]
    skipped: Mapping[str, str]
    resume: str | None = None

    def print(self, as_json: bool) -> None:
        """Print it, for people or as JSON."""
        if as_json:
            print_json(asdict(self))
            return
        rounds = {run.run: run.rounds for run in self.runs if run.run}
        echo(f"{self.name}: {self.title}")
        echo(f"{self.state}; {self.trials} trials, {len(rounds)} different runs, at most {sum(rounds.values())} rounds")
        for name, why in self.skipped.items():
            echo(f"left out, {name}: {why}")
        if self.resume is not None:
            echo(f"resume with: {self.resume}")
        rows = [[str(run.trial), run.point, str(run.seed), run.run, str(run.rounds), run.state] for run in self.runs]
        print_table(["trial", "settings", "seed", "run", "rounds", "state"], rows)


def state_of(path: Path) -> StudyState:
    """Read how far the study in a directory is; loads neither Ray nor torch."""
    directory = StudyDirectory.open(path)
    study, record = directory.study, directory.record
    running = directory.is_running()
    resume = f"rayfed-ssl sweep --resume {shlex.quote(str(path))}" if study.kind == "sweep" else record.command
    return StudyState(
        name=study.name,
        title=study.heading,
        state=f"finished {record.finished}" if record.finished else "running" if running else "not running",
        trials=study.num_trials,
        runs=tuple(_runs(study, record.trials, directory.runs)),
        skipped=record.skipped,
        resume=None if record.finished or running else resume,
    )


def _runs(study: Study, trials: Sequence[TrialRecord], folder: Path) -> Iterator[RunState]:
    """Describe the runs of trials, then those that no trial has yet."""
    reached, listed = _reached(folder), set[str]()
    for number, trial in enumerate(trials):
        label, rounds = study.label(trial.point), trial.rounds or 0
        ended = f"{trial.state}: {trial.reason}" if trial.reason else ""
        if not trial.runs:
            yield RunState(number, label, None, "", rounds, ended)
        for seed, name in zip(study.seeds, trial.runs, strict=False):
            last = reached.get(name)
            so_far = "to do" if last is None else "finished" if last == rounds else f"round {last}"
            yield RunState(number, label, seed, f"{folder.name}/{name}", rounds, ended or so_far)
        listed.update(trial.runs)
    for name, last in reached.items():
        if name not in listed:
            yield RunState(None, "", None, f"{folder.name}/{name}", last, f"round {last}")


def _reached(folder: Path) -> dict[str, int]:
    """Read the last round of each run that has started, by its name."""
    last = {}
    for file in sorted(folder.glob("*/run.json")):
        with suppress(OSError, ValueError, LookupError, TypeError):  # a damaged record; resuming reports it
            rounds = read_json(file)["rounds"]
            last[file.parent.name] = max((row["round"] for row in rounds), default=0)
    return last


def state_before(directory: StudyDirectory, *, open_data: bool = True) -> StudyState:
    """Say what a study would run, and which of its settings are impossible.

    The points of a search that has not begun are drawn at random. With `open_data` the data of all runs are opened.
    """
    from rayfed_ssl.engine.federation import Federation
    from tune.studies.execution.scores import record_trials
    from tune.studies.search.search import Search

    study = directory.study
    method = study.search if study.search.name == "grid" else SearchMethod(name="random")
    search = Search(study.model_copy(update={"search": method, "stop": None}))
    while search.next() is not None:
        pass
    for trial in search.trials:
        try:
            for run in trial.runs.values() if open_data else ():
                Federation.open(run.config)
        except (ValueError, OSError) as error:
            trial.reason = "; ".join(str(error).splitlines())
    made = record_trials(search)
    trials = [trial.model_copy(update={"state": "impossible"}) if trial.reason else trial for trial in made]
    if all(trial.reason for trial in trials):
        raise ConfigError(f"no trial of {study.name} can be run: {trials[0].reason}")
    runs, skipped = tuple(_runs(study, trials, directory.runs)), directory.record.skipped
    return StudyState(study.name, study.heading, "not running", len(trials), runs, skipped)
