"""Versions, which must be the same on all machines of a run, and hardware, which may change its results."""

import socket
from collections.abc import Mapping, Sequence

import torch

from rayfed_ssl.environment import cpu_model, environment
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.processor import is_portable

COMPARED = ("python", "ray", "torch", "rayfed-ssl")
"""Packages that must have the same version on all machines."""

Versions = Mapping[str, str | None]


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
    processor = ["portable"] if is_portable() else [cpu_model(), torch.backends.cpu.get_cpu_capability()]
    parts = [*processor, f"torch {torch.__version__}"]
    return ", ".join(parts + ([torch.cuda.get_device_name(device)] if device.type == "cuda" else []))


def hardware_warning(descriptions: Sequence[str]) -> str | None:
    """Warn that actors run on different hardware; None if it is the same."""
    kinds = sorted(set(descriptions))
    if len(kinds) < 2:
        return None
    counts = "; ".join(f"{descriptions.count(kind)} on {kind}" for kind in kinds)
    return f"actors run on different hardware ({counts}): results may differ between machines with different hardware"
