"""Runs through Ray have the results of runs in this process: fine-tuning, protocols, diagnostics, a shared first state."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from actors.cluster.connect import Cluster
from actors.executor import RayExecutor
from actors.injection import Kill
from rayfed_ssl import resume, run
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.records.run_record import RunRecord

pytestmark = [pytest.mark.ray, pytest.mark.slow]

Tiny = Callable[..., Config]

FINE_TUNING = (
    *("objective=supervised", "model.projection_dim=null", "clients.labeled=0.4", "method.parts.batch_norm=local"),
    "evaluation.protocols=[semi-swav-10, transfer-fedca]",
    "evaluation.settings.semi-swav-10.epochs=2",
    "evaluation.settings.transfer-fedca={epochs: 1, dataset: digits, train_limit: 40, test_limit: 30}",
)


def results(directory: Path) -> dict[str, Any]:
    """Collect all of a run's record that does not depend on time."""
    record = RunRecord.open(directory)
    metrics = [tuple(row.values()) for row in record.metrics if "seconds" not in row["name"]]
    return {
        "hashes": [row.state_sha256 for row in record.manifest.rounds],
        "metrics": sorted(map(repr, metrics)),
        "ledger": sorted(map(repr, (tuple(row.values()) for row in record.ledger))),
    }


@pytest.fixture(scope="module")
def fine_tuning(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Fine-tuning from another run's encoder, on few labels, scored by two protocols; clients keep their batch-norm."""
    learned = run(tiny("fedavg", "rounds=1"), tmp_path_factory.mktemp("learned") / "run").directory
    return tiny("fedavg", *FINE_TUNING, f"model.start={learned}")


@pytest.mark.parametrize("name", ["fine-tuning", "diagnostics", "own-scores"])
def test_results_through_ray_are_those_of_this_process(
    cluster: Cluster, tiny: Tiny, fine_tuning: Config, name: str, tmp_path: Path
):
    diagnostics = tiny("fedfoa", "method.base=fedavg", "evaluation.diagnostics=1")
    own_scores = tiny("fedavg", "clients.test_fraction=0.3", "method.parts.projector=local")
    config = {"fine-tuning": fine_tuning, "diagnostics": diagnostics, "own-scores": own_scores}[name]
    run(config, tmp_path / "local")
    run(config, tmp_path / "ray", executor=RayExecutor)
    expected = results(tmp_path / "local")
    assert results(tmp_path / "ray") == expected
    needed = {
        "fine-tuning": ("semi-swav-10", "transfer-fedca"),
        "diagnostics": ("diag_update_cosine", "diag_alignment"),
        "own-scores": ("own_tuned_linear", "own_global_knn_gaining"),
    }
    assert all(any(metric in row for row in expected["metrics"]) for metric in needed[name])


def test_runs_on_ray_and_in_this_process_share_the_first_server_state(cluster: Cluster, tiny: Tiny, tmp_path: Path):
    shared = f"engine.shared={tmp_path / 'shared'}"
    alone = run(tiny("fedca"), tmp_path / "alone")
    on_ray = run(tiny("fedca", shared), tmp_path / "ray", executor=RayExecutor, until=1)
    (state,) = (tmp_path / "shared").glob("*.safetensors")
    created = state.stat().st_ino, state.stat().st_mtime_ns
    assert resume(tmp_path / "ray").state_sha256 == alone.state_sha256
    assert results(tmp_path / "ray")["ledger"] == results(tmp_path / "alone")["ledger"]
    run(tiny("fedca", shared), tmp_path / "local", until=0)
    other = run(tiny("fedca", shared, "method.beta=0.5"), tmp_path / "other", executor=RayExecutor, until=1)
    expected = run(tiny("fedca", "method.beta=0.5"), tmp_path / "expected", until=1)
    assert other.state_sha256 == expected.state_sha256 != on_ray.record.manifest.rounds[0].state_sha256
    assert list((tmp_path / "shared").glob("*.safetensors")) == [state]
    assert (state.stat().st_ino, state.stat().st_mtime_ns) == created


@pytest.mark.parametrize(
    ("method", "policy", "actors"),
    [
        ("fedprox", "{name: partial, seconds: 4}", 2),
        ("fedprox", "{name: fedbuff, buffer: 2}", 1),
        ("fedema", "{name: fedbuff, buffer: 2}", 4),
    ],
)
def test_actors_that_die_in_each_round_keep_to_a_schedule_as_this_process_does(
    cluster: Cluster, tiny: Tiny, method: str, policy: str, actors: int, tmp_path: Path
):
    ahead: list[tuple[int, int, int]] = []

    def rounds_ahead(self: RayExecutor, round: int, quarantined: Collection[int]) -> dict[int, int]:
        found = RayExecutor._rounds_ahead(self, round, quarantined)
        ahead.extend((round, later, client) for client, later in found.items())
        return found

    devices = ("clock=phones", "clock.devices.hours=24", "clock.devices.failure=0.2", "clients.number=5")
    config = tiny(
        method, *devices, f"clock.policy={policy}", "training.epochs=4", "rounds=4", f"engine.actors={actors}"
    )
    run(config, tmp_path / "local")

    def faulty(federation: Federation) -> RayExecutor:
        counting = type("Counting", (RayExecutor,), {"_rounds_ahead": rounds_ahead})
        executor: RayExecutor = counting(federation, kills=[Kill(round) for round in range(1, 5)])
        return executor

    run(config, tmp_path / "ray", executor=faulty)
    found, expected = results(tmp_path / "ray"), results(tmp_path / "local")
    retries = [row["value"] for row in RunRecord.open(tmp_path / "ray").metrics if row["name"] == "retries"]
    assert sum(retries) == 4
    for each in (found, expected):
        each["metrics"] = [row for row in each["metrics"] if "'retries'" not in row]
    assert found == expected
    schedules = [(tmp_path / name / "schedule.parquet").read_bytes() for name in ("local", "ray")]
    assert schedules[0] == schedules[1]
    steps = {row["value"] for row in RunRecord.open(tmp_path / "ray").metrics if row["name"] == "samples"}
    assert len(steps) > 2
    assert bool(ahead) == ("fedbuff" in policy and actors > 1)
    assert len(ahead) == len({key[1:] for key in ahead})
