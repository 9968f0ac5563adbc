"""`rayfed-ssl list`: what can be named in a configuration."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated

import typer

from tune.terminal import print_table


def list_names(
    kind: Annotated[
        str,
        typer.Argument(
            help="methods, objectives, optimizers, datasets, partitions, models, views, protocols, adapters, rules, "
            "adversaries, attacks, recipes, reproductions, sweeps or benchmarks"
        ),
    ] = "",
) -> None:
    """List what can be named in a configuration."""
    from rayfed_ssl.errors import ConfigError, nearest

    if not kind:
        raise ConfigError(f"name a list: {', '.join(LISTS)}")
    if kind not in LISTS:
        raise ConfigError(f"there is no list of {kind!r}{nearest(kind, LISTS)}")
    print_table(("name", "what it is"), LISTS[kind]().items(), text=2)


def _configurable(kind: str) -> dict[str, str]:
    """Describe what a key of the configuration can name, installed plug-ins included."""
    from rayfed_ssl.attacks import ATTACK
    from rayfed_ssl.config.choices import ADVERSARY, METHOD, MODEL_ADAPTERS, OBJECTIVE, OPTIMIZER, PARTITION, ROBUST
    from rayfed_ssl.data.datasets import DATASETS, dataset_info
    from rayfed_ssl.data.view_recipes import VIEWS
    from rayfed_ssl.evaluation.registry import PROTOCOLS
    from rayfed_ssl.foreign import plugins
    from rayfed_ssl.methods import METHODS
    from rayfed_ssl.models import ENCODERS, encoder_info
    from rayfed_ssl.training.state_parts import Parts, describe

    def method(name: str) -> str:
        return METHODS[name].summary if name in METHODS else plugins.summary(METHOD.target(name))

    def objective(name: str) -> str:
        target = OBJECTIVE.target(name)
        return f"{plugins.summary(target)}: {describe(Parts().over(target.parts))}"

    def views(name: str) -> str:
        first, second = VIEWS[name].first, VIEWS[name].second
        parts = [f"crop {first.crop_scale[0]:g}-{first.crop_scale[1]:g}"] if first.crop_scale else []
        parts += ["flip"] if first.flip else []
        parts += [f"jitter {'/'.join(f'{strength:g}' for strength in first.jitter)}"] if first.jitter else []
        parts += [name for name in ("grayscale", "blur", "solarize", "rotation") if getattr(first, name)]
        return ", ".join(parts) + ("" if first == second else "; second view differs")

    registries: dict[str, tuple[Iterable[str], Callable[[str], str]]] = {
        "methods": (METHOD.names(), method),
        "objectives": (OBJECTIVE.names(), objective),
        "optimizers": (OPTIMIZER.names(), lambda name: plugins.summary(OPTIMIZER.target(name))),
        "datasets": (plugins.names("dataset", DATASETS), lambda name: dataset_info(name).description),
        "partitions": (PARTITION.names(), lambda name: plugins.summary(PARTITION.target(name))),
        "models": (plugins.names("encoder", ENCODERS), lambda name: encoder_info(name).description),
        "views": (VIEWS, views),
        "protocols": (PROTOCOLS, lambda name: f"{PROTOCOLS[name].description}; {PROTOCOLS[name].source}"),
        "adapters": (MODEL_ADAPTERS.names(), lambda name: plugins.summary(MODEL_ADAPTERS.target(name))),
        "rules": (ROBUST.names(), lambda name: plugins.summary(ROBUST.target(name))),
        "adversaries": (ADVERSARY.names(), lambda name: plugins.summary(ADVERSARY.target(name))),
        "attacks": (ATTACK.names(), lambda name: plugins.summary(ATTACK.target(name))),
    }
    names, summary = registries[kind]
    return {name: summary(name) for name in names}


def _recipes() -> dict[str, str]:
    from rayfed_ssl.config.recipes import recipe_names, shipped_text

    comments = {name: shipped_text("rayfed_ssl.recipes", name).splitlines()[0] for name in recipe_names()}
    return {name: comment.lstrip("# ").rstrip(".") for name, comment in comments.items()}


def _studies(kind: str) -> dict[str, str]:
    from tune.studies.definition.files import read_study_file, study_names
    from tune.studies.definition.schema import StudyFile

    def describe(file: StudyFile) -> str:
        if file.kind != "sweep":
            return f"{file.title}: {len(file.rows)} systems" if file.baseline else str(file.title)
        after = f", after {file.begin.sweep}" if file.begin else ""
        trials, seeds = file.trials or len(file.space.grid()), len(file.seeds)
        return f"{file.title}: {trials} trials x {seeds} seed{'s' * (seeds > 1)}{after}"

    return {name: describe(StudyFile.model_validate(read_study_file(name, kind))) for name in study_names(kind)}


CONFIGURABLE = (
    "methods",
    "objectives",
    "optimizers",
    "datasets",
    "partitions",
    "models",
    "views",
    "protocols",
    "adapters",
    "rules",
    "adversaries",
    "attacks",
)

LISTS: Mapping[str, Callable[[], dict[str, str]]] = {
    **{kind: partial(_configurable, kind) for kind in CONFIGURABLE},
    "recipes": _recipes,
    **{f"{kind}s": partial(_studies, kind) for kind in ("reproduction", "sweep", "benchmark")},
}
