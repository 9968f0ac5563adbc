"""Many clients on one machine: seconds per round, memory over time and accuracy.

    uv run python -m benchmarks.scale --data DIRECTORY --out runs/scale

Runs FedEMA, whose clients remember their models, with 300 clients and FedAvg with 1,000 clients, 5 % of them in a round,
on CIFAR-10 photographs (DIRECTORY holds train-*.parquet and test-*.parquet). Memory is the sum over the run's processes of
the proportional set size, so that shared pages count once.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import actors
from benchmarks.peers.meter import memory
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.round_loop import Observer, RoundOutcome

COMMON = [
    "data.name=parquet",
    "data.size=24",
    "data.train_limit=20000",
    "data.test_limit=2000",
    "partition.name=dirichlet",
    "partition.alpha=1",
    "clients.fraction=0.05",
    "training.epochs=2",
    "training.batch=32",
    "training.views=flesd-cifar",
    "evaluation.every=0",
    "evaluation.train_limit=4000",
    "evaluation.linear.standardize=true",
    "engine.trackers=[]",
]
SGD = "{name: sgd, lr: 0.05, weight_decay: 0.0005}"
RUNS = {
    "fedema": ["fedema", "clients.number=300", "model.projection_dim=64", f"training.optimizer={SGD}"],
    "fedavg": ["fedsimclr", "clients.number=1000", "partition=iid", "training.optimizer=adam"],
}


class Scale(Observer):
    """Notes each round's time and memory."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.memory: list[float] = []

    def on_round_end(self, outcome: RoundOutcome) -> None:
        """Look at all processes, between two rounds."""
        self.seconds.append(outcome.seconds)
        self.memory.append(memory()["pss_mb"])


def measure(name: str, data: Path, out: Path, rounds: int, overrides: Sequence[str]) -> None:
    """Run one and print what it took."""
    recipe, *settings = RUNS[name]
    config = Config.load(recipe, *COMMON, *settings, f"data.path={data}", f"rounds={rounds}", *overrides)
    watch, start = Scale(), time.perf_counter()
    result = actors.run(config, out / name, observer=watch)
    wall = time.perf_counter() - start
    half = len(watch.memory) // 2
    slope = float(np.polyfit(range(half, len(watch.memory)), watch.memory[half:], 1)[0])
    scores = result.scores["global"]
    print(
        f"\n{name}: {config.clients.number} clients, {rounds} rounds, {wall:.0f} s in all, {result.state_sha256[:16]}"
    )
    print(f"  kNN {scores['knn']:.2%}, linear probe {scores['linear']:.2%}")
    print(
        f"  s/round: median {statistics.median(watch.seconds):.2f}, {min(watch.seconds):.2f} to {max(watch.seconds):.2f}"
    )
    print(f"  memory slope over the second half: {slope:.2f} MB a round")
    for round in range(0, len(watch.memory), max(1, len(watch.memory) // 8)):
        print(f"  round {round + 1:>4}  {watch.memory[round]:>7.0f} MB  {watch.seconds[round]:.2f} s")


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/scale"))
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE, for all runs")
    given = parser.parse_args()
    for name in given.runs:
        measure(name, given.data.resolve(), given.out, given.rounds, given.overrides)


if __name__ == "__main__":
    main()
