"""`rayfed-ssl doctor`: what the machines have, what a client and an actor take of it, and whether the run fits."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.console import Console

from actors.cluster.address import local_nodes
from actors.cluster.connect import ClusterError, Node, start
from actors.cluster.machine import cores, free_memory, store_size, this_machine
from actors.cluster.private_ray import SHARED_MEMORY
from actors.placement.actor_cost import ACTOR_BYTES, ACTOR_IDLE, ACTOR_START, Need
from actors.placement.allocation import Placement, check_gpu_memory, gpu_carries, place
from actors.placement.plan import gpus_of, plan
from rayfed_ssl.config.schema import Config
from rayfed_ssl.config.sections import Engine
from rayfed_ssl.engine.client_cost import StepCost, largest_client, measure_apart, step_cost
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.gpu_memory import Gpu, even_share, gpus
from rayfed_ssl.engine.readiness import check_ready
from rayfed_ssl.environment import environment
from rayfed_ssl.formats import size
from rayfed_ssl.storage.checkpoints import ROUNDS_ON_DISK
from rayfed_ssl.trees import nbytes
from tune.terminal import plain_console

ACTORS_A_GPU = 4
"""More actors than these are not proposed for one GPU, where their kernels take turns."""


@dataclass(frozen=True)
class Machines:
    """Where a run would go.

    Attributes:
        nodes: The machines.
        cards: Their GPUs, where they tell.
    """

    nodes: Sequence[Node]
    cards: Sequence[Gpu]


def examine(config: Config, *, measured: bool = False, address: str | None = None) -> bool:
    """Print the findings.

    Args:
        config: The run to fit.
        measured: Run one client's step to see what it takes; else an earlier measurement or an estimate has to do.
        address: A Ray to look at in place of this machine.

    Returns:
        Whether the run fits.

    Raises:
        ConfigError: The configuration cannot be run.
        ClusterError: There is no Ray at that address.
    """
    console = plain_console()
    versions = environment()["versions"].items()
    console.print("  ".join(f"{name} {version}" for name, version in versions if version), style="dim")
    machines = _this_machine(console) if address is None else _cluster(console, address)
    federation = Federation.open(config)
    check_ready(federation)
    if measured:
        measure_apart(config)
    return _examine_run(console, federation, machines)


def _this_machine(console: Console) -> Machines:
    memory = free_memory()
    total = psutil.virtual_memory().total
    console.print("\nThis machine", style="bold")
    kind = environment()["hardware"]["cpu"]
    console.print(f"  {cores()} cores ({kind}), {size(memory)} of {size(total)} memory free")
    console.print(f"  Ray's object store would take {size(store_size(memory))}{_shared_memory()}")
    console.print(f"  {size(shutil.disk_usage(Path.cwd()).free)} disk free for runs in {Path.cwd()}")
    for head in sorted({node.head for node in local_nodes()}):
        console.print(f"  note: a Ray at {head} runs here already, and its actors use the same cores, memory and GPUs")
    cards = gpus()
    _print_gpus(console, cards)
    return Machines([this_machine()], cards)


def _shared_memory() -> str:
    if not SHARED_MEMORY.is_dir():
        return ""
    return f", {size(shutil.disk_usage(SHARED_MEMORY).free)} are free in {SHARED_MEMORY}"


def _cluster(console: Console, address: str) -> Machines:
    cluster = start(address)
    try:
        nodes = cluster.nodes()
        machines = Machines(nodes, gpus_of(nodes))
    finally:
        cluster.stop()
    console.print(f"\nThe Ray at {address}: {len(nodes)} machine{'s' * (len(nodes) > 1)}", style="bold")
    for node in nodes:
        console.print(
            f"  {node.id[:8]}: {node.cpus:g} CPUs, {node.gpus:g} GPUs, {size(int(node.memory))} memory and "
            f"{size(int(node.store))} object store"
        )
    _print_gpus(console, machines.cards)
    return machines


def _print_gpus(console: Console, cards: Sequence[Gpu]) -> None:
    for card in cards:
        crowd = ": another process uses it" if card.is_crowded else ""
        console.print(f"  GPU {card.index}: {card.name}, {size(card.free)} of {size(card.total)} free{crowd}")
    if not cards:
        console.print("  no GPU that nvidia-smi shows")


def _examine_run(console: Console, federation: Federation, machines: Machines) -> bool:
    task, engine = federation.task, federation.config.engine
    weights = max(nbytes(task.blank(name).state_dict()) for name in {task.encoder, *task.client_encoders})
    console.print("\nThis run", style="bold")
    console.print(
        f"  {len(federation.client_ids)} clients, {largest_client(federation)[1]:,} samples in the largest shard, model "
        f"{size(weights)}, {task.device} {task.precision.dtype} ({task.precision.reason})"
    )
    problems: list[str] = []
    placement: Placement | None = None
    try:
        placement = plan(federation, machines.nodes)
        check_gpu_memory(placement, placement.need, machines.cards)
    except ClusterError as error:
        problems.append(str(error))
    device = "cuda" if any(node.gpus for node in machines.nodes) and engine.device != "cpu" else "cpu"
    cost = step_cost(federation, placement.device if placement else device)
    _print_costs(console, cost)
    problems += _disk_problems(console, federation, cost)
    if placement is not None:
        _print_placement(console, federation, placement)
    if cost.is_measured:
        console.print(f"  proposed: {proposal(federation, machines, cost)}")
    for note in federation.notes:
        console.print(f"  note: {note}")
    for problem in problems:
        console.print(f"  does not fit: {problem}", style="red")
    if not problems:
        console.print("  fits", style="green")
    return not problems


def _print_costs(console: Console, cost: StepCost) -> None:
    console.print(
        f"  an actor: {size(ACTOR_BYTES)} and {ACTOR_START:g} core-seconds to start, {ACTOR_IDLE:.1%} of a core idle"
    )
    if cost.is_measured:
        how = f"{cost.seconds:.2g} s an epoch, {size(cost.state or 0)} of state (measured)"
    else:
        how = "by estimate; --measure runs one step"
    gpu = f" and {size(cost.gpu_memory)} of its GPU" if cost.gpu_memory else ""
    console.print(f"  the largest client's step: {size(cost.memory)}{gpu} more, {how}")


def _print_placement(console: Console, federation: Federation, placement: Placement) -> None:
    number, engine = placement.num_actors, federation.config.engine
    of_gpu = f", {placement.per_gpu} on each GPU" if placement.shares_gpus else ""
    console.print(
        f"  engine.actors={engine.actors}: {number} client actors{of_gpu}, about "
        f"{size(number * placement.need.memory)} in all"
    )
    if placement.note:
        console.print(f"  note: {placement.note}")


def _disk_problems(console: Console, federation: Federation, cost: StepCost) -> list[str]:
    """Compare the clients' states with the disk, where their size was measured."""
    if not cost.state:
        return []
    needed = ROUNDS_ON_DISK * cost.state * len(federation.client_ids)
    free = shutil.disk_usage(Path.cwd()).free
    console.print(f"  client states take up to {size(needed)} of disk")
    if needed <= free or federation.config.engine.checkpoints:
        return []
    return [
        f"{ROUNDS_ON_DISK} rounds of client states take {size(needed)}, but {size(free)} are free in "
        f"{Path.cwd()}: run in another directory or set engine.checkpoints"
    ]


def proposal(federation: Federation, machines: Machines, cost: StepCost) -> str:
    """Work out settings to paste from what a step was measured to take."""
    need, share = Need.of(cost), None
    if need.gpu_memory:
        carried = min((gpu_carries(card, need) for card in machines.cards), default=1)
        cpus = sum(node.cpus for node in machines.nodes) / max(1.0, sum(node.gpus for node in machines.nodes))
        share = even_share(1 / max(1, min(carried, int(cpus), ACTORS_A_GPU)))
    engine = Engine(gpus_per_actor=share)
    clients = len(federation.client_ids)
    try:
        number = place(engine, clients, machines.nodes, use_gpu=share is not None, need=need).num_actors
    except ClusterError:
        number = 1
    return f"engine.actors={number}" + (f" engine.gpus_per_actor={share:g}" if share else "")
