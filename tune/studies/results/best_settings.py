"""The best settings of a study: as recipes, ready for `rayfed-ssl run best.yaml`, and for another study.

FedProx takes FedAvg's best T (FLESD, section 5.1), for example.
"""

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from rayfed_ssl.errors import ConfigError, nearest
from rayfed_ssl.reports.html.sources import read_model
from rayfed_ssl.storage.filesystem import write_atomically
from tune.studies.definition.space import point_text
from tune.studies.definition.study import Study
from tune.studies.definition.trial_configs import settings_of
from tune.studies.execution.directory import StudyDirectory
from tune.studies.results.results import StudyResults
from tune.studies.results.trial_results import best_of, scores_text

BEST = "best.yaml"

_OWN_FILES = re.compile(r"best\.yaml|pareto-\d+\.yaml")
"""Names of the files that are written here, and removed when the best trial has changed."""


def chosen_by(study: Study) -> str:
    """Say which samples have decided."""
    if study.selects_on == "test":
        return "chosen on the test set, as the sweep says: selection: test"
    return "chosen by held-out training samples"


def write_recipes(directory: Path, study: Study, results: StudyResults) -> None:
    """Write the recipe of the best trial and of those on the Pareto front; earlier recipes are removed."""
    files = recipes_of(results)
    for path in directory.glob("*.yaml"):
        if _OWN_FILES.fullmatch(path.name) and path.name not in files:
            path.unlink()
    for name, number in files.items():
        trial = next(trial for trial in results.trials if trial.number == number)
        seeds = ", ".join(map(str, trial.seeds))
        lines = [
            f"{'The best trial' if name == BEST else 'A trial on the Pareto front'} of {study.name} ({study.heading}): "
            f"trial {number}, {trial.label}.",
            f"Its scores there: {scores_text(trial)} (seeds {seeds}), {chosen_by(study)}.",
        ]
        if study.selects_on == "validation":
            lines.append("This run trains on the held-out samples as well, and is measured on the test set.")
        comment = "".join(f"# {' '.join(line.split())}\n" for line in lines)
        on_all_samples = study.model_copy(update={"selection": "test"})
        recipe = yaml.safe_dump(settings_of(on_all_samples, trial.point, trial.seeds[0]), sort_keys=False, width=120)
        write_atomically(directory / name, (comment + recipe).encode())


def recipes_of(results: StudyResults) -> dict[str, int]:
    """Name the files of recipes, and the trial that each is of."""
    best = {} if results.best is None else {BEST: results.best}
    return best | {f"pareto-{number}.yaml": number for number in results.front}


def inherited_settings(study: Study, begin: Path | None, *, trust: bool = False) -> tuple[dict[str, Any], str]:
    """Read the settings that a study takes from the finished one in the directory `begin`.

    Returns:
        Values by key of the configuration, and a line that says where they come from; both empty where it takes nothing.
    """
    wanted = study.begin
    if wanted is None:
        if begin is not None:
            raise ConfigError(f"{study.name} takes nothing from another study: remove --begin {begin}")
        return {}, ""
    if begin is None:
        raise ConfigError(
            f"{study.name} takes {', '.join(wanted.take)} from the best trial of {wanted.sweep}: run that, then name its "
            "directory with --begin DIR"
        )
    directory = StudyDirectory.open(begin, trust=trust)
    directory.check_trusted()  # what is taken may name code
    other, where = directory.study, wanted.where.items()
    if other.name != wanted.sweep:
        raise ConfigError(f"{begin} holds the study {other.name}, but {wanted.sweep} is needed")
    if directory.record.finished is None:
        raise ConfigError(
            f"{begin} is not finished: resume it with `rayfed-ssl sweep --resume {shlex.quote(str(begin))}`"
        )
    for name in (*wanted.where, *wanted.take):
        if name not in other.space.names:
            raise ConfigError(f"{begin} does not vary {name!r}{nearest(name, other.space.names)}")
    trials = read_model(begin / "results.json", StudyResults).trials
    best = best_of([trial for trial in trials if all(trial.point[name] == value for name, value in where)], other.goals)
    if best is None:
        raise ConfigError(f"{begin} has no complete trial with {point_text(wanted.where) or 'any settings'}")
    taken = {key: best.point[key] for key in wanted.take}
    return taken, f"{point_text(taken)}: from the study {other.name} in {begin}, {chosen_by(other)}."
