"""From a run and the machines to a placement; what cannot fit is refused as early as possible."""

from collections.abc import Sequence
from typing import Any, Literal

from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.cluster.connect import memory_ahead, starts_private_ray
from actors.cluster.machine import Node, this_machine
from actors.cluster.mps import MAX_CLIENTS, PROGRAM, is_available, is_joined
from actors.errors import ClusterError
from actors.placement.actor_cost import ActorCost
from actors.placement.allocation import Placement, allocate
from rayfed_ssl.capacity.client_cost import step_cost
from rayfed_ssl.config.sections import Engine
from rayfed_ssl.engine.federation import Federation

Mps = Literal["off", "joined", "auto", "on"]
"""The MPS of a run's actors: none, the user's, or a private Ray's, without which the run continues ("auto") or not."""


def plan(federation: Federation, nodes: Sequence[Node], *, mps: bool = False) -> Placement:
    """Compute the placement of a run's client actors, with or without MPS, or raise `ClusterError` if they do not fit."""
    use_gpu = _uses_gpu(federation, nodes)
    cost = ActorCost.of(step_cost(federation, "cuda" if use_gpu else "cpu"))
    return allocate(federation.config.engine, len(federation.client_ids), nodes, use_gpu=use_gpu, cost=cost, mps=mps)


def check_fits(federation: Federation, address: str | None) -> tuple[Mps, int | None]:
    """Raise `ClusterError` for what cannot be before a private Ray is started, which takes seconds.

    Returns the MPS that actors get, and how many workers a private Ray needs: the client actors and the server.
    """
    asked, num_workers = federation.config.engine.mps, None
    obstacle = "it is started with a Ray of the run's own, and this one runs already: start it as docs/cluster.md says"
    if starts_private_ray(address):
        machine = this_machine(memory_ahead())
        placement = plan(federation, [machine], mps=can_have_mps(federation.config.engine))
        obstacle, num_workers = mps_obstacle(placement), placement.num_actors + 1
    if asked == "off":
        return "off", num_workers
    if is_joined():
        return "joined", num_workers
    if obstacle and asked == "on":
        raise ClusterError(f"engine.mps=on asks for NVIDIA's MPS, but {obstacle}, or leave engine.mps out")
    return "off" if obstacle else asked, num_workers


def can_have_mps(engine: Engine) -> bool:
    """Whether actors of a private Ray that share a GPU have MPS."""
    return engine.mps != "off" and is_available()


def mps_obstacle(placement: Placement) -> str:
    """Say why a private Ray with these actors gets no MPS; "" where it does."""
    if placement.per_gpu < 2:
        return f"no GPU has two client actors, got {placement.num_actors} on {placement.device}: set engine.actors"
    if placement.per_gpu >= MAX_CLIENTS:
        return f"it serves {MAX_CLIENTS} processes a GPU, got {placement.per_gpu} actors and the server: lower engine.actors"
    return "" if is_available() else f"{PROGRAM} is not on the PATH: install it with NVIDIA's driver"


def actor_options(placement: Placement) -> dict[str, Any]:
    """Give the resources that Ray reserves for each client actor; a placement group has reserved the memory already."""
    options: dict[str, Any] = {"num_cpus": placement.cpus, "num_gpus": placement.gpus}
    return options if get_current_placement_group() is not None else options | {"memory": placement.memory}


def actor_config(federation: Federation, placement: Placement) -> dict[str, Any]:
    """Dump the run's configuration for actors, with the device and the share of it that they got."""
    config = federation.config.dump()
    config["engine"] |= {"device": placement.device, "gpus_per_actor": placement.gpus or None}
    return config


def server_strategy(nodes: Sequence[Node]) -> Any:
    """Schedule the server, which reserves nothing, on a machine with a GPU if there is one."""
    with_gpu = [node.id for node in nodes if node.gpus]
    return NodeAffinitySchedulingStrategy(with_gpu[0], soft=False) if with_gpu else None


def _uses_gpu(federation: Federation, nodes: Sequence[Node]) -> bool:
    device, has_gpu = federation.config.engine.device, any(node.gpus for node in nodes)
    # On one machine the driver knows whether torch can use the GPU; for others Ray's resources must suffice.
    usable = federation.task.device.type == "cuda" or len(nodes) > 1
    return device.startswith("cuda") or (device == "auto" and has_gpu and usable)
