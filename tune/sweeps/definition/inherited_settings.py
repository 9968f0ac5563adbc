"""Settings that a sweep takes from the best trial of another, as FedProx takes FedAvg's best T (FLESD, section 5.1)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayfed_ssl.errors import ConfigError, nearest
from tune.sweeps.definition.files import load_sweep
from tune.sweeps.definition.sweep import Begin, Sweep
from tune.sweeps.execution.directory import SweepDirectory
from tune.sweeps.results.remarks import chosen_by
from tune.sweeps.results.run_facts import samples_of, summaries_of
from tune.sweeps.results.trial_results import TrialResult, best_of, named, results_of
from tune.sweeps.results.trial_table import Row, read_rows


def settings_from(source: str, begin: Path | None) -> dict[str, Any]:
    """Read what a sweep begins with.

    Args:
        source: The sweep's name or file.
        begin: Directory of the finished sweep that its `begin` names; None where it has none.

    Returns:
        Values by key of the configuration; empty where the sweep begins from nothing.

    Raises:
        ConfigError: The directory is missing, not needed or another sweep's, or no complete trial in it is as wanted.
    """
    sweep = load_sweep(source)
    wanted = sweep.begin
    if wanted is None:
        if begin is not None:
            raise ConfigError(
                f"--begin {begin} has no meaning: {sweep.name} takes nothing from another sweep, remove it"
            )
        return {}
    keys = ", ".join(wanted.take)
    if begin is None:
        raise ConfigError(
            f"{sweep.name} takes {keys} from the best trial of {wanted.sweep}: run that sweep, then say where it is with "
            "--begin DIR"
        )
    for key in wanted.take:
        if key in sweep.space.names:
            raise ConfigError(
                f"{sweep.name} varies {key}, so it cannot take it from {wanted.sweep}: remove one of both"
            )
    return _taken(begin, wanted)


def origin_of(begin: Path | None, settings: Mapping[str, Any]) -> str:
    """Say for a reader where settings come from and what they were chosen by; nothing where there are none.

    Args:
        begin: As for `settings_from`.
        settings: What that has given.
    """
    if begin is None or not settings:
        return ""
    there = SweepDirectory.open(begin)
    held_out = samples_of(summaries_of(begin, results_of(there.sweep, read_rows(begin / "trials.parquet"))))
    return f"{named(settings)}: from the sweep {there.content['name']} in {begin}, {chosen_by(there.sweep, held_out)}."


def _taken(directory: Path, wanted: Begin) -> dict[str, Any]:
    from rayfed_ssl.records.run_record import RunRecord

    there = SweepDirectory.open(directory)
    if there.content["name"] != wanted.sweep:
        raise ConfigError(f"{directory} holds the sweep {there.content['name']}, but {wanted.sweep} is needed")
    if there.content["finished"] is None:
        raise ConfigError(f"{directory} is not finished: go on with `rayfed-ssl sweep --resume {directory}`")
    run = _best_run(there.sweep, read_rows(directory / "trials.parquet"), wanted.where, directory)
    settings = RunRecord.open(directory / run).config().dump()
    return {key: _value(settings, key, directory) for key in wanted.take}


def _best_run(sweep: Sweep, rows: Sequence[Row], where: Mapping[str, Any], directory: Path) -> str:
    """Name a run of the complete trial that is best by the first goal, of those that have the values that are wanted."""
    for name in where:
        if name not in sweep.space.names:
            raise ConfigError(f"{directory} does not vary {name!r}{nearest(name, sweep.space.names)}")

    def matches(trial: TrialResult) -> bool:
        return all(trial.has(name) and trial.value(name) == value for name, value in where.items())

    best = best_of(filter(matches, results_of(sweep, rows)), sweep.goals[0])
    if best is None:
        raise ConfigError(f"{directory} has no complete trial" + (f" with {named(where)}" if where else ""))
    return best.runs[0]


def _value(settings: Mapping[str, Any], key: str, directory: Path) -> Any:
    """Look a dotted key up in a resolved configuration."""
    node: Any = settings
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            raise ConfigError(f"the runs of {directory} have no key {key!r}{nearest(key, _keys(settings))}")
        node = node[part]
    return node


def _keys(settings: Mapping[str, Any], parent: str = "") -> list[str]:
    found = []
    for name, value in settings.items():
        found += _keys(value, f"{parent}{name}.") if isinstance(value, Mapping) else [f"{parent}{name}"]
    return found
