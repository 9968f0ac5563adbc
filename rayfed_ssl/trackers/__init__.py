"""Trackers: TensorBoard, Weights & Biases and MLflow, through their own libraries.

They show what the record holds, so nothing is lost where one fails: `rayfed-ssl resume RUN engine.trackers=...` logs what
it does not have. The module of each tracker has an `open_tracker`, which takes the run's directory and configuration, the
committed round that the run resumes from (0 at the start), and the tracker's `identity` when it followed this run before.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Literal, Protocol

from rayfed_ssl.config.schema import Config
from rayfed_ssl.errors import ConfigError

EndStatus = Literal["finished", "interrupted", "failed"]


class Tracker(Protocol):
    """What follows a run.

    Attributes:
        identity: What it finds the run by when it is resumed.
        continues: Whether it holds what an earlier process has logged.
        rewinds: Whether it forgets what it had of rounds that are run again.
    """

    identity: str
    continues: bool
    rewinds: bool

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Log numbers of a round; when this returns, they outlive the process."""

    def close(self, status: EndStatus) -> None:
        """Finish with the run's status."""


def is_installed(package: str) -> bool:
    """Whether a package can be imported; a mere folder of that name, as W&B and MLflow make them, is none."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def configured_trackers(config: Config) -> tuple[str, ...]:
    """Name the trackers that follow a run; "auto" takes TensorBoard where it is installed.

    Raises:
        ConfigError: One that the configuration names is not installed.
    """
    names = config.engine.trackers
    if names == "auto":
        return ("tensorboard",) if is_installed("tensorboard") else ()
    for name in names:
        if not is_installed(name):
            raise ConfigError(
                f"engine.trackers names {name}, which is not installed: run `pip install 'rayfed-ssl[{name}]'`"
            )
    return tuple(names)
