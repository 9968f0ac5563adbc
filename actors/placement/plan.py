"""From a run and the machines that are there to a placement; what cannot fit is refused as early as it can be known."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.cluster.connect import ClusterError, Node
from actors.cluster.machine import starts_own, this_machine
from actors.placement.actor_cost import Need
from actors.placement.allocation import Placement, check_gpu_memory, place
from actors.placement.restarts import DEATHS, await_room, why_dead
from rayfed_ssl.engine.client_cost import StepCost, record, step_cost
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.gpu_memory import Gpu, gpus

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


def claim(federation: Federation, nodes: Sequence[Node]) -> Placement:
    """Place a run's client actors where there is room for them now.

    Raises:
        ClusterError: They do not fit, or others hold the room.
    """
    placement = plan(federation, nodes)
    if placement.note:
        warnings.warn(placement.note, RuntimeWarning, stacklevel=2)
    if get_current_placement_group() is None:
        await_room(placement)
    return placement


def refuse_early(federation: Federation, address: str | None) -> None:
    """Refuse what cannot fit before Ray is started, which takes seconds, where Ray will have this machine alone.

    Raises:
        ClusterError: The client actors do not fit.
    """
    if starts_own(address):
        placement = plan(federation, [this_machine()])
        check_gpu_memory(placement, placement.need, gpus() if placement.gpus else ())


def reservation(placement: Placement) -> dict[str, Any]:
    """Say what Ray shall reserve for each client actor; a placement group has set its memory aside already."""
    options: dict[str, Any] = {"num_cpus": placement.cpus, "num_gpus": placement.gpus}
    return options if get_current_placement_group() is not None else options | {"memory": placement.memory}


def actor_config(federation: Federation, placement: Placement) -> dict[str, Any]:
    """Write down the run's configuration for actors, with the device and the share of it that they got."""
    config = federation.config.dump()
    config["engine"] |= {"device": placement.device, "gpus_per_actor": placement.gpus or None}
    return config


def check_share(
    placement: Placement,
    federation: Federation,
    actor: Any,
    cards: Sequence[Gpu],
    get: Callable[[ObjectRef[Any]], Any] = ray.get,
) -> None:
    """See before the first round that actors which share GPUs fit; without a measurement on record one of them measures.

    Args:
        placement: The actors.
        federation: The run.
        actor: One of them, ready.
        cards: The GPUs before the actors were there.
        get: Waits for an answer.

    Raises:
        ClusterError: They do not fit, or the one that measures died.
        ClientError: The step of the largest client fails alone.
    """
    need = placement.need
    if placement.shares_gpus and not need.is_measured:
        try:
            cost: StepCost = get(actor.measure.remote())
        except RayTaskError as error:
            raise error.cause from error
        except DEATHS as error:
            raise ClusterError(
                f"an actor died in the step of the largest client ({why_dead(error)}): see that memory suffices"
            ) from None
        record(federation, placement.device, cost)
        need = Need.of(cost)
    check_gpu_memory(placement, need, cards)


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


def beside_gpu(nodes: Sequence[Node]) -> Any:
    """Put the server, which reserves nothing, on a machine with a GPU if there is one."""
    with_gpu = [node.id for node in nodes if node.gpus]
    return NodeAffinitySchedulingStrategy(with_gpu[0], soft=False) if with_gpu else None


def _uses_gpu(federation: Federation, nodes: Sequence[Node]) -> bool:
    """Decide where a run computes that leaves it open: on GPUs if the machines have some that torch can use."""
    device, has_gpu = federation.config.engine.device, any(node.gpus for node in nodes)
    # On one machine the driver knows whether torch can use the GPU; on others Ray's word has to do.
    usable = federation.task.device.type == "cuda" or len(nodes) > 1
    return device.startswith("cuda") or (device == "auto" and has_gpu and usable)
