"""`rayfed-ssl doctor`: what this machine has, how many clients would run at once, and what would not fit."""

import os
import shutil
from pathlib import Path

import psutil
import torch
from rich.console import Console

from rayfed_ssl.config import Config
from rayfed_ssl.environment import environment
from rayfed_ssl.federation import Federation
from rayfed_ssl.readiness import check_ready
from rayfed_ssl.trees import nbytes
from tune.progress import megabytes

ACTOR_BYTES = 450e6
"""Private memory of a client actor with torch and torchvision before a model is in it (measured, docs/LOG.md)."""

STEP_FACTOR = 4
"""Weights, gradients and Adam's two moments of a model in training."""


def examine(config: Config) -> bool:
    """Print the findings; returns whether the configured run fits."""
    console = Console(highlight=False)
    facts = environment()
    console.print("[bold]This machine[/bold]")
    console.print(
        f"  {' '.join(f'{name} {version}' for name, version in facts['versions'].items() if version)}", soft_wrap=True
    )
    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    unused = f"{megabytes(memory.available)} of {megabytes(memory.total)}"
    console.print(f"  {cores} cores ({facts['hardware']['cpu']}), {unused} memory free")
    shared = Path("/dev/shm")
    if shared.exists():
        console.print(f"  {megabytes(shutil.disk_usage(shared).free)} shared memory free in {shared}")
    console.print(f"  {megabytes(shutil.disk_usage(Path.cwd()).free)} disk free in {Path.cwd()}")
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        console.print(
            f"  GPU {index}: {torch.cuda.get_device_name(index)}, {megabytes(free)} of {megabytes(total)} free"
        )
    if not torch.cuda.is_available():
        console.print("  no GPU that torch can use")
    return _examine_run(config, console, cores, memory.available)


def _examine_run(config: Config, console: Console, cores: int, free: int) -> bool:
    federation = Federation.open(config)
    check_ready(federation)
    task, clients = federation.task, len(federation.client_ids)
    weights = max(nbytes(task.initial_weights(name)) for name in {task.encoder, *task.client_encoders})
    wanted = config.engine.actors
    actors = {"auto": min(cores, clients), "per-client": clients}.get(str(wanted)) or int(wanted)
    need = actors * (ACTOR_BYTES + STEP_FACTOR * weights)
    console.print("\n[bold]This run[/bold]")
    console.print(
        f"  {clients} clients, {max(len(r) for r in federation.shards.values()):,} samples in the largest shard"
    )
    console.print(f"  model {megabytes(weights)}, {task.device} {task.precision.dtype} ({task.precision.reason})")
    console.print(
        f"  engine.actors={wanted}: {actors} clients at once, about {megabytes(int(need))} before activations"
    )
    for note in federation.notes:
        console.print(f"  note: {note}")
    problems = []
    if need > free:
        problems.append(
            f"{actors} actors need about {megabytes(int(need))}, {megabytes(free)} are free: set engine.actors to at most "
            f"{max(1, int(free / (need / actors)))}"
        )
    if actors * config.engine.cpus_per_actor > cores:
        problems.append(
            f"{actors} actors of {config.engine.cpus_per_actor:g} CPUs do not fit {cores} cores: lower engine.actors or "
            "engine.cpus_per_actor"
        )
    for problem in problems:
        console.print(f"  [red]does not fit:[/red] {problem}")
    if not problems:
        console.print("  [green]fits[/green]")
    return not problems
