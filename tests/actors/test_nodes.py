"""Several nodes, in a Ray and a process of their own: one of them is killed in the middle of a round."""

import os
from pathlib import Path

import pytest

from rayfed_ssl import runs
from rayfed_ssl.records.manifest import RunManifest
from tests.actors.conftest import run_python
from tests.machine.test_processor import start

pytestmark = [pytest.mark.ray, pytest.mark.slow]

OVERRIDES = ["rounds=2", "training.epochs=2", "clients.number=4", "engine.actors=2", "evaluation.linear.epochs=1"]

RUN = """
import os, sys, tempfile
os.environ.update(
    RAY_health_check_initial_delay_ms="1000", RAY_health_check_period_ms="1000",
    RAY_health_check_timeout_ms="2000", RAY_health_check_failure_threshold="3",
    RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64,  # else a token in the user's home is sent to nodes that ask for none
)
# Ray's test cluster writes its address below here and does not make the directory, which a bare machine lacks.
os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="n", dir="/tmp")
sessions = os.path.join(os.environ["RAY_TMPDIR"], "ray")
os.mkdir(sessions)
from actors import run
from rayfed_ssl import Config, Observer
import ray
from ray.cluster_utils import Cluster

node = {{"num_cpus": 1, "object_store_memory": 100_000_000}}
head = {{**node, "num_cpus": 0, "include_dashboard": False, "temp_dir": sessions}}
cluster = Cluster(initialize_head=True, head_node_args=head)
for _ in range(2):
    cluster.add_node(**node)

class NodeKiller(Observer):
    round, repeated = 0, 0
    def on_round(self, round, cohort):
        self.round = round
    def on_client(self, report):
        if self.round == 2 and len(cluster.worker_nodes) == 2:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    def on_round_end(self, outcome):
        self.repeated += outcome.retries

killer = NodeKiller()
try:
    result = run(Config.load({config!r}), sys.argv[1], observer=killer, address=cluster.address)
    print(result.state_sha256, len(cluster.worker_nodes), killer.repeated)
finally:
    ray.shutdown()
    cluster.shutdown()
    import shutil
    shutil.rmtree(os.environ["RAY_TMPDIR"], ignore_errors=True)
"""


def test_a_node_that_dies_in_a_round_changes_no_bit(tiny, tmp_path):
    config = tiny("fedema", *OVERRIDES)
    wanted = runs.run(config, tmp_path / "local").state_sha256
    tree = config.dump()
    tree["engine"]["executor"] = "ray"
    ended = run_python(RUN.format(config=tree), str(tmp_path / "nodes"), cwd=Path(__file__).parents[2])
    assert ended.returncode == 0, ended.stderr
    *noise, last = ended.stdout.splitlines()
    sha256, nodes_left, repeated = last.split()
    assert (sha256, nodes_left) == (wanted, "1")
    assert int(repeated) >= 1
    assert noise == []
    assert "core_worker" not in ended.stderr


NATIVE_CLUSTER = """
import os, subprocess, sys, tempfile, shutil
os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="n", dir="/tmp")
sessions = os.path.join(os.environ["RAY_TMPDIR"], "ray")
os.mkdir(sessions)
import actors
from ray.cluster_utils import Cluster
node = {"num_cpus": 2, "object_store_memory": 100_000_000, "include_dashboard": False, "temp_dir": sessions}
cluster = Cluster(initialize_head=True, head_node_args=node)
os.environ.update(token for token in [sys.argv[1].split("=")] if token[1])
try:
    sys.exit(subprocess.run(["rayfed-ssl", "run", *sys.argv[2:], "--address", cluster.address]).returncode)
finally:
    cluster.shutdown()
    shutil.rmtree(os.environ["RAY_TMPDIR"], ignore_errors=True)
"""
SMALL = (
    *("data.train_limit=100", "data.test_limit=30", "training.batch=16", "clients.number=2"),
    *("rounds=2", "training.epochs=1", "evaluation.every=0", "evaluation.linear.epochs=1"),
)


def run_on_cluster(*words, own_token=""):
    """Run on a Ray that asks for a token, with another one if it is given."""
    env = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    return run_python(NATIVE_CLUSTER, f"RAY_AUTH_TOKEN={own_token}", *words, env=env, cwd=Path(__file__).parents[2])


def test_actors_of_a_running_ray_compute_portably(tmp_path):
    settings = ("fedema", "engine.cpu=portable", *SMALL)
    ended = run_on_cluster(*settings, "--out", str(tmp_path / "ray"))
    assert ended.returncode == 0, ended.stderr
    local = start("rayfed-ssl", "run", *settings, "engine.executor=local", "--out", str(tmp_path / "local"))
    digests = [RunManifest.read(tmp_path / name / "run.json").rounds[-1].state_sha256 for name in ("ray", "local")]
    assert digests[0] == digests[1], local.stderr


def test_a_ray_that_refuses_the_token_is_one_line(tmp_path):
    ended = run_on_cluster("fedema", *SMALL, "--out", str(tmp_path / "run"), "--quiet", own_token="f" * 64)
    assert ended.returncode == 3
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: cannot join the Ray at")
    assert "RAY_AUTH_TOKEN_PATH" in line
