"""Sweeps that tests make in this process, without Ray; and trials of sweeps that never ran."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tune.studies.definition.study import Study
from tune.studies.execution.directory import StudyDirectory
from tune.studies.execution.runner import open_queue
from tune.studies.execution.segments import outcome_of
from tune.studies.execution.trial_table import NO_ROUNDS
from tune.studies.results.results import TrialResult
from tune.studies.results.trial_results import results_of
from tune.studies.run import StudyRequest

TINY = {
    "rounds": 2,
    "method": {"name": "fedavg"},
    "objective": {"name": "simclr"},
    "data": {"name": "digits", "train_limit": 80, "test_limit": 40},
    "partition": {"name": "iid"},
    "clients": {"number": 2},
    "model": {"encoder": "cnn", "projection_dim": 16},
    "training": {"epochs": 1, "batch": 32},
    "evaluation": {"every": 0, "linear": {"epochs": 2}},
    "engine": {"device": "cpu", "precision": "fp32", "trackers": []},
}
"""A recipe whose runs take a fraction of a second."""

GRID = {
    "title": "Rounds and systems",
    "source": "FLESD, Figure 4",
    "notes": ["The last rounds leave no epoch."],
    "set": {"training": {"total_epochs": 2, "batch": 32}},
    "rows": {"FedAvg": None, "FedProx": {"set": {"method.name": "fedprox", "method.mu": 1.0}}},
    "space": {"rounds": [1, 2, 4]},
    "seeds": 2,
    "table": {"rows": "rounds", "columns": "row"},
    "figure": {"x": "rounds", "lines": "row"},
}
"""Four trials of two seeds, and two that are impossible: 2 epochs over 4 rounds."""

FRONT = {
    "title": "Accuracy against bytes",
    "space": {"training.optimizer.lr": {"log": [0.01, 1.0]}, "rounds": [1, 2]},
    "search": "random",
    "trials": 4,
    "maximize": "knn",
    "minimize": "bytes",
    "selection": "test",
}
"""Two goals and a range."""


def write(folder: Path, tree: Mapping[str, Any], name: str = "tiny") -> str:
    """Write a sweep file over the tiny recipe; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe, file = folder / "recipe.yaml", folder / f"{name}.yaml"
    recipe.write_text(yaml.safe_dump(TINY))
    file.write_text(yaml.safe_dump({**tree, "recipe": str(recipe)}, sort_keys=False))
    return str(file)


def begin(folder: Path, tree: Mapping[str, Any], name: str = "tiny", overrides: Sequence[str] = ()) -> StudyDirectory:
    """Begin a sweep of the tiny recipe in `folder / name`."""
    directory = StudyRequest(write(folder, tree, name), "sweep", tuple(overrides), out=folder / name).describe()
    directory.create()
    return directory


def go_on(directory: StudyDirectory, segments: int | None = None) -> None:
    """Run so many segments of a sweep, or all of them, and write down the results."""
    with open_queue(directory) as queue:
        while segments != 0 and (segment := queue.next()) is not None:
            run, names = directory.runs / segment.run.name, segment.scores
            config = segment.run.placed(segment.run.config, directory.runs)
            queue.done(run.name, outcome_of(config, run, segment.until, names, segment.take))
            segments = None if segments is None else segments - 1


def result(
    study: Study, number: int, point: Mapping[str, Any], values: Sequence[float] | Mapping[str, Sequence[float]] = ()
) -> TrialResult:
    """Make a complete trial that came to these values over seeds; of the first goal, or of several by name."""
    named = values if isinstance(values, Mapping) else {study.goals[0].score: values}
    columns = {score if score == "bytes" else f"score.{score}": each for score, each in named.items()}
    rows = [
        row(study, number, point, seed=seed, **{name: each[index] for name, each in columns.items()})
        for index, seed in enumerate(study.seeds)
    ]
    return results_of(study, rows)[0]


def ended(study: Study, number: int, point: Mapping[str, Any], state: str, reason: str = "for a reason") -> TrialResult:
    """Make a trial that did not come to its end."""
    rows = [row(study, number, point, seed=seed, state=state, reason=reason, round=1) for seed in study.seeds]
    return results_of(study, rows)[0]


def row(study: Study, number: int, point: Mapping[str, Any], **columns: Any) -> dict[str, Any]:
    """Make a row of a trial and a seed, as if it had run."""
    usual = {"trial": number, "state": "complete", "reason": "", "seed": 0, "point": point, "rounds": 2}
    usual |= {"run": f"runs/{number}-{columns.get('seed', 0)}"}
    progress = {"round": 2, "finished": True, "bytes": 1000, "bytes_up": 500, "bytes_down": 500, "seconds": 1.5}
    return usual | NO_ROUNDS | progress | columns
