"""The engine's overhead: a round's wall time over that of a bare training loop taking the same steps.

    uv run python benchmarks/engine.py [KEY=VALUE]...

The bare loop is as many processes as there are actors; each trains its share of the clients one after the other, with
nothing around it: no downloads, uploads, checkpoints, records or aggregation. Both are warm. They run in turn, and the
table gives each pair's ratio.
"""

import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.round_loop import Observer, RunPlan, run_round
from rayfed_ssl.storage.checkpoints import RunState, commit

REPEATS = 5
ACTORS = 2


def bare_worker(config: Config, client_ids: list[int], pipe: Connection) -> None:
    """Train the given clients each time a round number comes in."""
    import torch

    from rayfed_ssl.data.shards import Shard
    from rayfed_ssl.engine.federation import training_seed
    from rayfed_ssl.seeds import generator

    torch.set_num_threads(1)
    federation = Federation.open(config)
    task, images = federation.task, federation.dataset.train.images
    weights = task.initial_weights()
    while (round := pipe.recv()) is not None:
        for client_id in client_ids:
            shard = Shard.of(images, federation.shards[client_id], task.device)
            task.fit(task.model(weights), shard, generator(training_seed(config, round, client_id)))
        pipe.send(round)


def main() -> None:
    """Measure and print."""
    from actors import RayExecutor

    data = ["data.name=cifar10", "data.train_limit=6000", "data.test_limit=1000"]
    settings = ["public=null", "method=fedavg", "partition=iid", "rounds=1"]
    settings += ["training.epochs=5", f"engine.actors={ACTORS}"]
    config = Config.load("flesd-table1-cifar10-cpu", *data, *settings, *sys.argv[1:])
    federation = Federation.open(config)
    context = multiprocessing.get_context("spawn")
    pipes = []
    for number in range(ACTORS):
        ours, theirs = context.Pipe()
        share = list(federation.client_ids[number::ACTORS])
        context.Process(target=bare_worker, args=(config, share, theirs), daemon=True).start()
        pipes.append(ours)
    executor = RayExecutor(federation)
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        plan = RunPlan(1, federation.cohort, 0, Path(folder))
        state = RunState(0, executor.init_server(plan.directory))
        print(f"{'repeat':>6} {'bare s':>8} {'engine s':>9} {'ratio':>6}")
        for repeat in range(REPEATS + 1):
            start = time.perf_counter()
            for pipe in pipes:
                pipe.send(1)
            for pipe in pipes:
                pipe.recv()
            bare = time.perf_counter() - start
            start = time.perf_counter()
            outcome = run_round(plan, executor, Observer(), state, 1)
            commit(outcome.state, plan.directory)
            engine = time.perf_counter() - start
            state = RunState(0, executor.init_server(plan.directory))
            if repeat:  # the first pair warms both up
                ratios.append(engine / bare)
                print(f"{repeat:>6} {bare:>8.2f} {engine:>9.2f} {engine / bare:>6.3f}")
    executor.close()
    for pipe in pipes:
        pipe.send(None)
    print(f"median ratio {statistics.median(ratios):.3f}, range {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
