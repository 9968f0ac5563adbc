"""Methods that must coincide do so bit for bit: no tolerance but where one is stated."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rayfed_ssl.aggregation.weighted_mean import weighted_mean
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.methods import FLESD, flesd
from rayfed_ssl.testing.trial import play, state_digests
from rayfed_ssl.training.feature_queue import SampleQueue
from rayfed_ssl.trees import digest

Tiny = Callable[..., Config]


def played(config: Config):
    return play(Federation.open(config))


@pytest.mark.parametrize("batch_norm", ["averaged", "local"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fedprox_without_a_term_is_fedavg(tiny: Tiny, weighting: str, batch_norm: str):
    settings = (f"method.weighting={weighting}", f"method.parts.batch_norm={batch_norm}")
    prox = played(tiny("fedprox", "method.mu=0", *settings))
    assert state_digests(prox) == state_digests(played(tiny("fedavg", *settings)))


def test_fedprox_conventions_differ_by_a_factor_of_two(tiny: Tiny):
    ours = played(tiny("fedprox", "method.mu=0.25", "method.convention=flesd"))
    papers = played(tiny("fedprox", "method.mu=0.5", "method.convention=original"))
    assert state_digests(ours) == state_digests(papers)


@pytest.mark.parametrize("batch_norm", ["averaged", "local"])
def test_fedavg_of_one_client_is_local_training(tiny: Tiny, batch_norm: str):
    """On one pooled shard; both begin each round with a fresh optimizer."""
    averaged = played(tiny("fedavg", "partition=pooled", "rounds=3", f"method.parts.batch_norm={batch_norm}"))
    alone = played(tiny("local", "partition=pooled", "rounds=3"))
    for average, own in zip(averaged, alone, strict=True):
        result = average.results[0]
        weights = average.server.weights | (result.state.kept if batch_norm == "local" else {})
        assert digest(weights) == digest(own.results[0].state.weights)


def test_fedavg_of_equal_shards_is_uniform(tiny: Tiny):
    """Shards of 32 samples: products with a power of two are exact, so both means round the same sums."""
    settings = ("data.train_limit=96", "partition=iid")
    weighted, uniform = (played(tiny("fedavg", *settings, f"method.weighting={w}")) for w in ("samples", "uniform"))
    assert [upload.num_samples for upload in weighted[0].uploads.values()] == [32, 32, 32]
    assert state_digests(weighted) == state_digests(uniform)


def test_fedavg_of_all_clients_with_one_upload_is_that_upload(tiny: Tiny):
    federation = Federation.open(tiny("fedavg"))
    (first, _) = play(federation)
    for client_id, upload in first.uploads.items():
        after = federation.update_server(1, first.server_before, {client_id: upload}).state
        assert digest(after.weights) == digest(upload.weights)


finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(
    values=st.lists(finite, min_size=1, max_size=8),
    counter=st.integers(0, 2**40),
    factor=st.integers(1, 10**7),
)
def test_the_mean_of_one_tree_is_that_tree(values: list[float], counter: int, factor: int):
    tree = {"w": torch.tensor(values), "half": torch.tensor(values).half(), "steps": torch.tensor(counter)}
    tree = {name: value for name, value in tree.items() if bool(value.isfinite().all())}
    assert digest(weighted_mean([(float(factor), tree)])) == digest(tree)


@given(values=st.lists(finite, min_size=1, max_size=8), times=st.integers(1, 5))
def test_the_mean_of_equal_trees_is_that_tree(values: list[float], times: int):
    tree = {"w": torch.tensor(values)}
    assert digest(weighted_mean([(1.0, tree)] * times)) == digest(tree)


def test_an_ensemble_of_one_teacher_is_that_teacher():
    matrix = flesd.sharpen(flesd.similarity(torch.eye(3, 5)), 0.1)
    assert torch.equal(flesd.ensemble([matrix.clone()]), matrix)


def test_an_ensemble_of_equal_teachers_is_that_teacher():
    matrix = flesd.sharpen(flesd.similarity(torch.eye(3, 5)), 0.1)
    assert torch.equal(flesd.ensemble([matrix.clone() for _ in range(4)]), matrix)


def test_a_student_with_the_teachers_representations_has_nothing_to_learn():
    """Student and target are the same distribution if k = q = R and tau_S = tau_T, as FLESD sets them."""
    rows = torch.nn.functional.normalize(
        torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1
    )
    ensembled = flesd.ensemble([flesd.sharpen(flesd.similarity(rows), 0.1)])
    queries, anchors = torch.tensor([0, 3, 8]), torch.tensor([1, 3, 4, 7])
    loss = FLESD().loss(ensembled, rows[queries], queries, SampleQueue(rows[anchors], anchors))
    assert abs(float(loss)) < 1e-14  # float64: logarithms of equal numbers computed in two ways


def test_similarities_in_full_precision_teach_as_representations_do(tiny: Tiny):
    federation = Federation.open(tiny("flesd"))
    representing: FLESD = federation.method
    comparing = replace(representing, upload="similarities")
    (first, *_) = play(federation, 1)
    for upload in first.uploads.values():
        rows = upload.representations.values
        matrices = [method.unpack(method.pack(rows), len(rows)) for method in (representing, comparing)]
        targets = [
            flesd.target_probabilities(flesd.sharpen(matrix, 0.1), torch.arange(len(rows)), torch.arange(len(rows)))
            for matrix in matrices
        ]
        # Cosines are rounded to 2^-24 after 24 products; the temperature multiplies the error by ten.
        torch.testing.assert_close(*matrices, rtol=0, atol=1e-6)
        torch.testing.assert_close(*targets, rtol=3e-5, atol=0)


def test_keeping_all_similarities_is_sending_all(tiny: Tiny):
    method = FLESD(upload="similarities", keep=0.999)
    rows = torch.nn.functional.normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    assert torch.equal(method.unpack(method.pack(rows), 6), flesd.similarity(rows))


def test_flesd_cc_is_flesd_with_one_round(tiny: Tiny):
    assert state_digests(played(tiny("flesd-cc"))) == state_digests(played(tiny("flesd", "rounds=1")))


def test_refilling_once_or_in_every_epoch_is_the_same_in_one_epoch(tiny: Tiny):
    first, epoch = (
        played(tiny("flesd", "rounds=1", "method.distil_epochs=1", f"method.refill={refill}"))
        for refill in ("first", "epoch")
    )
    assert state_digests(first) == state_digests(epoch)


def test_clients_that_all_have_the_global_architecture_do_not_differ(tiny: Tiny):
    named = played(tiny("flesd", "clients.models=[cnn, cnn]"))
    assert state_digests(named) == state_digests(played(tiny("flesd")))
