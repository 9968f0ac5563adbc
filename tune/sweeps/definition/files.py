"""Sweep files: what is varied, how it is searched and what is shown, as YAML.

    title      what the sweep shows
    source     where it comes from, for example "FLESD, Figure 4"
    notes      what a reader has to know, a line each
    recipe     a recipe's name or file; may be left out where every variant names one
    set        key of the configuration -> value, the same in all trials
    space      what is varied, as `tune/sweeps/definition/spaces.py` describes it
    seeds      how many, or which: a trial is run once for each, and its result is their mean
    maximize   a score or several: "linear", "knn", a protocol's or a diagnostic's name; the default is linear
    minimize   the same, or "bytes", "bytes_up", "bytes_down". Two goals in all make a Pareto front
    take       of which encoder: global, mean, minimum or client-3; default: the global one if there is one, else the mean
    selection  validation (default): a part of the training samples, which no client gets, takes the test set's place;
               test: scores are of the test set, as the papers choose them
    search     grid (default), random, tpe or nsga2, or {name: tpe, ...} with settings of Optuna's sampler
    trials     how many; a grid has as many as points
    generation how many trials are chosen at a time, from the results of those before: 8 unless it is said. It decides
               what is tried; how many run side by side does not
    stop       stop trials early: {rule: asha, grace: 1, reduction: 4} or {rule: median, grace: 1, every: 1, samples: 3},
               both with `score` (default: the goal if it is measured in every round, else knn). Ray Tune's rules
    table      {rows: parameter, columns: parameter}; default: the first two
    figure     {x: parameter, lines: parameter, panels: parameter}, all but x may be left out
    begin      {sweep: name, where: {parameter: value}, take: [key, ...]}: settings that come from the best trial of another
               sweep, whose directory --begin names

A trial runs the recipe (the variant's, else the file's), changed by `set`, the variants, its point and last the user.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from rayfed_ssl.config.recipes import read_recipe
from rayfed_ssl.errors import ConfigError, nearest
from tune.sweeps.definition.space_files import read_space
from tune.sweeps.definition.spaces import Choice, Space
from tune.sweeps.definition.sweep import BYTES, EVERY_ROUND, GENERATION, SEARCHES, Begin, Goal, Layout, Stop, Sweep


def changed(sweep: Sweep, overrides: Sequence[str]) -> Sweep:
    """Apply a user's settings: those of the sweep itself (trials=20, seeds=3, search=random), and of all trials.

    Raises:
        ConfigError: A setting is one of the parameters.
    """
    own = {"trials", "seeds", "generation", "selection", "search"}
    mine: dict[str, Any] = {}
    others = list(sweep.overrides)
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"a setting looks like key=value, got {text!r}")
        if key in sweep.space.names:
            raise ConfigError(f"{key} is what {sweep.name} varies: narrow it with {key}=[...] in a file of your own")
        if key in own:
            mine[key] = yaml.safe_load(value)
        else:
            others.append(text)
    seeds = _seeds(mine.pop("seeds")) if "seeds" in mine else sweep.seeds
    search, sampler = _search(mine.pop("search")) if "search" in mine else (sweep.search, sweep.sampler)
    changed = replace(sweep, seeds=seeds, search=search, sampler=sampler, overrides=tuple(others), **mine)
    _check(changed)
    return changed


def sweep_names() -> list[str]:
    """Name the sweeps that come with the package."""
    folder = resources.files("tune.sweeps.shipped")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def read_sweep(name: str) -> dict[str, Any]:
    """Read a sweep's file, one of the package's by name or another by its path, as plain data.

    Raises:
        ConfigError: There is none.
    """
    if Path(name).suffix in (".yaml", ".yml"):
        return read_recipe(name)
    if name not in sweep_names():
        raise ConfigError(f"there is no sweep {name!r}{nearest(name, sweep_names())}: see `rayfed-ssl list sweeps`")
    tree = yaml.safe_load(resources.files("tune.sweeps.shipped").joinpath(f"{name}.yaml").read_text())
    assert isinstance(tree, dict)
    return tree


def load_sweep(source: str | Mapping[str, Any], *overrides: str, name: str | None = None) -> Sweep:
    """Read a sweep by name, by file or as plain data.

    Args:
        source: What to read.
        overrides: A user's settings, "key=value".
        name: What it is called where it is plain data.

    Raises:
        ConfigError: There is no such sweep, or it does not fit together; the message names the key.
    """
    tree = dict(source) if isinstance(source, Mapping) else read_sweep(source)
    called = name or (Path(source).stem if isinstance(source, str) else "sweep")
    try:
        return changed(_sweep(called, tree), overrides)
    except ConfigError as error:
        raise ConfigError("\n".join(f"{called}: {line}" for line in str(error).splitlines())) from None
    except (
        TypeError,
        AttributeError,
        LookupError,
        ArithmeticError,
        ValueError,
        RecursionError,
        yaml.YAMLError,
    ) as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"{called}: this does not have the form of a sweep ({why}): see docs/sweeps.md") from None


_TAKES = re.compile(r"global|mean|minimum|client-(0|[1-9][0-9]*)")

_KEYS = (
    *("title", "source", "notes", "recipe", "set", "space", "seeds", "maximize", "minimize", "take", "selection"),
    *("search", "trials", "generation", "stop", "table", "figure", "begin"),
)


def _sweep(name: str, tree: Mapping[str, Any]) -> Sweep:
    for key in tree:
        if key not in _KEYS:
            raise ConfigError(f"a sweep has no key {key!r}{nearest(str(key), _KEYS)}")
    if "space" not in tree:
        raise ConfigError("space is missing: it says what is varied")
    space, goals = read_space(tree["space"]), _goals(tree)
    search, sampler = _search(tree.get("search", "grid"))
    settings = _mapping("set", tree.get("set"))
    for key in settings:
        if key in space.names:
            raise ConfigError(f"set.{key} is varied as well: leave it out of set or of space")
    for one in space.free:
        for named, variant in one.variants.items() if isinstance(one, Choice) else ():
            for key in variant.settings:
                if key in (*space.names, "seed"):
                    what = "a seed is a repeat: set seeds" if key == "seed" else "leave it out of one of both"
                    raise ConfigError(f"space, {one.name}: variant {named} sets {key}, which is varied as well: {what}")
    recipe = tree.get("recipe")
    if not isinstance(recipe, str | None):
        raise ConfigError(f"recipe is a name or a file, got {recipe!r}")
    return Sweep(
        name=name,
        title=str(tree.get("title") or name),
        space=space,
        recipe=recipe,
        settings=settings,
        seeds=_seeds(tree.get("seeds", 1)),
        goals=goals,
        take=_take(tree.get("take")),
        selection=tree.get("selection", "validation"),
        search=search,
        sampler=sampler,
        trials=tree.get("trials"),
        generation=tree.get("generation", GENERATION),
        stop=_stop(tree.get("stop"), goals),
        layout=_layout(tree, space),
        begin=_begin(tree.get("begin")),
        source=str(tree.get("source") or ""),
        notes=_notes(tree.get("notes")),
    )


def _check(sweep: Sweep) -> None:
    if any(
        key == "seed" for key in (*sweep.space.names, *sweep.settings, *(o.partition("=")[0] for o in sweep.overrides))
    ):
        raise ConfigError("a seed is a repeat and no parameter: set seeds")
    if sweep.selection not in ("validation", "test"):
        raise ConfigError(f"selection is validation or test, got {sweep.selection!r}")
    for key in ("trials", "generation"):
        value = getattr(sweep, key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ConfigError(f"{key} is a whole number of at least 1, got {value!r}")
    if sweep.search == "grid":
        sweep.space.grid()
        if sweep.trials is not None:
            raise ConfigError(f"a grid has as many trials as points, got trials: {sweep.trials}: remove it")
    elif sweep.trials is None:
        raise ConfigError(f"search: {sweep.search} needs a number of trials: set trials")
    if len(sweep.goals) > 1 and sweep.stop is not None:
        raise ConfigError("stop needs one goal, and there are several: remove stop or all but one goal")
    if len(sweep.goals) > 1 and sweep.search == "tpe":
        raise ConfigError("several goals are searched by nsga2, random or grid, got search: tpe")
    if sweep.recipe is None and not any(
        isinstance(one, Choice) and one.variants and all(v.recipe for v in one.variants.values()) and not one.when
        for one in sweep.space.free
    ):
        raise ConfigError("recipe is missing: name one, or one in each variant")


def _notes(entry: Any) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else tuple(map(str, entry or ()))


def _take(entry: Any) -> str | None:
    if entry is not None and not (isinstance(entry, str) and _TAKES.fullmatch(entry)):
        raise ConfigError(f"take is global, mean, minimum or a client as client-3, got {entry!r}")
    return entry


def _mapping(key: str, entry: Any) -> dict[str, Any]:
    if entry is None:
        return {}
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{key} maps keys of the configuration to values, got {entry!r}")
    return {str(name): value for name, value in entry.items()}


def _seeds(entry: Any) -> tuple[int, ...]:
    seeds = tuple(range(entry)) if isinstance(entry, int) and not isinstance(entry, bool) else entry
    whole = isinstance(seeds, list | tuple) and all(
        isinstance(s, int) and not isinstance(s, bool) and 0 <= s < 2**63 for s in seeds
    )
    if not whole or not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds is how many there are, or a list of different ones, got {entry!r}")
    return tuple(seeds)


def _goals(tree: Mapping[str, Any]) -> tuple[Goal, ...]:
    found = []
    for key, maximize in (("maximize", True), ("minimize", False)):
        entry = tree.get(key, [])
        names = [entry] if isinstance(entry, str) else entry
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise ConfigError(f"{key} names a score or several, got {entry!r}")
        found += [Goal(name, maximize) for name in names]
    for goal in found:
        if goal.maximize and goal.score in BYTES:
            raise ConfigError(f"{goal.score} are to be minimized, got maximize")
    if len({goal.score for goal in found}) < len(found):
        raise ConfigError(f"each goal counts once, got {', '.join(goal.score for goal in found)}")
    return tuple(found) or (Goal("linear", True),)


def _search(entry: Any) -> tuple[str, Mapping[str, Any]]:
    named = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(named, Mapping) or named.get("name") not in SEARCHES:
        got = named.get("name") if isinstance(named, Mapping) else entry
        raise ConfigError(f"search is one of {', '.join(SEARCHES)}, got {got!r}{nearest(str(got), SEARCHES)}")
    settings = {str(key): value for key, value in named.items() if key != "name"}
    seed = settings.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise ConfigError(f"search.seed is a whole number from 0, so that the sweep can be gone on with, got {seed!r}")
    return str(named["name"]), settings


_STOP = {"asha": ("rule", "grace", "reduction", "score"), "median": ("rule", "grace", "every", "samples", "score")}


def _stop(entry: Any, goals: Sequence[Goal]) -> Stop | None:
    if entry is None:
        return None
    tree = {"rule": entry} if isinstance(entry, str) else entry
    if not isinstance(tree, Mapping) or tree.get("rule") not in _STOP:
        raise ConfigError(f"stop has a rule, asha or median, got {entry!r}")
    for key, value in tree.items():
        if key not in _STOP[tree["rule"]]:
            raise ConfigError(f"stop: {tree['rule']} has no {key!r}{nearest(str(key), _STOP[tree['rule']])}")
        least = 2 if key == "reduction" else 1
        if key not in ("rule", "score") and (
            not isinstance(value, int) or isinstance(value, bool) or not least <= value < 10**6
        ):
            raise ConfigError(f"stop.{key} is a whole number of at least {least} and below a million, got {value!r}")
    fields: dict[str, Any] = {"score": goals[0].score if _is_of_every_round(goals[0].score) else "knn", **tree}
    if not isinstance(fields["score"], str) or not _is_of_every_round(fields["score"]):
        raise ConfigError(
            f"stop.score is one of every round: {', '.join(EVERY_ROUND)} or a diagnostic (diag_...), got {fields['score']!r}"
        )
    return Stop(**fields, maximize=_direction(fields["score"], goals))


_BETTER = {"knn": True, "supervised": True, "diag_feature_std": True, "diag_effective_rank": True} | dict.fromkeys(
    (*BYTES, "diag_alignment", "diag_uniformity"), False
)
"""Scores of which it is known whether more is better; of alignment and uniformity less is (Wang and Isola 2020)."""


def _direction(score: str, goals: Sequence[Goal]) -> bool:
    for goal in goals:
        if goal.score == score:
            return goal.maximize
    if score not in _BETTER:
        raise ConfigError(
            f"stop.score={score} is not known to be better if it is more, or less, unless it is the goal: take "
            f"{', '.join(_BETTER)}"
        )
    return _BETTER[score]


def _is_of_every_round(score: str) -> bool:
    return score in EVERY_ROUND or score.startswith("diag_")


def _layout(tree: Mapping[str, Any], space: Space) -> Layout:
    known = [*space.names, "seed"]
    found: dict[str, str] = {}
    for key, parts in (("table", ("rows", "columns")), ("figure", ("x", "lines", "panels"))):
        entry = _mapping(key, tree.get(key))
        for part, name in entry.items():
            if part not in parts:
                raise ConfigError(f"{key} takes {', '.join(parts)}, got {part!r}")
            if name not in known:
                raise ConfigError(f"{key}.{part} is no parameter: {name!r}{nearest(str(name), known)}")
            found[part] = name
    shown = [one.name for one in space.free]
    if "rows" not in found and "columns" not in found:
        found |= dict(zip(("rows", "columns"), shown, strict=False))
    return Layout(**found)


def _begin(entry: Any) -> Begin | None:
    if entry is None:
        return None
    tree = _mapping("begin", entry)
    if set(tree) - {"sweep", "where", "take"} or "sweep" not in tree or not isinstance(tree.get("take"), list):
        raise ConfigError(f"begin takes sweep, where and a list `take`, got {entry!r}")
    return Begin(str(tree["sweep"]), _mapping("begin.where", tree.get("where")), tuple(map(str, tree["take"])))
