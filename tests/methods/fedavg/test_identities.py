"""Settings at which FedAvg is another method, bit for bit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rayfed_ssl.aggregation.weighted_mean import weighted_mean
from rayfed_ssl.testing.trial import state_digests
from rayfed_ssl.trees import digest
from tests.methods.conftest import Played


@pytest.mark.parametrize("batch_norm", ["averaged", "local"])
def test_fedavg_of_one_client_is_local_training(played: Played, batch_norm: str):
    """On one pooled shard; both begin each round with a fresh optimizer."""
    averaged = played("fedavg", "partition=pooled", "rounds=3", f"method.parts.batch_norm={batch_norm}")
    alone = played("local", "partition=pooled", "rounds=3")
    for average, own in zip(averaged, alone, strict=True):
        result = average.results[0]
        weights = average.server.weights | (result.state.kept if batch_norm == "local" else {})
        assert digest(weights) == digest(own.results[0].state.weights)


def test_fedavg_of_equal_shards_is_uniform(played: Played):
    """Shards of 32 samples: products with a power of two are exact, so both means round the same sums."""
    settings = ("data.train_limit=96", "partition=iid")
    weighted, uniform = (played("fedavg", *settings, f"method.weighting={w}") for w in ("samples", "uniform"))
    assert [upload.num_samples for upload in weighted[0].uploads.values()] == [32, 32, 32]
    assert state_digests(weighted) == state_digests(uniform)


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


def test_clients_that_all_have_the_global_architecture_do_not_differ(played: Played):
    assert state_digests(played("flesd", "clients.models=[cnn, cnn]")) == state_digests(played("flesd"))
