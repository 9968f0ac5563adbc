"""What client actors and the server actor have in common: the run's federation, on a machine with the driver's versions."""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch

from actors.cluster.stale_sessions import MPS_PIPE
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.arithmetic import Arithmetic, different
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.gpu_memory import release
from rayfed_ssl.engine.steps import Steps
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.foreign import plugins
from rayfed_ssl.machine.environment import cpu_model, environment

COMPARED = ("python", "ray", "torch", "rayfed-ssl")
"""Packages that must have the same version on all machines."""

Versions = Mapping[str, str | None]


class FederationActor:
    """Opens the run's federation when it is first needed.

    `config` is the run's configuration as plain data, `versions` and `working_directory` are the driver's.
    """

    def __init__(self, config: dict[str, Any], versions: Versions | None = None, working_directory: str = "") -> None:
        plugins.import_from(working_directory)
        self._versions = versions or {}
        self._config = Config.load(config)

    @cached_property
    def steps(self) -> Steps:
        """The steps that this actor runs."""
        return Steps(self._federation)

    @cached_property
    def _federation(self) -> Federation:
        check_versions(self._versions)
        return Federation.open(self._config)

    def arithmetic(self) -> Arithmetic:
        """Say how this process computes a client's step."""
        try:
            return Arithmetic.of(self._federation.task, self._config.engine)
        finally:
            release()

    def ready(self) -> str:
        """Open the data, so that errors are known before the first round, and describe the hardware."""
        return hardware(self._federation.task.device)


@contextmanager
def ending_without_gpu() -> Iterator[None]:
    """After an error, end this process if its GPU is lost to it, so that the driver starts another and repeats the work.

    All processes that share a GPU by MPS lose it when MPS dies or one of them commits a fatal error: no CUDA call works.
    """
    try:
        yield
    except Exception:
        if MPS_PIPE in os.environ and torch.cuda.is_initialized():
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                os._exit(1)
        raise


def local_versions() -> Versions:
    """List this process's versions; builds of torch for CPU and GPU count as one, as the driver computes nothing."""
    versions = environment()["versions"]
    return {name: versions[name] and versions[name].partition("+")[0] for name in COMPARED}


def check_versions(driver: Versions, local: Versions | None = None) -> None:
    """Raise `ConfigError` if this process has other versions than the driver."""
    local = local_versions() if local is None else local
    if different := [name for name in driver if local.get(name) != driver[name]]:
        ours, theirs = (", ".join(f"{name} {of.get(name)}" for name in different) for of in (local, driver))
        raise ConfigError(f"{socket.gethostname()} has {ours} where the driver has {theirs}")


def hardware(device: torch.device) -> str:
    """Describe what else results depend on: the processor, torch's build, and the GPU if this process computes on one."""
    parts = [cpu_model(), torch.backends.cpu.get_cpu_capability(), f"torch {torch.__version__}"]
    return ", ".join(parts + ([torch.cuda.get_device_name(device)] if device.type == "cuda" else []))


def hardware_warning(descriptions: Sequence[str], fingerprints: Mapping[str, Mapping[str, str]]) -> str | None:
    """Warn that actors' hardware computes other bits, by one fingerprint of each description; None if it does not."""
    first, *others = fingerprints.values()
    if not (operations := sorted({name for other in others for name in different(first, other)})):
        return None
    counts = "; ".join(f"{descriptions.count(kind)} on {kind}" for kind in sorted(fingerprints))
    return (
        f"actors run on different hardware ({counts}), which computes other bits ({', '.join(operations)}): the results "
        "depend on which actor runs which step"
    )
