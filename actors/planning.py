"""From a run and the machines that are there to a placement; what cannot fit is refused as early as it can be known."""

from collections.abc import Sequence

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.cluster import Node
from actors.costs import Need
from actors.machine import starts_own, this_machine
from actors.placement import Placement, check_gpu_memory, place
from rayfed_ssl.federation import Federation
from rayfed_ssl.gpu_memory import Gpu, gpus
from rayfed_ssl.step_cost import step_cost

PROBE_TIMEOUT = 30.0
"""Seconds that machines have to tell of their GPUs; without an answer a run begins unwarned."""


def plan(federation: Federation, nodes: Sequence[Node]) -> Placement:
    """Place a run's client actors.

    Raises:
        ClusterError: They do not fit.
    """
    use_gpu = _uses_gpu(federation, nodes)
    need = Need.of(step_cost(federation, "cuda" if use_gpu else "cpu"))
    return place(federation.config.engine, len(federation.client_ids), nodes, use_gpu=use_gpu, need=need)


def refuse_early(federation: Federation, address: str | None) -> None:
    """Refuse what cannot fit before Ray is started, which takes seconds, where Ray will have this machine alone.

    Raises:
        ClusterError: The client actors do not fit.
    """
    if starts_own(address):
        placement = plan(federation, [this_machine()])
        check_gpu_memory(placement, placement.need, gpus() if placement.gpus else ())


def gpus_of(nodes: Sequence[Node]) -> tuple[Gpu, ...]:
    """Ask the machines that have GPUs how much of their memory is free, before any actor takes some.

    Returns:
        () for machines that do not tell.
    """
    ask = ray.remote(num_cpus=0, max_retries=0)(gpus)
    at = [NodeAffinitySchedulingStrategy(node.id, soft=False) for node in nodes if node.gpus]
    answers = [ask.options(scheduling_strategy=where).remote() for where in at]
    try:
        found: list[tuple[Gpu, ...]] = ray.get(answers, timeout=PROBE_TIMEOUT)
    except (GetTimeoutError, RayError):
        return ()
    return tuple(gpu for some in found for gpu in some)


def _uses_gpu(federation: Federation, nodes: Sequence[Node]) -> bool:
    """Decide where a run computes that leaves it open: on GPUs if the machines have some that torch can use."""
    device, has_gpu = federation.config.engine.device, any(node.gpus for node in nodes)
    # On one machine the driver knows whether torch can use the GPU; on others Ray's word has to do.
    usable = federation.task.device.type == "cuda" or len(nodes) > 1
    return device.startswith("cuda") or (device == "auto" and has_gpu and usable)
