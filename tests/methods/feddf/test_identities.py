"""Settings at which FedDF is another method, bit for bit."""

import pytest

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.testing.trial import play
from rayfed_ssl.trees import digest
from tests.methods.conftest import Open, Played, Tiny

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("settings", [(), ("clients.models=[vgg9]", "model.encoder=vgg9")], ids=["cnn", "vgg9"])
def test_feddf_without_distillation_is_fedavg_where_there_is_one_architecture(
    tiny: Tiny, open_tiny: Open, settings: tuple[str, ...]
):
    """On the same shards, from which the public samples were taken."""
    federation = open_tiny("feddf", "method.distil_epochs=0", *settings)
    averaged = play(Federation(tiny("fedavg", *settings), federation.dataset, federation.shards))
    for one, other in zip(play(federation), averaged, strict=True):
        for client_id, upload in one.uploads.items():
            assert digest(upload.weights) == digest(other.uploads[client_id].weights)
        assert digest(one.server.weights[other.server.architecture]) == digest(other.server.weights)


def test_feddf_of_as_many_architectures_as_clients_averages_nothing(played: Played):
    (first, _) = played("feddf", "method.distil_epochs=0", "clients.models=[cnn, vgg9, alexnet]")
    for upload in first.uploads.values():
        assert digest(first.server.weights[upload.architecture]) == digest(upload.weights)


def test_an_ensemble_of_one_teacher_is_that_teacher(open_tiny: Open):
    """A student that starts as its only teacher, without batch-norm and dropout, has next to nothing to learn."""
    batch = "method.distil_batch=45"  # one step: the loss before any step
    federation = open_tiny("feddf", "clients.models=[alexnet]", "method.distil_epochs=1", batch)
    (first,) = play(federation, 1)
    outcome = federation.update_server(1, first.server_before, {1: first.uploads[1]})
    # Teacher and student are the same function; MSE of unit rows is in squared float32 rounding until Adam moves.
    assert outcome.metrics["distil_loss"] < 1e-12
    assert outcome.metrics["distil_steps"] == 1
