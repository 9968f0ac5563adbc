"""Every script of benchmarks/ that starts processes, at a tiny size."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import launch
from tests.data.pictures import pictures, png
from tests.data.test_decoding import parquet

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs in Parquet files, 240 to train on and 60 to test on."""
    folder = tmp_path_factory.mktemp("photographs")
    for split, num in (("train", 240), ("test", 60)):
        images = [png(pixels) for pixels in pictures(num, 32, 32, 3)]
        parquet(folder / f"{split}-00000-of-00001.parquet", images, np.arange(num) % 4, names=list("abcd"))
    return folder


def output(*command: str | Path) -> str:
    words = [sys.executable, *map(str, command)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_faults_change_no_bit() -> None:
    said = output("benchmarks/faults.py", "--rounds", "6", "--kills", "1", "data.train_limit=200", "clients.number=5")
    assert "the same bits" in said


def test_actors_and_clients_cost_memory(data: Path) -> None:
    kinds = ["--kinds", "bare", "client", "--numbers", "1", "--idle", "0.2"]
    _, bare, client = output("benchmarks/actor_costs.py", "actors", *kinds).splitlines()
    assert 0 < float(bare.split()[4]) < float(client.split()[4])
    said = output(
        *("benchmarks/actor_costs.py", "clients", "--numbers", "10", "20", "--rounds", "2"),
        *("data.name=parquet", f"data.path={data}", "evaluation.linear.epochs=1"),
    )
    assert "one more client in the client actor" in said


def test_plain_loop_bare_ray_and_this_package_end_with_the_same_weights(data: Path, tmp_path: Path) -> None:
    same = {"data": str(data), "clients": 6, "cohort": 3, "samples": 120, "rounds": 2, "epochs": 1}
    log_normal = {"bench": "B5", "name": "log-normal", "sigma": 1.0, **same}
    passed_on = {"bench": "B1", "name": "1 MB", "megabytes": 1.0, **same}
    weights = set()
    for system in ("plain", "ray", "rayfed-ssl"):
        environments = launch.Environments(Path(sys.executable), tmp_path)
        rows, ended = launch.run_cases(system, [log_normal, passed_on], environments, 120)
        assert ended.code == 0, ended.stderr
        assert [row["case"]["bench"] for row in rows] == ["B5", "B1"]
        weights.add(json.dumps(rows[0]["weights"]))
    assert len(weights) == 1
