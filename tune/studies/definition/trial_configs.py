"""From a point of a study's space to the runs that a trial makes, and the names of their directories."""

import hashlib
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import getitem
from pathlib import Path
from typing import Any

from rayfed_ssl.config.choices import PARTITION
from rayfed_ssl.config.recipes import SCALAR_MEANS, read_recipe, set_value
from rayfed_ssl.config.schema import Config, apply_overrides, takes_text
from rayfed_ssl.config.sections import BITS, Engine
from rayfed_ssl.data.datasets import DATASETS
from rayfed_ssl.data.decoding import MAX_PIXELS
from rayfed_ssl.data.partitions import PARTITIONS
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.evaluation.protocols import Transfer
from rayfed_ssl.evaluation.registry import BEST, PROTOCOLS
from rayfed_ssl.foreign.parquet import MAX_BYTES
from rayfed_ssl.foreign.reading import read_bytes
from rayfed_ssl.records.config_file import refuse_fetching
from rayfed_ssl.training.optimizers import BETAS
from tune.studies.definition.layers import Then
from tune.studies.definition.schema import HELD_OUT
from tune.studies.definition.space import Point
from tune.studies.definition.study import Study

ADDED: Mapping[str, Any] = {
    **dict.fromkeys(("data.validation", "data.image", "data.label")),
    "model.pretrained": False,
    "training.optimizer.betas": list(BETAS),
    "training.optimizer.exclude_1d": False,
    "data.max_pixels": MAX_PIXELS,
    "evaluation.probe": "end",
}
"""Keys that earlier versions did not have: runs with these values keep the names that those versions gave them."""


@dataclass(frozen=True, eq=False)
class TrialRun:
    """A run that a trial needs; it starts from the encoder of `first`, which its configuration does not name."""

    config: Config
    first: "TrialRun | None" = None

    @cached_property
    def name(self) -> str:
        """The name of its directory."""
        return run_name(self.config, None if self.first is None else self.first.name)

    def placed(self, config: Config, folder: Path) -> Config:
        """Add where the first run lies, in a directory of runs, to its own configuration or one that was changed."""
        if self.first is None:
            return config
        return Config.load(config.dump(), ("model.start", str((folder / self.first.name).resolve())))


RUN = re.compile(r".*-s(\d+)-[0-9a-f]{10}")
"""The name of a run's directory, with its seed."""


def run_name(config: Config, first: str | None = None) -> str:
    """Name a run's directory for its system, its seed and all that decides its bits; it starts from the run `first`."""
    settings = {key: value for key, value in config.dump().items() if key != "engine"} | {"needs": first}
    usual, engine = Engine().model_dump(mode="json"), config.dump()["engine"]
    for path, value in ADDED.items():
        *sections, key = path.split(".")
        section = reduce(getitem, sections, settings)
        if section.get(key, value) == value:
            section.pop(key, None)
    with suppress(OSError):  # the run says what is wrong with its file
        if file := _partition_file(config):
            settings["partition"]["sha256"] = hashlib.sha256(read_bytes(file, MAX_BYTES)).hexdigest()
    settings |= {f"engine.{key}": engine[key] for key in BITS if engine[key] != usual[key]}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]
    return f"{config.system}-s{config.seed}-{digest}"


def _partition_file(config: Config) -> Path | None:
    """Find the file whose contents decide a partition: the indices, or the module of a function from outside."""
    name = config.partition.name
    if name == "file":
        return Path(config.partition.path)
    source = None if name in PARTITIONS else inspect.getsourcefile(inspect.unwrap(PARTITION.target(name)))
    return Path(source) if source else None


THEN = "then."
"""Prefix of a user's settings of second runs."""


def second_config(first: Config, then: Then, overrides: Sequence[str] = (), *, trust: bool = True) -> Config:
    """Resolve a second run, on the data, shards and architecture of the first, without what it starts from.

    Of the user's settings those apply that start with "then.".
    """
    tree, dump = read_recipe(then.recipe, takes_text), first.dump()
    tree |= {key: dump[key] for key in ("seed", "data", "partition", "engine")}
    tree["clients"] = tree.get("clients", {}) | {key: dump["clients"][key] for key in ("number", "models")}
    tree["model"] = {key: dump["model"][key] for key in ("encoder", "stem", "image_size")}
    for key, value in then.settings.items():
        set_value(tree, key, value)
    return Config.load(tree, *(text.removeprefix(THEN) for text in overrides if text.startswith(THEN)), trust=trust)


def run_of(study: Study, point: Point, seed: int) -> TrialRun:
    """Resolve the run that gives a trial's result, with the run that it starts from."""
    first, cell = config_of(study, point, seed), study.cell(point)
    if cell.then is None:
        return TrialRun(first)
    second = second_config(first, cell.then, study.overrides, trust=study.trusted)
    return TrialRun(second, TrialRun(first) if cell.pretrained else None)


def config_of(study: Study, point: Point, seed: int) -> Config:
    """Resolve what a trial runs first."""
    tree = settings_of(study, point, seed)
    if "executor" not in (tree.get("engine") or {}):
        set_value(tree, "engine.executor", "local")
    config = Config.load(tree, trust=study.trusted, recipe=Path(str(study.cell(point).recipe or study.recipe)).stem)
    if not study.trusted:
        refuse_fetching(study.name, config, study.overrides)
    return config


def settings_of(study: Study, point: Point, seed: int) -> dict[str, Any]:
    """Collect a trial's settings as a recipe has them, with what the study measures, but not where they are computed."""
    cell = study.cell(point)
    recipe = cell.recipe or study.recipe
    assert recipe is not None  # as the file has been checked
    tree = read_recipe(study.directory / recipe if Path(recipe).suffix in (".yaml", ".yml") else recipe, takes_text)
    for settings in (study.settings, *cell.settings, study.settings_at(point)):
        for key, value in settings.items():
            set_value(tree, key, value)
    apply_overrides(tree, [override for override in study.overrides if not override.startswith(THEN)])
    _refuse_canceled(study, tree, point)
    set_value(tree, "seed", seed)
    _measure_what_decides(study, tree)
    _find_from(study.directory, tree)
    return tree


def _find_from(base: Path, tree: dict[str, Any]) -> None:
    """Make paths absolute: a trial's process has another working directory, and a resuming process may have one too."""

    def absolute(path: str, dataset: object = None) -> str:
        place = (base / Path(path).expanduser()).resolve()
        info = DATASETS.get(str(dataset))
        is_name = info is not None and info.is_remote and not place.exists()
        return path if is_name or "://" in path else str(place)

    paths = ("data.path", "partition.path", "model.start", "engine.checkpoints", "engine.shared")
    for section, key in (path.split(".") for path in paths):
        entry = tree.get(section)
        if isinstance(entry, dict) and isinstance(entry.get(key), str):
            entry[key] = absolute(entry[key], entry.get("name") if section == "data" else None)
    if isinstance(tree.get("public"), str):
        name, _, rest = tree["public"].partition(":")
        path, _, count = rest.rpartition(":")
        tree["public"] = f"{name}:{absolute(path, name)}:{count}" if path else tree["public"]
    measured = tree.get("evaluation")
    changed = measured.get("settings") if isinstance(measured, dict) else None
    for protocol in changed.values() if isinstance(changed, dict) else ():
        if isinstance(protocol, dict) and isinstance(protocol.get("dataset"), str):
            name, colon, path = protocol["dataset"].partition(":")
            protocol["dataset"] = f"{name}:{absolute(path, name)}" if path else name + colon


def _refuse_canceled(study: Study, tree: Mapping[str, Any], point: Point) -> None:
    """Refuse settings that undo a point's values, so that no trial is shown under values that it did not have."""
    for key, value in study.settings_at(point).items():
        node: Any = tree
        for part in key.split("."):
            node = node.get(part, MISSING) if isinstance(node, Mapping) else MISSING
        if not _holds(node, value, key):
            cause = ", ".join(study.overrides) or "see set and space"
            got = "is not set" if node is MISSING else f"has come to {node!r}"
            raise ConfigError(
                f"{key} is varied and {value!r} here, but {got}: another setting undoes it ({cause}); leave one of them out"
            )


MISSING = object()


def _holds(setting: Any, value: Any, key: str) -> bool:
    """Whether a setting is as a point has it; a section may have got more fields."""
    if isinstance(setting, Mapping) and isinstance(value, Mapping):
        return all(_holds(setting.get(name, MISSING), field, "") for name, field in value.items())
    if isinstance(setting, Mapping) and isinstance(value, str | int):
        return bool(setting.get(SCALAR_MEANS.get(key.rpartition(".")[2], "name")) == value)
    return setting is not MISSING and bool(setting == value)


def _measure_what_decides(study: Study, tree: dict[str, Any]) -> None:
    """Switch on what the study's goals and its early stopping look at."""
    if study.selects_on == "test":
        set_value(tree, "data.validation", None)
    elif not isinstance(tree.get("data"), Mapping) or tree["data"].get("validation") is None:
        set_value(tree, "data.validation", HELD_OUT)
    names, measured = [goal.score for goal in study.goals], tree.get("evaluation")
    measured = measured if isinstance(measured, Mapping) else {}  # anything else is refused with the configuration
    if any(name.startswith("diag_") for name in names) and not measured.get("diagnostics"):
        set_value(tree, "evaluation.diagnostics", tree.get("rounds", 2))
    asked = [name for goal in names if (name := goal.removesuffix(BEST)) in PROTOCOLS and name not in ("knn", "linear")]
    others = [name for name in asked if isinstance(PROTOCOLS[name], Transfer)]
    if others and study.selects_on == "validation":
        raise ConfigError(
            f"{others[0]} is measured on another dataset's test set, which must not choose: set selection: test, or another "
            "goal"
        )
    listed = measured.get("protocols") or []
    listed = [listed] if isinstance(listed, str) else listed
    if isinstance(listed, list) and (more := [name for name in asked if name not in listed]):
        set_value(tree, "evaluation.protocols", [*listed, *more])
    if study.stop is not None:
        kind = "diagnostics" if study.stop_goal.score.startswith("diag_") else "every"
        set_value(tree, f"evaluation.{kind}", study.stop.grace)
