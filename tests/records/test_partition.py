"""What run.json says about the partition, and that a run goes on with no other one."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.local_executor import LocalExecutor
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.records.manifest import RunManifest, describe
from rayfed_ssl.runs import resume, run

TinyConfig = Callable[..., Config]

SHARDS = [[1436, 3, 8, 0], [40, 41, 42, 43, 44, 45], [100, 7, 9]]


@pytest.fixture
def split(tmp_path: Path) -> Path:
    (tmp_path / "split.json").write_text(json.dumps(SHARDS))
    return tmp_path / "split.json"


@pytest.fixture
def config(tiny: TinyConfig, split: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.chdir(split.parent)
    return tiny("fedavg", "data.train_limit=null", "partition={name: file, path: split.json}")


def test_the_clients_of_a_file_are_those_of_the_federation(config: Config, split: Path):
    assert config.dump()["partition"] == {"name": "file", "path": str(split)}
    federation = Federation.open(config)
    assert {client: rows.tolist() for client, rows in federation.shards.items()} == dict(enumerate(map(sorted, SHARDS)))


def test_indices_are_refused_where_a_part_is_held_out_as_public(tiny: TinyConfig, split: Path):
    with pytest.raises(ConfigError, match="counts the whole training set, and public would take samples out of it"):
        tiny("flesd", "data.train_limit=null", f"partition={{name: file, path: {split}}}")


def test_the_record_says_how_skewed_the_clients_are(open_tiny: Callable[..., Federation], tmp_path: Path):
    federation = open_tiny("fedavg")
    manifest = describe(federation, LocalExecutor(federation).arithmetic())
    labels, shards = federation.dataset.train.labels, federation.shards
    everyone = labels[np.concatenate(list(shards.values()))]
    distances = [
        sum(abs((labels[rows] == label).mean() - (everyone == label).mean()) for label in range(10)) / 2
        for rows in shards.values()
    ]
    assert manifest.data.skew.label_distance == pytest.approx(sum(distances) / 3, rel=1e-12)
    (tmp_path / "run.json").write_text(manifest.text())
    assert RunManifest.read(tmp_path / "run.json").data == manifest.data


def test_a_run_does_not_go_on_with_another_file(config: Config, split: Path, tmp_path: Path):
    run(config, tmp_path / "run", until=1)
    split.write_text(json.dumps([[1436, 3, 8, 1], *SHARDS[1:]]))  # sizes are the same
    with pytest.raises(ConfigError, match="partition=file gives clients other samples than when this run began"):
        resume(tmp_path / "run")
    split.write_text(json.dumps([rows[::-1] for rows in SHARDS]))  # the order of a client's indices means nothing
    assert resume(tmp_path / "run").state_sha256 == run(config, tmp_path / "whole").state_sha256
