"""`rayfed-ssl list`: what can be named in a configuration."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rayfed_ssl.data.augmentation import Views
    from tune.sweeps.definition.schema import Sweep


def list_names(
    kind: Annotated[
        str,
        typer.Argument(
            help="methods, objectives, datasets, partitions, models, views, protocols, recipes, reproductions or sweeps"
        ),
    ],
) -> None:
    """List what can be named in a configuration."""
    from rayfed_ssl.errors import ConfigError, nearest
    from tune.terminal import print_table

    if kind not in LISTS:
        raise ConfigError(f"there is no list of {kind!r}{nearest(kind, LISTS)}")
    print_table(("name", "what it is"), LISTS[kind]().items(), text=2)


def _summary(target: Any) -> str:
    from rayfed_ssl.plugins import summary

    return summary(target)


def _methods() -> dict[str, str]:
    from rayfed_ssl.config.choices import METHOD
    from rayfed_ssl.methods import METHODS

    installed = {name: _summary(METHOD.target(name)) for name in METHOD.names() if name not in METHODS}
    return {name: info.summary for name, info in METHODS.items()} | installed


def _objectives() -> dict[str, str]:
    from rayfed_ssl.config.choices import OBJECTIVE
    from rayfed_ssl.training.state_parts import Parts, describe

    chosen = {name: OBJECTIVE.target(name) for name in OBJECTIVE.names()}
    return {name: f"{_summary(kind)}: {describe(Parts().over(kind.parts))}" for name, kind in chosen.items()}


def _partitions() -> dict[str, str]:
    from rayfed_ssl.config.choices import PARTITION

    return {name: _summary(PARTITION.target(name)) for name in PARTITION.names()}


def _datasets() -> dict[str, str]:
    from rayfed_ssl.data.datasets import DATASETS, dataset_info
    from rayfed_ssl.plugins import names

    return {name: dataset_info(name).description for name in names("dataset", DATASETS)}


def _models() -> dict[str, str]:
    from rayfed_ssl.models import ENCODERS, encoder_info
    from rayfed_ssl.plugins import names

    return {name: encoder_info(name).description for name in names("encoder", ENCODERS)}


def _views() -> dict[str, str]:
    from rayfed_ssl.data.augmentation import VIEWS

    return {name: _describe_views(views) for name, views in VIEWS.items()}


def _describe_views(views: "Views") -> str:
    first = views.first
    parts = [f"crop {first.crop_scale[0]:g}-{first.crop_scale[1]:g}"] if first.crop_scale else []
    parts += ["flip"] if first.flip else []
    parts += [f"jitter {'/'.join(f'{strength:g}' for strength in first.jitter)}"] if first.jitter else []
    parts += [name for name in ("grayscale", "blur", "solarize", "rotation") if getattr(first, name)]
    return ", ".join(parts) + ("" if views.first == views.second else "; second view differs")


def _protocols() -> dict[str, str]:
    from rayfed_ssl.evaluation.registry import PROTOCOLS

    return {name: f"{protocol.description}; {protocol.source}" for name, protocol in PROTOCOLS.items()}


def _recipes() -> dict[str, str]:
    from importlib import resources

    from rayfed_ssl.config.recipes import recipe_names

    folder = resources.files("rayfed_ssl.recipes")
    comments = {name: folder.joinpath(f"{name}.yaml").read_text().splitlines()[0] for name in recipe_names()}
    return {name: comment.lstrip("# ").rstrip(".") for name, comment in comments.items()}


def _reproductions() -> dict[str, str]:
    from rayfed_ssl.reproductions.definition import read_reproduction, reproduction_names

    return {name: read_reproduction(name).title for name in reproduction_names()}


def _sweeps() -> dict[str, str]:
    from tune.sweeps.definition.files import load_sweep, sweep_names

    return {name: _describe_sweep(load_sweep(name)) for name in sweep_names()}


def _describe_sweep(sweep: "Sweep") -> str:
    after = f", after {sweep.begin.sweep}" if sweep.begin else ""
    return f"{sweep.heading}: {sweep.num_trials} trials x {len(sweep.seeds)} seed{'s' * (len(sweep.seeds) > 1)}{after}"


LISTS: Mapping[str, Callable[[], dict[str, str]]] = {
    "methods": _methods,
    "objectives": _objectives,
    "datasets": _datasets,
    "partitions": _partitions,
    "models": _models,
    "views": _views,
    "protocols": _protocols,
    "recipes": _recipes,
    "reproductions": _reproductions,
    "sweeps": _sweeps,
}
