"""The best configurations of a sweep as recipe files, ready for `rayfed-ssl run best.yaml`."""

import re
from pathlib import Path
from typing import Any

import yaml

from rayfed_ssl.storage.filesystem import write_atomically
from tune.studies.definition.space import Point
from tune.studies.definition.study import Study
from tune.studies.definition.trial_configs import settings_of
from tune.studies.results.remarks import BEST, chosen_by
from tune.studies.results.results import StudyResults, TrialResult
from tune.studies.results.trial_results import scores_text

_OWN_FILES = re.compile(r"best\.yaml|pareto-\d+\.yaml")
"""Names of the files that are written here, and removed when the best trial has changed."""


def recipe_of(study: Study, point: Point, seed: int) -> dict[str, Any]:
    """Write a trial's run as a recipe, without held-out samples and without the sweep's executor."""
    return settings_of(study.model_copy(update={"selection": "test"}), point, seed)


def write_recipes(directory: Path, study: Study, results: StudyResults) -> None:
    """Write the recipe of the best trial and of those on the Pareto front; earlier recipes are removed."""
    trials = {trial.number: trial for trial in results.trials}
    files = {name: trials[int(number)] for number, name in results.recipes.items()}
    files |= {} if results.best is None else {BEST: trials[results.best.trial]}
    for path in directory.glob("*.yaml"):
        if _OWN_FILES.fullmatch(path.name) and path.name not in files:
            path.unlink()
    for name, trial in files.items():
        tree = recipe_of(study, trial.point, trial.seeds[0])
        text = _comment(study, trial, chosen_by(study, results.held_out), name) + yaml.safe_dump(
            tree, sort_keys=False, width=120
        )
        write_atomically(directory / name, text.encode())


def _comment(study: Study, trial: TrialResult, chosen: str, name: str) -> str:
    kind = f"The best trial by {study.goals[0].score}" if name == BEST else "A trial on the Pareto front"
    seeds = f"seeds {', '.join(map(str, trial.seeds))}" if len(trial.seeds) > 1 else f"seed {trial.seeds[0]}"
    lines = [
        f"{kind} of the sweep {study.name} ({study.heading}): trial {trial.number}, {trial.label}.",
        f"Its scores there: {scores_text(trial)} ({seeds}), {chosen}.",
    ]
    if study.selects_on == "validation":
        lines.append("This run trains on the held-out samples as well, and is measured on the test set.")
    return "".join(f"# {' '.join(line.split())}\n" for line in lines)
