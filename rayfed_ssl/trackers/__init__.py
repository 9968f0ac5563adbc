"""Trackers, which show a run while it goes on: TensorBoard, Weights & Biases, MLflow, through their own libraries.

They are told by the process that drives the run, after its record. What they show is the record, so nothing is lost where
one fails: a later `rayfed-ssl resume RUN engine.trackers=...` hands it all that it does not have.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from rayfed_ssl.config.schema import Config
from rayfed_ssl.errors import ConfigError

Ending = Literal["finished", "interrupted", "failed"]


class Subject(NamedTuple):
    """The run that a tracker follows.

    Attributes:
        directory: Its record.
        config: Its configuration, as plain data.
        round: The committed round that it goes on from, 0 at the start.
        identity: What the tracker was known by when it followed this run before, or None.
    """

    directory: Path
    config: Mapping[str, Any]
    round: int
    identity: str | None


class Tracker(Protocol):
    """What follows a run.

    Attributes:
        identity: What it can be found by when the run is resumed.
        continues: Whether it holds what an earlier process has logged.
        rewinds: Whether it forgets what it had of rounds that are run again.
    """

    identity: str
    continues: bool
    rewinds: bool

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Take numbers of a round; when this returns, they outlive the process."""

    def show(self, round: int, figures: Mapping[str, Path]) -> None:
        """Take figures by name, PNG files."""

    def close(self, ending: Ending) -> None:
        """Say how the run ended."""


class Library(NamedTuple):
    """A tracker's package and the module that knows it."""

    package: str
    module: str

    @property
    def installed(self) -> bool:
        """Whether it can be imported; a mere folder of that name, as W&B and MLflow make them, is no package."""
        spec = find_spec(self.package)
        return spec is not None and spec.origin is not None


LIBRARIES: Mapping[str, Library] = MappingProxyType(
    {
        "tensorboard": Library("tensorboard", "rayfed_ssl.trackers.tensorboard"),
        "wandb": Library("wandb", "rayfed_ssl.trackers.wandb"),
        "mlflow": Library("mlflow", "rayfed_ssl.trackers.mlflow"),
    }
)


def chosen(config: Config) -> tuple[str, ...]:
    """Name the trackers that follow a run; without a wish, TensorBoard where it is installed.

    Raises:
        ConfigError: One that is wished for is not installed.
    """
    wished = config.engine.trackers
    if wished == "auto":
        return ("tensorboard",) if LIBRARIES["tensorboard"].installed else ()
    for name in wished:
        if not LIBRARIES[name].installed:
            raise ConfigError(
                f"engine.trackers names {name}, but its package {LIBRARIES[name].package} is not installed: run "
                f"`pip install 'rayfed-ssl[{name}]'`"
            )
    return tuple(wished)


def opener(name: str) -> Callable[[Subject], Tracker]:
    """Find what opens a tracker; its library is imported now and not before."""
    opened: Callable[[Subject], Tracker] = import_module(LIBRARIES[name].module).open_tracker
    return opened
