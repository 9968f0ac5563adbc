"""What one more actor and one more client cost here: memory, start-up, and cores while they do nothing.

    uv run python benchmarks/actor_costs.py actors [--kinds KIND...] [--numbers N...] [--idle SECONDS]
    uv run python benchmarks/actor_costs.py clients [KEY=VALUE]... [--numbers K...] [--rounds T]

`actors` makes so many actors of each kind on a Ray of its own: `bare` imports nothing, `torch` imports it, `optimizer`
makes a `torch.optim.SGD`, `torchvision` imports that too, and `client` is the engine's own, which has opened its data.
Memory is private (USS) and proportional (PSS), read from /proc/PID/smaps_rollup.

`clients` runs federations that differ in the number of clients alone: ten of them take part in every round, on two
actors, and every client has ten samples. The slope over K is what a client costs that does nothing. The digits suffice for
100 clients; more need data.name=cifar10 or the like.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

KINDS = ("bare", "torch", "optimizer", "torchvision", "client")
CLIENT_RUN = ["data.name=digits", "method=fedavg", "public=null", "partition=iid", "training.epochs=1"]
COHORT = 10
SAMPLES = 10


class Process:
    """An actor that imports what its kind says, and nothing else of ours.

    Args:
        kind: One of KINDS.
    """

    def __init__(self, kind: str) -> None:
        if kind != "bare":
            import torch

            if kind in ("optimizer", "torchvision"):
                torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
            if kind == "torchvision":
                import torchvision  # noqa: F401

    def ready(self) -> None:
        """Answer once it is there."""


def rollup(process: psutil.Process) -> tuple[int, int]:
    """Read a process's private and proportional memory in bytes."""
    text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in text.splitlines()[1:]}
    return sizes["Private_Clean"] + sizes["Private_Dirty"], sizes["Pss"]


def core_seconds(processes: list[psutil.Process]) -> float:
    """Sum the processor time that processes have taken."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def actor_processes(title: str) -> list[psutil.Process]:
    """Find our actors among all of Ray's processes."""
    every = psutil.Process().children(recursive=True)
    return [process for process in every if "".join(process.cmdline()[:1]).startswith(f"ray::{title}")]


def measure_actors(kind: str, number: int, idle: float) -> dict[str, Any]:
    """Make so many actors, wait for them, watch them idle, and end them."""
    import ray

    from actors.client_actor import ClientActor
    from actors.cluster.connect import start
    from rayfed_ssl.config.schema import Config
    from rayfed_ssl.engine.federation import Federation

    config = Config.load("digits", *CLIENT_RUN)
    Federation.open(config)  # the data is decoded once for a machine; that belongs to no actor
    cluster = start("local", num_cpus=max(number, 1))
    try:
        time.sleep(8)  # Ray's idle workers are still starting
        made: Any = ray.remote(num_cpus=1)(ClientActor if kind == "client" else Process)
        begin = time.perf_counter()
        actors = [made.remote(config.dump() if kind == "client" else kind) for _ in range(number)]
        ray.get([actor.ready.remote() for actor in actors])
        wall = time.perf_counter() - begin
        processes = actor_processes(made.__ray_metadata__.class_name)
        started = core_seconds(processes)
        time.sleep(3)
        before, begin = core_seconds(processes), time.perf_counter()
        time.sleep(idle)
        busy = (core_seconds(processes) - before) / (time.perf_counter() - begin)
        memory = [rollup(process) for process in processes]
    finally:
        cluster.stop()
    return {
        "wall": wall,
        "core-s": started / number,
        "USS": statistics.mean(private for private, _ in memory) / 1e6,
        "PSS": statistics.mean(share for _, share in memory) / 1e6,
        "idle": busy / number,
    }


def print_actors(kinds: list[str], numbers: list[int], idle: float) -> None:
    """Print a row for every kind and number, each measured in a process of its own."""
    print(f"{'kind':12}{'actors':>7}{'wall s':>9}{'core-s each':>13}{'USS MB':>9}{'PSS MB':>9}{'idle cores each':>17}")
    for kind in kinds:
        for number in numbers:
            command = [sys.executable, __file__, "one", kind, str(number), str(idle)]
            print(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout, end="", flush=True)


def print_one(kind: str, number: int, idle: float) -> None:
    """Measure and print one row."""
    found = measure_actors(kind, number, idle)
    print(
        f"{kind:12}{number:7d}{found['wall']:9.1f}{found['core-s']:13.2f}{found['USS']:9.0f}{found['PSS']:9.0f}"
        f"{found['idle']:17.4f}"
    )


def measure_clients(number: int, rounds: int, overrides: list[str]) -> dict[str, float]:
    """Run a federation of so many clients, ten in a round, and look at the memory after its last."""
    import actors
    from rayfed_ssl.config.schema import Config
    from rayfed_ssl.engine.federation import Federation
    from rayfed_ssl.engine.round_loop import Observer, RoundOutcome

    given = ["partition=iid", f"clients.number={number}", f"clients.fraction={COHORT / number}"]
    given += [f"rounds={rounds}", f"data.train_limit={SAMPLES * number}"]
    given += ["evaluation.every=0", "evaluation.diagnostics=0", "engine.actors=2", "engine.trackers=[]"]
    config = Config.load("digits", *CLIENT_RUN, *given, *overrides)
    Federation.open(config)
    found: dict[str, Any] = {"seconds": []}

    class Watch(Observer):
        def on_round_end(self, outcome: RoundOutcome) -> None:
            found["seconds"].append(outcome.seconds)
            found["driver"] = rollup(psutil.Process())[0]
            for title in ("ClientActor", "ServerActor"):
                found[title] = statistics.mean(rollup(process)[0] for process in actor_processes(title))

    with tempfile.TemporaryDirectory() as directory:
        begin = time.perf_counter()
        actors.run(config, Path(directory) / "run", observer=Watch())
        found["total"] = time.perf_counter() - begin
    return found | {"seconds": statistics.median(found["seconds"][1:])}


def print_clients(numbers: list[int], rounds: int, overrides: list[str]) -> None:
    """Print a row for every K and the slopes."""
    print(f"{'clients':>8}{'s/round':>9}{'whole s':>9}{'driver MB':>11}{'actor MB':>10}{'server MB':>11}")
    rows = []
    for number in numbers:
        command = [sys.executable, __file__, "some", str(number), str(rounds), *overrides]
        line = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
        print(line, flush=True)
        rows.append([float(word) for word in line.split()])
    table = np.array(rows)
    for column, name in ((3, "driver"), (4, "client actor"), (5, "server actor")):
        if len(table) > 1:
            print(f"one more client in the {name}: {np.polyfit(table[:, 0], table[:, column], 1)[0] * 1e3:.1f} kB")


def print_some(number: int, rounds: int, overrides: list[str]) -> None:
    """Measure and print one row."""
    found = measure_clients(number, rounds, overrides)
    print(
        f"{number:8d}{found['seconds']:9.2f}{found['total']:9.1f}{found['driver'] / 1e6:11.1f}"
        f"{found['ClientActor'] / 1e6:10.1f}{found['ServerActor'] / 1e6:11.1f}"
    )


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["one"]:
        return print_one(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    if sys.argv[1:2] == ["some"]:
        return print_some(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    many = what.add_parser("actors")
    many.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    many.add_argument("--numbers", nargs="+", type=int, default=[1, 2, 4, 8])
    many.add_argument("--idle", type=float, default=10.0)
    clients = what.add_parser("clients")
    clients.add_argument("--numbers", nargs="+", type=int, default=[10, 30, 100])
    clients.add_argument("--rounds", type=int, default=4)
    clients.add_argument("overrides", nargs="*")
    asked = parser.parse_args()
    if asked.what == "actors":
        return print_actors(asked.kinds, asked.numbers, asked.idle)
    return print_clients(asked.numbers, asked.rounds, asked.overrides)


if __name__ == "__main__":
    main()
