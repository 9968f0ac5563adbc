"""Federated fine-tuning and protocols on Ray: the bits and the scores of this process, with any number of actors."""

from collections.abc import Callable
from pathlib import Path

import pytest

from actors.cluster.connect import Cluster
from actors.executor import RayExecutor
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.local_executor import LocalExecutor
from rayfed_ssl.method import Metrics
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.runs import run

pytestmark = pytest.mark.ray

FEW = ("objective=supervised", "model.projection_dim=null", "clients.labeled=0.4", "method.parts.batch_norm=local")
PROTOCOLS = ("evaluation.protocols=[semi-swav-10, transfer-fedca]",)
QUICK = (
    "evaluation.settings.semi-swav-10.epochs=2",
    "evaluation.settings.transfer-fedca={epochs: 1, dataset: digits, train_limit: 40, test_limit: 30}",
)


def outcome(directory: Path) -> tuple[list[str], dict[str, Metrics]]:
    record = RunRecord.open(directory)
    return [row.state_sha256 for row in record.manifest.rounds], record.scores(2)


@pytest.fixture(scope="module")
def config(tiny: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Fine-tuning from another run's encoder, on few labels, scored by two protocols; clients keep their batch-norm."""
    learned = run(tiny("fedavg", "rounds=1"), tmp_path_factory.mktemp("learned") / "run").directory
    return tiny("fedavg", *FEW, *PROTOCOLS, *QUICK, f"model.start={learned}")


@pytest.fixture(scope="module")
def expected(config: Config, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, Metrics]]:
    return outcome(run(config, tmp_path_factory.mktemp("local") / "run", executor=LocalExecutor).directory)


@pytest.mark.parametrize("actors", [1, 2])
def test_actors_change_no_bit_and_no_score(
    cluster: Cluster, config: Config, expected: tuple[list[str], dict[str, Metrics]], actors: int, tmp_path: Path
):
    engine = config.engine.model_copy(update={"executor": "ray", "actors": actors})
    on_ray = run(config.model_copy(update={"engine": engine}), tmp_path / "run", executor=RayExecutor)
    assert outcome(on_ray.directory) == expected
    assert set(expected[1]) == {"client-0", "client-1", "client-2"}
    assert all({"supervised", "semi-swav-10", "transfer-fedca"} <= set(scores) for scores in expected[1].values())
