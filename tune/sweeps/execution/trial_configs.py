"""From a point of a sweep's space to the configuration that a trial runs, and what a run of it has given."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from rayfed_ssl.config.recipes import SCALAR_MEANS, apply_override, read_recipe
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.ledger import Direction
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.evaluation.protocols import Transfer
from rayfed_ssl.evaluation.registry import BEST, PROTOCOLS
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.reproduced import taken
from tune.sweeps.definition.spaces import Point
from tune.sweeps.definition.sweep import BYTES, HELD_OUT, Sweep


def config_of(sweep: Sweep, point: Point, seed: int) -> Config:
    """Resolve what a trial runs.

    Args:
        sweep: What it belongs to.
        point: Its values.
        seed: Of the run.

    Raises:
        ConfigError: The settings do not fit together.
    """
    tree = settings_of(sweep, point, seed)
    if "executor" not in _section(tree, "engine"):
        apply_override(tree, "engine.executor=local")
    return Config.load(tree)


def settings_of(sweep: Sweep, point: Point, seed: int) -> dict[str, Any]:
    """Collect a trial's settings as a recipe has them, with what the sweep measures, but not where they are computed.

    Raises:
        ConfigError: There is no recipe.
    """
    variants = list(sweep.space.variant(point))
    recipe = next((variant.recipe for variant in reversed(variants) if variant.recipe), sweep.recipe)
    if recipe is None:
        raise ConfigError("no variant of this point names a recipe, nor does the sweep")
    tree = read_recipe(sweep.home / recipe if Path(recipe).suffix in (".yaml", ".yml") else recipe)
    for settings in (sweep.settings, *(variant.settings for variant in variants), sweep.space.settings(point)):
        for key, value in settings.items():
            apply_override(tree, f"{key}={json.dumps(value, default=str)}")
    for override in sweep.overrides:
        apply_override(tree, override)
    _refuse_canceled(sweep, tree, point)
    apply_override(tree, f"seed={seed}")
    _measure_what_decides(sweep, tree)
    _find_from(sweep.home, tree)
    return tree


def _find_from(home: Path, tree: dict[str, Any]) -> None:
    """Make paths absolute: a trial's process has another working directory, and so may whoever goes on."""

    def absolute(path: str) -> str:
        return path if "://" in path else str((home / Path(path).expanduser()).resolve())

    for section, key in (("data", "path"), ("model", "start"), ("engine", "checkpoints"), ("engine", "shared")):
        entry = tree.get(section)
        if isinstance(entry, dict) and isinstance(entry.get(key), str):
            entry[key] = absolute(entry[key])
    if isinstance(tree.get("public"), str):
        name, _, rest = tree["public"].partition(":")
        path, _, count = rest.rpartition(":")
        tree["public"] = f"{name}:{absolute(path)}:{count}" if path else tree["public"]
    measured = tree.get("evaluation")
    changed = measured.get("settings") if isinstance(measured, dict) else None
    for own in changed.values() if isinstance(changed, dict) else ():
        if isinstance(own, dict) and isinstance(own.get("dataset"), str):
            name, colon, path = own["dataset"].partition(":")
            own["dataset"] = f"{name}:{absolute(path)}" if path else name + colon


def _refuse_canceled(sweep: Sweep, tree: Mapping[str, Any], point: Point) -> None:
    """Refuse settings that undo a point's values, so that no trial is shown under values that it did not have.

    Raises:
        ConfigError: A later setting has replaced or removed one.
    """
    for key, value in sweep.space.settings(point).items():
        node: Any = tree
        for part in key.split("."):
            node = node.get(part, MISSING) if isinstance(node, Mapping) else MISSING
        if not _holds(node, yaml.safe_load(json.dumps(value, default=str)), key):
            mine = ", ".join(sweep.overrides)
            got = "is not set" if node is MISSING else f"has come to {node!r}"
            raise ConfigError(
                f"{key} is varied and {value!r} here, but {got}: another setting undoes it ({mine or 'see set and space'}); "
                "leave one of them out"
            )


MISSING = object()


def _holds(found: Any, value: Any, key: str) -> bool:
    """Whether a setting is as a point has it; a section may have got more fields."""
    if isinstance(found, Mapping) and isinstance(value, Mapping):
        return all(_holds(found.get(name, MISSING), own, "") for name, own in value.items())
    if isinstance(found, Mapping) and isinstance(value, str):
        return bool(found.get(SCALAR_MEANS.get(key, "name")) == value)
    return found is not MISSING and bool(found == value)


def _section(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = tree.get(name, {})
    if not isinstance(section, Mapping):
        raise ConfigError(f"{name} maps keys to values, got {section!r}")
    return section


def _measure_what_decides(sweep: Sweep, tree: dict[str, Any]) -> None:
    """Switch on what the sweep's goals and its early stopping look at."""
    data = tree.get("data")
    held_out = isinstance(data, Mapping) and data.get("validation") is not None
    if sweep.selection == "test":
        apply_override(tree, "data.validation=null")
    elif not held_out:
        apply_override(tree, f"data.validation={HELD_OUT}")
    names = [goal.score for goal in sweep.goals]
    diagnosed = any(name.startswith("diag_") for name in names)
    measured = _section(tree, "evaluation")
    if diagnosed and not measured.get("diagnostics"):
        apply_override(tree, f"evaluation.diagnostics={tree.get('rounds', 2)}")
    asked = [name for goal in names if (name := goal.removesuffix(BEST)) in PROTOCOLS and name not in ("knn", "linear")]
    if sweep.selection == "validation" and (
        others := [name for name in asked if isinstance(PROTOCOLS[name], Transfer)]
    ):
        raise ConfigError(
            f"{others[0]} is measured on another dataset's test set, which must not choose: set selection: test, or another "
            "goal"
        )
    listed = measured.get("protocols") or []
    listed = [listed] if isinstance(listed, str) else listed
    if isinstance(listed, list) and (more := [name for name in asked if name not in listed]):
        apply_override(tree, f"evaluation.protocols={json.dumps([*listed, *more])}")
    if sweep.stop is not None:
        kind = "diagnostics" if sweep.stop.score.startswith("diag_") else "every"
        apply_override(tree, f"evaluation.{kind}={sweep.stop.evaluate_every}")


def scores_after(
    directory: Path, names: Iterable[str], take: str | None, round: int, *, whole: bool = False
) -> dict[str, float] | None:
    """Read what a run had come to after a round.

    Args:
        directory: The run.
        names: Scores, or bytes.
        take: Of which encoder; None takes the global one, or the clients' mean.
        round: Which; the run may have gone on since.
        whole: Whether the run must have come to its end, scores and all.

    Returns:
        Values by name; None where the run has not come there, or not been scored there.
    """
    if not (directory / "run.json").is_file():
        return None
    record, found = RunRecord.open(directory), {}
    if record.last_round < round or (whole and record.summary["finished"] is None):
        return None
    for name in names:
        value = _bytes(record, name, round) if name in BYTES else score_of(record, name, take, round)
        if value is None:
            return None
        found[name] = value
    return found


def why_none(directory: Path, names: Iterable[str], take: str | None, round: int) -> str:
    """Say which score a run does not have after a round, where `scores_after` gives None."""
    record = RunRecord.open(directory)
    for name in names:
        if name in BYTES or score_of(record, name, take, round) is not None:
            continue
        there = sorted({row["participant"] for row in record.metrics if row["name"] == name and row["round"] == round})
        if there:
            return f"{name} is of {', '.join(there)} in this method, which take: {take} does not mean: leave take out"
        return f"{directory.name} has no score {name} after round {round}: see `rayfed-ssl list protocols`"
    return f"{directory.name} has not come to its end: go on with the sweep"


def _bytes(record: RunRecord, name: str, round: int) -> float:
    directions: Mapping[str, tuple[Direction, ...]] = {"bytes_up": ("up",), "bytes_down": ("down",)}
    counted = directions.get(name, ("up", "down"))
    return float(sum(row["bytes"] for row in record.ledger if row["round"] <= round and row["direction"] in counted))


def score_of(record: RunRecord, name: str, take: str | None, round: int) -> float | None:
    """Read the score of the encoder that is meant; None where the run has none."""
    rows = [row for row in record.metrics if row["name"] == name and row["round"] == round]
    values = {row["participant"]: row["value"] for row in rows}
    return taken(values, take)
