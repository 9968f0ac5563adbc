"""Settings that a study takes from the best trial of another, as FedProx takes FedAvg's best T (FLESD, section 5.1)."""

from pathlib import Path
from typing import Any

from rayfed_ssl.errors import ConfigError, nearest
from tune.studies.definition.files import load_study
from tune.studies.definition.space import point_text
from tune.studies.execution.directory import StudyDirectory
from tune.studies.results.remarks import chosen_by, held_out_samples, read_manifests
from tune.studies.results.trial_results import best_of, read_results


def inherited_settings(source: str, begin: Path | None) -> tuple[dict[str, Any], str]:
    """Read the settings that a study, by name or file, takes from the finished one in the directory `begin`.

    Returns:
        Values by key of the configuration, and a line that says where they come from; both empty where it takes nothing.
    """
    study = load_study(source)
    wanted = study.begin
    if wanted is None:
        if begin is not None:
            raise ConfigError(f"{study.name} takes nothing from another study: remove --begin {begin}")
        return {}, ""
    keys = ", ".join(wanted.take)
    if begin is None:
        raise ConfigError(
            f"{study.name} takes {keys} from the best trial of {wanted.sweep}: run that, then name its directory with "
            "--begin DIR"
        )
    other = StudyDirectory.open(begin)
    if other.record.name != wanted.sweep:
        raise ConfigError(f"{begin} holds the study {other.record.name}, but {wanted.sweep} is needed")
    if other.record.finished is None:
        raise ConfigError(f"{begin} is not finished: resume it with `rayfed-ssl sweep --resume {begin}`")
    of = other.study
    for name in (*wanted.where, *wanted.take):
        if name not in of.space.names:
            raise ConfigError(f"{begin} does not vary {name!r}{nearest(name, of.space.names)}")
    trials = read_results(other, of)
    where = wanted.where.items()
    best = best_of([trial for trial in trials if all(trial.point[name] == value for name, value in where)], of.goals)
    if best is None:
        raise ConfigError(f"{begin} has no complete trial" + (f" with {point_text(wanted.where)}" if where else ""))
    taken = {key: best.point[key] for key in wanted.take}
    chosen = chosen_by(of, held_out_samples(read_manifests(begin, trials)))
    return taken, f"{point_text(taken)}: from the study {of.name} in {begin}, {chosen}."
