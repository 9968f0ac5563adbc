"""From a run and the machines to a placement; what cannot fit is refused as early as possible."""

from collections.abc import Sequence
from typing import Any

from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.cluster.connect import memory_ahead, starts_private_ray
from actors.cluster.machine import Node, this_machine
from actors.placement.actor_cost import ActorCost
from actors.placement.allocation import Placement, allocate
from rayfed_ssl.capacity.client_cost import step_cost
from rayfed_ssl.engine.federation import Federation


def plan(federation: Federation, nodes: Sequence[Node]) -> Placement:
    """Compute the placement of a run's client actors, or raise `ClusterError` if they do not fit."""
    use_gpu = _uses_gpu(federation, nodes)
    cost = ActorCost.of(step_cost(federation, "cuda" if use_gpu else "cpu"))
    return allocate(federation.config.engine, len(federation.client_ids), nodes, use_gpu=use_gpu, cost=cost)


def check_fits(federation: Federation, address: str | None) -> Placement | None:
    """Plan for this machine, or raise `ClusterError`, where a private Ray will start, which takes seconds; else None."""
    return plan(federation, [this_machine(memory_ahead())]) if starts_private_ray(address) else None


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
