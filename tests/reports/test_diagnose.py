"""Diagnosing a finished run: what diagnostics.json holds, and what is said where something cannot be computed."""

import errno
import math
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.method import Encoder
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.diagnose import FILE, Diagnostics, client_of, compare_encoders, diagnose
from rayfed_ssl.runs import run
from rayfed_ssl.storage.checkpoints import CheckpointError

Runs = Callable[..., Path]


@pytest.fixture(scope="module")
def finished(tiny: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Make a run, once for the same settings."""
    made: dict[tuple[str, ...], Path] = {}

    def of(*settings: str) -> Path:
        if settings not in made:
            config = tiny(settings[0], "evaluation.linear.epochs=1", "rounds=2", *settings[1:])
            made[settings] = run(config, tmp_path_factory.mktemp("runs") / "run").directory
        return made[settings]

    return of


def test_clients_own_models_are_compared(finished: Runs):
    found = diagnose(finished("local"))
    names = ["client-0", "client-1", "client-2"]
    assert list(found.encoders) == names
    for numbers in found.encoders.values():
        assert numbers["architecture"] == "cnn"
        assert set(numbers) == {"architecture", "width", "feature_std", "effective_rank", "alignment", "uniformity"}
    assert set(found.matrices) == {"cka", "angle", "relation_distance"}
    for matrix in found.matrices.values():
        assert (matrix.encoders, matrix.clients) == (names, [0, 1, 2])
        values = np.array(matrix.values)
        assert np.array_equal(values, values.T)
        low, high = matrix.range
        assert (values >= low).all()
        assert (values <= (math.inf if high is None else high)).all()
    assert np.diag(found.matrices["cka"].values) == pytest.approx(1, rel=1e-9)  # float64
    assert found.notes == []


def test_boxes_belong_to_the_matrix_of_angles(finished: Runs):
    found = diagnose(finished("local"))
    values = found.matrices["angle"].values
    assert [box.clients for box in found.angles] == [list(pair) for pair in combinations(range(3), 2)]
    for box in found.angles:
        one, other = box.clients
        assert box.lower < box.median < box.upper
        assert values[one][other] == box.median


def test_the_file_holds_what_is_returned_and_nothing_else_changes(finished: Runs):
    directory = finished("local")
    (directory / FILE).unlink(missing_ok=True)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    found = diagnose(directory)
    assert Diagnostics.model_validate_json((directory / FILE).read_text()) == found
    after = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != FILE}
    assert after == before
    assert (found.round, found.method, found.seed, found.samples) == (2, "local", 0, 60)


def test_a_global_encoder_has_its_numbers_and_nothing_to_be_compared_with(finished: Runs):
    found = diagnose(finished("fedavg"))
    assert list(found.encoders) == ["global"]
    assert (found.matrices, found.angles) == ({}, [])
    (note,) = found.notes
    assert note.startswith("the checkpoint holds no clients' models to compare, only the encoder global")


def test_models_that_clients_keep_beside_a_global_one_are_compared(finished: Runs):
    found = diagnose(finished("fedema", "objective=byol", "objective.hidden=32"))
    assert found.matrices["cka"].clients == [None, 0, 1, 2]
    assert found.matrices["cka"].encoders == ["global", "client-0", "client-1", "client-2"]


def test_mixed_widths_have_cka_and_what_has_no_angle_is_said(finished: Runs):
    found = diagnose(finished("local", "clients.models=[cnn, vgg9, cnn]"))
    assert all(value is not None for row in found.matrices["cka"].values for value in row)
    angle = found.matrices["angle"].values
    assert [[value is None for value in row] for row in angle] == [
        [False, True, False],
        [True, False, True],
        [False, True, False],
    ]
    assert [box.clients for box in found.angles] == [[0, 2]]
    assert all(value is not None for row in found.matrices["relation_distance"].values for value in row)
    assert found.notes == ["encoders of different widths have no angle between them: CKA compares them"]


def test_encoders_of_nothing_but_different_widths_have_no_table_of_angles(finished: Runs):
    found = diagnose(finished("local", "clients.models=[cnn, vgg9]", "clients.number=2"))
    assert set(found.matrices) == {"cka", "relation_distance"}
    assert found.angles == []


def test_encoders_without_their_projector_have_no_relation_matrix(open_tiny: Callable[..., Federation]):
    federation = open_tiny("local")
    whole = federation.task.initial_weights()
    bare = {name: value for name, value in whole.items() if not name.startswith("projector.")}
    found = compare_encoders(federation, {"client-0": Encoder("cnn", whole), "client-1": Encoder("cnn", bare)}, 1)
    assert set(found.matrices) == {"cka", "angle"}
    assert found.notes == ["relation matrices need the projector, which not all of these encoders have"]
    assert found.matrices["angle"].values == [[0, 0], [0, 0]]


def test_false_negatives_are_those_of_the_partition(finished: Runs):
    directory = finished("local")
    found = diagnose(directory).false_negatives
    federation = Federation.open(RunRecord.open(directory).config())
    labels = [federation.dataset.train.labels[federation.shards[client]] for client in found.clients]
    for i, own in enumerate(labels):
        banks = [np.mean([np.mean(other == label) for label in own]) for other in labels]
        assert found.local[i] == pytest.approx(banks[i], rel=1e-9)  # float64
        assert found.fused[i] == pytest.approx(np.mean(banks), rel=1e-9)  # as above
        assert found.remote[i] == pytest.approx(np.mean(banks[:i] + banks[i + 1 :]), rel=1e-9)  # as above


def test_one_client_alone_has_no_others(finished: Runs):
    found = diagnose(finished("local", "partition={name: pooled}"))
    assert found.notes == ["one client trains: there is nothing to compare it with"]
    assert found.false_negatives.remote is None
    assert found.false_negatives.fused == found.false_negatives.local
    assert found.matrices == {}


def test_an_earlier_round_can_be_looked_at_and_a_lost_one_is_named(finished: Runs):
    directory = finished("local")
    first, second = diagnose(directory, 1), diagnose(directory)
    assert (first.round, second.round) == (1, 2)
    assert first.matrices != second.matrices
    with pytest.raises(CheckpointError, match="does not hold round 7"):
        diagnose(directory, 7)


def test_a_directory_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="holds no run"):
        diagnose(tmp_path)


def test_the_result_is_the_same_every_time(finished: Runs):
    assert diagnose(finished("local")) == diagnose(finished("local"))


@pytest.mark.parametrize(
    ("name", "expected"), [("client-3", 3), ("client-012", 12), ("global", None), ("initial", None), ("client-x", None)]
)
def test_encoders_of_clients_are_known_by_name(name: str, expected: Any):
    assert client_of(name) == expected


def test_features_that_overflow_are_one_error(open_tiny: Callable[..., Federation]):
    federation = open_tiny("local")
    weights = {
        name: value * 1e30 if value.is_floating_point() else value
        for name, value in federation.task.initial_weights().items()
    }
    with pytest.raises(ConfigError, match="encoder 'client-0' cannot be diagnosed: its features are not finite"):
        compare_encoders(federation, {"client-0": Encoder("cnn", weights)}, 1)


def test_what_cannot_be_written_is_given_all_the_same(finished: Runs, monkeypatch: pytest.MonkeyPatch):
    def refuse(path: Path, content: bytes) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    expected = diagnose(finished("local"))
    monkeypatch.setattr("rayfed_ssl.reports.diagnose.write_atomically", refuse)
    told: list[OSError] = []
    assert diagnose(finished("local"), on_unwritten=told.append) == expected
    assert len(told) == 1
    with pytest.raises(OSError, match="Read-only"):
        diagnose(finished("local"))
