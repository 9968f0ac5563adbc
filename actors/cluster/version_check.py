"""Machines that must be alike: bits depend on versions, which are refused where they differ, and on hardware."""

import socket
from collections.abc import Mapping, Sequence

import torch

from rayfed_ssl.environment import cpu_model, environment
from rayfed_ssl.errors import ConfigError

COMPARED = ("python", "ray", "torch", "rayfed-ssl")
"""What a run's machines must have the same of."""

Versions = Mapping[str, str | None]


def own_versions() -> Versions:
    """Name the versions of this process; builds of torch for CPU and GPU count as one, as the driver computes nothing."""
    found = environment()["versions"]
    return {name: found[name] and found[name].partition("+")[0] for name in COMPARED}


def refuse_others(driver: Versions, own: Versions | None = None) -> None:
    """Refuse to compute beside a driver of other versions.

    Args:
        driver: The driver's versions.
        own: This process's; None looks them up.

    Raises:
        ConfigError: They differ.
    """
    own = own_versions() if own is None else own
    if other := [name for name in driver if own.get(name) != driver[name]]:
        here, there = (", ".join(f"{name} {found.get(name)}" for name in other) for found in (own, driver))
        raise ConfigError(f"{socket.gethostname()} has {here} where the driver has {there}")


def hardware(device: torch.device) -> str:
    """Describe what else bits depend on: processor and torch's build, and the GPU where this process computes on one."""
    parts = [cpu_model(), torch.backends.cpu.get_cpu_capability(), f"torch {torch.__version__}"]
    return ", ".join(parts + ([torch.cuda.get_device_name(device)] if device.type == "cuda" else []))


def difference(found: Sequence[str]) -> str | None:
    """Say that actors run on different hardware; None where all is alike."""
    kinds = sorted(set(found))
    if len(kinds) < 2:
        return None
    listed = "; ".join(f"{found.count(kind)} on {kind}" for kind in kinds)
    return f"actors run on different hardware ({listed}): the run's bits depend on who computes what, and do not come again"
