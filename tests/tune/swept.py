"""Sweeps that tests make in this process, without Ray; and rows of sweeps that never ran."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tune.sweeps.definition.sweep import Sweep
from tune.sweeps.execution.runner import Record, SweepDirectory
from tune.sweeps.execution.trial_configs import scores_after
from tune.sweeps.execution.trials import Legs, make_leg
from tune.sweeps.results.trial_results import TrialResult, results_of
from tune.sweeps.results.trial_table import write_rows
from tune.sweeps.search.search import Leg, Outcome, Search

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
    "space": {
        "rounds": [1, 2, 4],
        "training.epochs": {"equals": "2 // rounds"},
        "system": {"variants": {"FedAvg": None, "FedProx": {"set": {"method.name": "fedprox", "method.mu": 1.0}}}},
    },
    "seeds": 2,
    "table": {"rows": "rounds", "columns": "system"},
    "figure": {"x": "rounds", "lines": "system"},
}
"""Four trials of two seeds, and two that are impossible: 2 // 4 epochs."""

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


def begin(folder: Path, tree: Mapping[str, Any], name: str = "tiny") -> SweepDirectory:
    """Begin a sweep of the tiny recipe in `folder / name`."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe, file = folder / "recipe.yaml", folder / f"{name}.yaml"
    recipe.write_text(yaml.safe_dump(TINY))
    file.write_text(yaml.safe_dump({**tree, "recipe": str(recipe)}, sort_keys=False))
    return SweepDirectory.create(folder / name, str(file), [], {}, f"rayfed-ssl sweep {name}.yaml")


def go_on(directory: SweepDirectory, legs: int | None = None) -> None:
    """Run so many legs of a sweep, or all of them, and write down what it came to."""
    search = Search(directory.sweep, directory.path / "study.journal")
    waiting, left = Legs(search, directory.runs), legs
    while left != 0 and (leg := waiting.next()) is not None:
        run = directory.runs / leg.name
        failure = make_leg(leg.config, run, leg.until)
        scores = None if failure else scores_after(run, waiting.names_at(leg), search.sweep.take, leg.until)
        waiting.done(leg.name, Outcome(scores or {}, failure))
        left = None if left is None else left - 1
    record = Record(directory, search)
    if search.finished:
        record.finish()
    else:
        record.update()


def fabricate(directory: SweepDirectory, outcome: Callable[[Leg], Mapping[str, float]]) -> None:
    """Take a sweep to its end with scores that no run has given, and write down its trials."""
    search = Search(directory.sweep, directory.path / "study.journal")
    found = {}
    while (leg := search.next()) is not None:
        found[leg.trial, leg.seed] = outcome(leg)
        search.done(leg, Outcome(found[leg.trial, leg.seed]))
    rows = []
    for trial in search.trials:
        facts = {"state": trial.state, "reason": trial.reason or None}
        if not trial.runs:
            rows.append(row(search.sweep, trial.number, trial.point, seed=None, run=None, **facts))
        for seed in trial.runs:
            scores = found[trial.number, seed].items()
            columns = {score if score == "bytes" else f"score.{score}": value for score, value in scores}
            rows.append(row(search.sweep, trial.number, trial.point, seed=seed, **facts, **columns))
    write_rows(rows, directory.path / "trials.parquet")


def result(
    sweep: Sweep, number: int, point: Mapping[str, Any], values: Sequence[float] | Mapping[str, Sequence[float]] = ()
) -> TrialResult:
    """Make a complete trial that came to these values over seeds; of the first goal, or of several by name."""
    named = values if isinstance(values, Mapping) else {sweep.goals[0].score: values}
    columns = {score if score == "bytes" else f"score.{score}": found for score, found in named.items()}
    rows = [
        row(sweep, number, point, seed=seed, **{name: found[index] for name, found in columns.items()})
        for index, seed in enumerate(sweep.seeds)
    ]
    return results_of(sweep, rows)[0]


def ended(sweep: Sweep, number: int, point: Mapping[str, Any], state: str, reason: str = "for a reason") -> TrialResult:
    """Make a trial that did not come to its end."""
    rows = [row(sweep, number, point, seed=seed, state=state, reason=reason, round=1) for seed in sweep.seeds]
    return results_of(sweep, rows)[0]


def row(sweep: Sweep, number: int, point: Mapping[str, Any], **columns: Any) -> dict[str, Any]:
    """Make a row of `trials.parquet`."""
    usual = {"trial": number, "state": "complete", "reason": None, "seed": 0, "round": 2, "rounds": 2, "seconds": 1.5}
    usual |= {"run": f"runs/{number}-{columns.get('seed', 0)}", "bytes": 1000, "bytes_up": 500, "bytes_down": 500}
    values = {**point, **sweep.space.derived(point)}
    return usual | {f"param.{name}": json.dumps(value) for name, value in values.items()} | columns
