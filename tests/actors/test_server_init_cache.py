"""Runs on Ray that begin alike: the server's actor reads what another run's has made, and a run in one process too."""

from pathlib import Path

import pytest

from actors.executor import RayExecutor
from rayfed_ssl import resume, run

pytestmark = pytest.mark.ray


def test_runs_on_ray_and_in_one_process_share_a_start_and_their_bits(cluster, tiny, tmp_path: Path):
    shared = f"engine.shared={tmp_path / 'shared'}"
    alone = run(tiny("fedca"), tmp_path / "alone")
    on_ray = run(tiny("fedca", shared), tmp_path / "ray", executor=RayExecutor, until=1)
    (start,) = (tmp_path / "shared").glob("*.safetensors")
    made = start.stat().st_ino, start.stat().st_mtime_ns
    assert resume(tmp_path / "ray").state_sha256 == alone.state_sha256
    ledgers = [sorted(tuple(row.values()) for row in result.record.ledger) for result in (on_ray, alone)]
    assert ledgers[0] == ledgers[1]
    run(tiny("fedca", shared), tmp_path / "local", until=0)
    other = run(tiny("fedca", shared, "method.beta=0.5"), tmp_path / "other", executor=RayExecutor, until=1)
    expected = run(tiny("fedca", "method.beta=0.5"), tmp_path / "expected", until=1)
    assert other.state_sha256 == expected.state_sha256 != on_ray.record.manifest.rounds[0].state_sha256
    assert list((tmp_path / "shared").glob("*.safetensors")) == [start]
    assert (start.stat().st_ino, start.stat().st_mtime_ns) == made
