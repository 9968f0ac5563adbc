"""What `rayfed-ssl doctor` prints: the hardware, the cost of a client's step and of an actor, and whether a run fits."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import torch
import typer

from actors.cluster.address import local_nodes
from actors.cluster.machine import SHARED_MEMORY, Node, this_machine
from actors.cluster.mps import PROGRAM, is_available
from actors.errors import ClusterError
from actors.placement.actor_cost import ACTOR_BYTES, ACTOR_IDLE, ACTOR_START, ActorCost
from actors.placement.allocation import Placement, allocate
from actors.placement.gpu_sharing import fitting, reason
from actors.placement.plan import can_have_mps, check_fits, plan
from rayfed_ssl.capacity.client_cost import StepCost, largest_client, measure_apart, step_cost
from rayfed_ssl.config.schema import Config
from rayfed_ssl.config.sections import Engine
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.formats import size
from rayfed_ssl.machine.environment import environment
from rayfed_ssl.machine.resources import cores, free_memory
from rayfed_ssl.trees import nbytes
from tune.terminal import echo


def examine(config: Config, *, measured: bool = False) -> bool:
    """Print this machine's hardware and the run's needs; returns whether it fits.

    A step's cost is measured on request, otherwise an earlier measurement or an estimate is used.
    """
    versions = environment()["versions"].items()
    typer.secho("  ".join(f"{name} {version}" for name, version in versions if version), dim=True)
    _print_this_machine()
    gpu_free = _free_gpu_memory()
    federation = Federation.open(config)
    federation.check_ready()
    if measured:
        measure_apart(config)
    return _examine_run(federation, [this_machine()], gpu_free)


def _print_this_machine() -> None:
    memory = free_memory()
    typer.secho("\nThis machine", bold=True)
    echo(
        f"  {cores()} cores ({environment()['hardware']['cpu']}), {size(memory)} of {size(psutil.virtual_memory().total)} "
        "memory free"
    )
    free = (
        f", {size(shutil.disk_usage(SHARED_MEMORY).free)} are free in {SHARED_MEMORY}" if SHARED_MEMORY.is_dir() else ""
    )
    echo(f"  Ray's object store would take {size(int(this_machine().store))}{free}")
    echo(f"  {size(shutil.disk_usage(Path.cwd()).free)} disk free for runs in {Path.cwd()}")
    for head in sorted({node.head for node in local_nodes()}):
        echo(f"  note: a Ray at {head} runs on this machine and uses the same cores, memory and GPUs")


def _free_gpu_memory() -> int | None:
    """Show the GPUs of this machine; returns the bytes that are free on the fullest, None without a GPU."""
    free = []
    for index in range(torch.cuda.device_count()):
        memory = torch.cuda.mem_get_info(index)
        free.append(memory[0])
        echo(f"  GPU {index}: {torch.cuda.get_device_name(index)}, {size(memory[0])} of {size(memory[1])} free")
    if free:
        echo(f"  {mps_line()}")
    return min(free, default=None)


def mps_line() -> str:
    """Say whether actors that share a GPU can compute at the same time."""
    if is_available():
        return f"NVIDIA's MPS is here ({PROGRAM}): client actors that share a GPU compute at the same time"
    return f"NVIDIA's MPS is not here ({PROGRAM} is not on the PATH): client actors that share a GPU take turns"


def _examine_run(federation: Federation, nodes: Sequence[Node], gpu_free: int | None) -> bool:
    task, engine = federation.task, federation.config.engine
    weights = max(nbytes(task.blank(name).state_dict()) for name in {task.encoder, *task.client_encoders})
    typer.secho("\nThis run", bold=True)
    echo(
        f"  {len(federation.client_ids)} clients, {largest_client(federation)[1]:,} samples in the largest shard, model "
        f"{size(weights)}, {task.device} {task.precision.dtype} ({task.precision.reason})"
    )
    problems: list[str] = []
    placement: Placement | None = None
    try:
        placement = plan(federation, nodes, mps=can_have_mps(engine))
        if engine.mps == "on":
            check_fits(federation, "local")
        crowded = placement.per_gpu > 1 or placement.cost.is_measured  # an estimate refuses no single actor
        if gpu_free is not None and crowded and placement.per_gpu > (most := fitting(gpu_free, placement.cost)):
            problems.append(
                f"{placement.per_gpu} client actors on one GPU, whose free memory takes {most}: set a larger "
                "engine.gpus_per_actor, or lower training.batch"
            )
    except ClusterError as error:
        problems.append(str(error))
    device = "cuda" if any(node.gpus for node in nodes) and engine.device != "cpu" else "cpu"
    cost = step_cost(federation, placement.device if placement else device)
    echo(f"  an actor: {size(ACTOR_BYTES)}, {ACTOR_START:g} core-seconds to start, {ACTOR_IDLE:.1%} of a core idle")
    gpu = f" and {size(cost.gpu_memory)} of its GPU" if cost.gpu_memory else ""
    source = "by estimate; --measure runs one step"
    if cost.is_measured:
        source = f"{cost.seconds:.2g} s an epoch, {size(cost.state or 0)} of state (measured)"
    echo(f"  the largest client's step: {size(cost.memory)}{gpu} more, {source}")
    if placement is not None:
        per_gpu = f", {placement.per_gpu} on each GPU" if 0 < placement.gpus < 1 else ""
        memory = size(placement.num_actors * placement.cost.memory)
        echo(f"  engine.actors={engine.actors}: {placement.num_actors} client actors{per_gpu}, about {memory} in all")
    if cost.is_measured:
        for line in proposal(federation, nodes, gpu_free, cost, mps=can_have_mps(engine)):
            echo(line)
    for note in federation.notes:
        echo(f"  note: {note}")
    for problem in problems:
        typer.secho(f"  does not fit: {problem}", fg="red")
    if not problems:
        typer.secho("  fits", fg="green")
    return not problems


def proposal(
    federation: Federation, nodes: Sequence[Node], gpu_free: int | None, cost: StepCost, *, mps: bool
) -> list[str]:
    """Derive settings to paste from the measured cost of a step, and why; a GPU of unknown memory gets one actor."""
    need, free, clients = ActorCost.of(cost), gpu_free or 0, len(federation.client_ids)
    nodes, use_gpu = [replace(node, gpu_memory=free) for node in nodes], need.gpu_memory > 0
    try:
        placement = allocate(Engine(), clients, nodes, use_gpu=use_gpu, cost=need, mps=mps)
    except ClusterError:
        placement = Placement(1, 1.0, float(use_gpu), "")
    if not use_gpu:
        return [f"  proposed: engine.actors={placement.num_actors}"]
    return [
        f"  proposed: engine.actors={placement.num_actors} engine.gpus_per_actor={placement.gpus:g}",
        f"  because {reason(placement.per_gpu, need, free, mps=mps)}",
    ]
