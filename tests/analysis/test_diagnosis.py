"""Diagnosing a finished run: what diagnostics.json holds, and what is said where something cannot be computed."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rayfed_ssl.analysis.diagnosis import FILE, Diagnostics, compare_encoders, diagnose
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.method import Encoder
from rayfed_ssl.records.metric_rows import client_of
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.runs import run
from rayfed_ssl.storage.checkpoints import CheckpointError
from tests.conftest import TinyConfig

OpenTiny = Callable[..., Federation]
NAMES = ["client-0", "client-1", "client-2"]


@pytest.fixture(scope="module")
def local(tiny: TinyConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of clients that train alone."""
    return run(tiny("local", "evaluation.linear.epochs=1"), tmp_path_factory.mktemp("runs") / "local").directory


@pytest.fixture(scope="module")
def diagnosed(local: Path) -> Diagnostics:
    return diagnose(local)


def untrained(federation: Federation, *names: str) -> Diagnostics:
    """Diagnose encoders as they are before the first round."""
    models = {name: federation.task.architecture(client_of(name) or 0) for name in names}
    encoders = {name: Encoder(model, federation.task.initial_weights(model)) for name, model in models.items()}
    return compare_encoders(federation, encoders, 1)


def test_clients_own_models_are_compared(diagnosed: Diagnostics):
    assert list(diagnosed.encoders) == NAMES
    for numbers in diagnosed.encoders.values():
        assert numbers["architecture"] == "cnn"
        assert set(numbers) == {"architecture", "width", "feature_std", "effective_rank", "alignment", "uniformity"}
    assert set(diagnosed.matrices) == {"cka", "neighbors", "angle", "relation_distance"}
    for matrix in diagnosed.matrices.values():
        assert (matrix.encoders, matrix.clients) == (NAMES, [0, 1, 2])
        values = np.array(matrix.values)
        assert np.array_equal(values, values.T)
        low, high = matrix.range
        assert (values >= low).all()
        assert (values <= (math.inf if high is None else high)).all()
    assert np.diag(diagnosed.matrices["cka"].values) == pytest.approx(1, rel=1e-9)  # float64
    assert diagnosed.notes == []


def test_the_file_holds_what_was_compared(diagnosed: Diagnostics, tmp_path: Path):
    diagnosed.write(tmp_path)
    assert Diagnostics.model_validate_json((tmp_path / FILE).read_text()) == diagnosed
    assert (diagnosed.round, diagnosed.method, diagnosed.seed, diagnosed.samples) == (2, "local", 0, 60)


def test_a_global_encoder_alone_has_diagnostics_but_no_pairs(open_tiny: OpenTiny):
    diagnostics = untrained(open_tiny("fedavg"), "global")
    assert list(diagnostics.encoders) == ["global"]
    assert diagnostics.matrices == {}
    (note,) = diagnostics.notes
    assert note.startswith("the checkpoint holds no clients' models to compare, only the encoder global")


def test_models_that_clients_keep_beside_a_global_one_are_compared(tiny: TinyConfig, tmp_path: Path):
    config = tiny("fedema", "objective=byol", "objective.hidden=32", "rounds=1", "evaluation.linear.epochs=1")
    cka = diagnose(run(config, tmp_path / "run").directory).matrices["cka"]
    assert (cka.encoders, cka.clients) == (["global", *NAMES], [None, 0, 1, 2])


def test_encoders_of_mixed_widths_have_cka_but_no_angle(open_tiny: OpenTiny):
    diagnostics = untrained(open_tiny("local", "clients.models=[cnn, vgg9, cnn]"), *NAMES)
    for name in ("cka", "neighbors", "relation_distance"):
        assert all(value is not None for row in diagnostics.matrices[name].values for value in row)
    unlike = [[value is None for value in row] for row in diagnostics.matrices["angle"].values]
    assert unlike == [[False, True, False], [True, False, True], [False, True, False]]
    assert diagnostics.notes == [
        "encoders of different widths have no angle between them: CKA and neighbors in common compare them"
    ]


def test_encoders_without_their_projector_have_no_relation_matrix(open_tiny: OpenTiny):
    federation = open_tiny("local")
    whole = federation.task.initial_weights()
    bare = {name: value for name, value in whole.items() if not name.startswith("projector.")}
    diagnostics = compare_encoders(federation, {"client-0": Encoder("cnn", whole), "client-1": Encoder("cnn", bare)}, 1)
    assert set(diagnostics.matrices) == {"cka", "neighbors", "angle"}
    assert diagnostics.notes == [
        "relation matrices need a projector of one width in all of these encoders: see model.projection_dim"
    ]
    assert diagnostics.matrices["angle"].values == [[0, 0], [0, 0]]


def test_false_negatives_are_those_of_the_partition(local: Path, diagnosed: Diagnostics):
    ratios, federation = diagnosed.false_negatives, Federation.open(RunRecord.open(local).config())
    labels = [federation.dataset.train.labels[federation.shards[client]] for client in ratios.clients]
    for i, own in enumerate(labels):
        banks = [np.mean([np.mean(other == label) for label in own]) for other in labels]
        assert ratios.local[i] == pytest.approx(banks[i], rel=1e-9)  # float64
        assert ratios.fused[i] == pytest.approx(np.mean(banks), rel=1e-9)  # as above
        assert ratios.remote[i] == pytest.approx(np.mean(banks[:i] + banks[i + 1 :]), rel=1e-9)  # as above


def test_a_single_client_has_no_others_to_compare_with(open_tiny: OpenTiny):
    diagnostics = untrained(open_tiny("local", "partition={name: pooled}"), "client-0")
    assert diagnostics.notes == ["one client trains: there is nothing to compare it with"]
    assert diagnostics.false_negatives.remote is None
    assert diagnostics.false_negatives.fused == diagnostics.false_negatives.local
    assert diagnostics.matrices == {}


def test_an_earlier_round_can_be_diagnosed_but_none_that_is_missing(local: Path, diagnosed: Diagnostics):
    first = diagnose(local, 1)
    assert first.round == 1
    assert first.matrices != diagnosed.matrices
    with pytest.raises(CheckpointError, match="does not hold round 7"):
        diagnose(local, 7)


@pytest.mark.parametrize(("name", "expected"), [("client-012", 12), ("global", None), ("client-x", None)])
def test_names_of_encoders_hold_client_ids(name: str, expected: int | None):
    assert client_of(name) == expected


def test_features_that_overflow_are_one_error(open_tiny: OpenTiny):
    federation = open_tiny("local")
    weights = {
        name: value * 1e30 if value.is_floating_point() else value
        for name, value in federation.task.initial_weights().items()
    }
    with pytest.raises(ConfigError, match="encoder 'client-0' cannot be diagnosed: its features are not finite"):
        compare_encoders(federation, {"client-0": Encoder("cnn", weights)}, 1)
