"""Three nodes on this machine: the same bits as in one process, also when a node is killed in the middle of a round.

python benchmarks/nodes.py [KEY=VALUE]...

Each node is a Ray of its own (raylet, object store, workers) as on a machine of its own. They share this machine's disk,
and pretend to have a GPU, so that the server is bound to one of them as on a GPU cluster. A node dies by SIGKILL of all its
processes after the first client of round 2: first one with client actors only, then the one that holds the server. Ray
notices it after 4 seconds with the settings of cluster.yaml.
"""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HEALTH = {"initial_delay_ms": "1000", "period_ms": "1000", "timeout_ms": "2000", "failure_threshold": "3"}
os.environ.update({f"RAY_health_check_{name}": value for name, value in HEALTH.items()})

from actors import RayExecutor  # noqa: E402, I001  # before Ray, which reads its settings when it is imported
import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from rayfed_ssl import Config, Observer, runs  # noqa: E402
from rayfed_ssl.engine.federation import Federation  # noqa: E402

NODE = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 150_000_000}
RECIPE = [
    "method=fedema",
    "objective=byol",
    "objective.hidden=256",
    "rounds=4",
    "training.epochs=1",
    "public=null",
    "evaluation.every=0",
    "evaluation.linear.epochs=1",
    "engine.device=cpu",
    "engine.trackers=[]",
]


class Strike(Observer):
    """Kills a node after the first client of round 2, and tells how each round went."""

    def __init__(self, cluster: Cluster, victim: "Any | None") -> None:
        self.cluster, self.victim, self.executor = cluster, victim, None
        self.round = 0

    def make(self, federation: Federation, address: str) -> RayExecutor:
        """Make the executor, and know it."""
        self.executor = RayExecutor(federation, address=address)
        return self.executor

    def on_round(self, round: int, cohort: Any) -> None:
        """Know which round runs."""
        self.round = round

    def on_client(self, report: Any) -> None:
        """Kill the node when it is time."""
        if self.round == 2 and self.victim is not None:
            node = self.find(self.victim)
            self.victim = None
            self.cluster.remove_node(node, allow_graceful=False)
            print("    a node is killed", flush=True)

    def find(self, holder: str) -> Any:
        """Find the node that holds the server actor, or a node that holds neither it nor the driver."""
        actor = self.executor._server.actor
        home = ray.get(actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()))
        others = list(self.cluster.worker_nodes)
        return next(node for node in others if (node.node_id == home) == (holder == "server"))

    def on_round_end(self, outcome: Any) -> None:
        """Tell how long the round took."""
        print(
            f"    round {outcome.state.round}: {outcome.seconds:5.1f} s, {outcome.retries} steps repeated", flush=True
        )


def play(config: Config, directory: Path, files: Path, victim: str | None, wanted: str) -> bool:
    """Run on three nodes of which one may die; returns whether the bits are those that are wanted."""
    cluster = Cluster(
        initialize_head=True,
        head_node_args={**NODE, "num_cpus": 0, "num_gpus": 0, "temp_dir": str(files), "include_dashboard": False},
    )
    for _ in range(3):
        cluster.add_node(**NODE)
    strike = Strike(cluster, victim)
    begun = time.perf_counter()
    try:
        made = runs.run(
            config, directory, observer=strike, executor=lambda federation: strike.make(federation, cluster.address)
        )
    finally:
        ray.shutdown()
        cluster.shutdown()
    same = made.state_sha256 == wanted
    print(
        f"  {made.state_sha256[:16]}, {'the same' if same else 'ANOTHER'}, {time.perf_counter() - begun:.1f} s",
        flush=True,
    )
    return same


def main() -> None:
    """Run all cases."""
    files = Path(tempfile.mkdtemp(prefix="nodes", dir="/tmp"))
    os.environ["RAY_TMPDIR"] = str(files)
    (files / "ray").mkdir()  # Ray's test cluster writes its address here, and does not make the directory
    config = Config.load("digits", *RECIPE, *sys.argv[1:])
    try:
        wanted = runs.run(config, files / "local").state_sha256
        print(f"in one process: {wanted[:16]}", flush=True)
        cases = {"three nodes": None, "a node with clients dies": "clients", "the server's node dies": "server"}
        same = []
        for number, (name, victim) in enumerate(cases.items()):
            print(f"{name}:", flush=True)
            same.append(play(config, files / f"run{number}", files / f"ray{number}", victim, wanted))
    finally:
        shutil.rmtree(files, ignore_errors=True)
    sys.exit(not all(same))


if __name__ == "__main__":
    main()
