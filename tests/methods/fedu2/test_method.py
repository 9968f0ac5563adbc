"""FedU2's clients and what its server does at the edges."""

from dataclasses import replace

from rayfed_ssl.testing.trial import play
from rayfed_ssl.trees import digest
from tests.methods.conftest import Open


def test_small_clients_fill_the_steps_of_large_ones_with_whole_epochs(open_tiny: Open):
    federation = open_tiny("fedu2", "method.max_steps=7", "training.batch=16")
    (round,) = play(federation, 1)
    batches = {k: -(-len(rows) // 16) for k, rows in federation.shards.items()}
    assert len(set(batches.values())) > 1
    expected = {k: max(1, min(7 // number, 10)) * number for k, number in batches.items()}
    assert {k: result.metrics["steps"] for k, result in round.results.items()} == expected


def test_clients_that_have_not_moved_leave_the_global_model_as_it_is(open_tiny: Open):
    federation = open_tiny("fedu2")
    (round,) = play(federation, 1)
    still = {k: replace(upload, weights=round.server_before.weights) for k, upload in round.uploads.items()}
    outcome = federation.update_server(1, round.server_before, still)
    assert digest(outcome.state.weights) == digest(round.server_before.weights)
    assert outcome.metrics["agreement"] == 0
