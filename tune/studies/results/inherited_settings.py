"""Settings that a sweep takes from the best trial of another, as FedProx takes FedAvg's best T (FLESD, section 5.1)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayfed_ssl.errors import ConfigError, nearest
from tune.studies.definition.files import load_sweep
from tune.studies.definition.schema import Inheritance
from tune.studies.definition.space import point_text
from tune.studies.execution.directory import SweepDirectory
from tune.studies.results.remarks import chosen_by, held_out_samples, read_manifests
from tune.studies.results.sweep_results import TrialResult
from tune.studies.results.trial_results import best_of, read_results


def inherited_settings(source: str, begin: Path | None, *, trust: bool = False) -> dict[str, Any]:
    """Read the settings that a sweep, by name or file, inherits from the finished one in the directory `begin`.

    With `trust`, the modules that a run of somebody else names are imported.

    Returns:
        Values by key of the configuration; empty where the sweep inherits nothing.
    """
    sweep = load_sweep(source)
    wanted = sweep.begin
    if wanted is None:
        if begin is not None:
            raise ConfigError(f"{sweep.name} takes nothing from another sweep: remove --begin {begin}")
        return {}
    keys = ", ".join(wanted.take)
    if begin is None:
        raise ConfigError(
            f"{sweep.name} takes {keys} from the best trial of {wanted.sweep}: run that sweep, then name its directory with "
            "--begin DIR"
        )
    for key in wanted.take:
        if key in sweep.space.names:
            raise ConfigError(
                f"{sweep.name} varies {key}, so it cannot take it from {wanted.sweep}: remove one of both"
            )
    return _read_settings(begin, wanted, trust)


def origin_of(begin: Path | None, settings: Mapping[str, Any]) -> str:
    """Say for a reader where inherited settings come from and what they were chosen by; "" where there are none."""
    if begin is None or not settings:
        return ""
    other = SweepDirectory.open(begin)
    sweep = other.sweep
    held_out = held_out_samples(read_manifests(begin, read_results(other, sweep)))
    return f"{point_text(settings)}: from the sweep {sweep.name} in {begin}, {chosen_by(sweep, held_out)}."


def _read_settings(directory: Path, wanted: Inheritance, trust: bool) -> dict[str, Any]:
    from rayfed_ssl.records.run_record import RunRecord

    other = SweepDirectory.open(directory)
    if other.record.name != wanted.sweep:
        raise ConfigError(f"{directory} holds the sweep {other.record.name}, but {wanted.sweep} is needed")
    if other.record.finished is None:
        raise ConfigError(f"{directory} is not finished: resume it with `rayfed-ssl sweep --resume {directory}`")
    settings = RunRecord.open(directory / _best_trial(other, wanted.where).runs[0], trust=trust).config().dump()
    return {key: _value(settings, key, directory) for key in wanted.take}


def _best_trial(directory: SweepDirectory, where: Mapping[str, Any]) -> TrialResult:
    """Find the complete trial that is best by the first goal, of those that have the values that are wanted."""
    sweep, path = directory.sweep, directory.path
    for name in where:
        if name not in sweep.space.names:
            raise ConfigError(f"{path} does not vary {name!r}{nearest(name, sweep.space.names)}")
    matching = [
        trial
        for trial in read_results(directory, sweep)
        if all(trial.point[name] == value for name, value in where.items())
    ]
    best = best_of(matching, sweep.goals)
    if best is None:
        raise ConfigError(f"{path} has no complete trial" + (f" with {point_text(where)}" if where else ""))
    return best


def _value(settings: Mapping[str, Any], key: str, directory: Path) -> Any:
    """Look a dotted key up in a resolved configuration."""
    node: Any = settings
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            raise ConfigError(f"the runs of {directory} have no key {key!r}{nearest(key, _keys(settings))}")
        node = node[part]
    return node


def _keys(settings: Mapping[str, Any], parent: str = "") -> list[str]:
    keys = []
    for name, value in settings.items():
        keys += _keys(value, f"{parent}{name}.") if isinstance(value, Mapping) else [f"{parent}{name}"]
    return keys
