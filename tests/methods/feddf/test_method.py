"""What FedMD and FedDF send, keep and refuse, for clients of one and of four architectures."""

import pytest
import torch

from rayfed_ssl.aggregation.weighted_mean import weighted_mean
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.ledger import account
from rayfed_ssl.testing.trial import Round, play
from rayfed_ssl.trees import digest
from tests.methods.conftest import BYOL, Open

FOUR = (
    "clients.models=[resnet18, vgg9, alexnet, cnn]",
    "clients.number=4",
    *BYOL,
    "training.batch=64",
)
ARCHITECTURES = {0: "resnet18", 1: "vgg9", 2: "alexnet", 3: "cnn"}


@pytest.fixture(scope="module")
def agreeing(open_tiny: Open) -> Federation:
    return open_tiny("fedmd", *FOUR)


@pytest.fixture(scope="module")
def agreed(agreeing: Federation) -> list[Round]:
    return play(agreeing)


@pytest.fixture(scope="module")
def distilling(open_tiny: Open) -> Federation:
    return open_tiny("feddf", *FOUR)


@pytest.fixture(scope="module")
def distilled(distilling: Federation) -> list[Round]:
    return play(distilling)


def test_fedmd_sends_projections_of_public_samples_and_nothing_else(agreed: list[Round]):
    for round in agreed:
        for client_id, upload in round.uploads.items():
            (entry,) = account(upload, 1, client_id, "up")
            assert (entry.kind, entry.bytes) == ("representations", 45 * 24 * 4)
            norms = upload.representations.values.norm(dim=1)
            torch.testing.assert_close(norms, torch.ones(45), rtol=1e-5, atol=0)  # float32


def test_fedmds_consensus_goes_to_everybody_in_the_next_round(agreed: list[Round]):
    assert all(download.consensus is None for download in agreed[0].downloads.values())
    rows = [upload.representations.values.double() for upload in agreed[0].uploads.values()]
    for download in agreed[1].downloads.values():
        torch.testing.assert_close(download.consensus.double(), sum(rows) / 4, rtol=0, atol=1e-7)  # float32 sums
    assert all("digest_loss" not in result.metrics for result in agreed[0].results.values())
    assert all(result.metrics["digest_loss"] > 0 for result in agreed[1].results.values())


def test_fedmds_clients_keep_their_own_models_and_targets(agreeing: Federation, agreed: list[Round]):
    for client_id, result in agreed[1].results.items():
        assert result.state.architecture == ARCHITECTURES[client_id]
        assert {name.partition(".")[0] for name in result.state.weights} >= {"encoder", "projector", "target"}
    states = {k: result.state for k, result in agreed[1].results.items()}
    encoders = agreeing.method.encoders(agreed[1].server, states)
    assert {name: encoder.architecture for name, encoder in encoders.items()} == {
        f"client-{k}": name for k, name in ARCHITECTURES.items()
    }


def test_feddf_sends_a_client_the_weights_of_its_architecture(distilling: Federation, distilled: list[Round]):
    for round in distilled:
        for client_id, name in ARCHITECTURES.items():
            assert digest(round.downloads[client_id].weights) == digest(round.server_before.weights[name])
            assert round.uploads[client_id].architecture == name
    encoders = distilling.method.encoders(distilled[1].server, dict.fromkeys(ARCHITECTURES))
    assert {name: encoder.architecture for name, encoder in encoders.items()} == {
        f"client-{k}": name for k, name in ARCHITECTURES.items()
    }
    assert not any(name.startswith("target.") for encoder in encoders.values() for name in encoder.weights)


def test_feddf_averages_the_clients_of_an_architecture_by_their_samples(open_tiny: Open):
    federation = open_tiny("feddf", "clients.models=[cnn, vgg9, cnn]", "method.distil_epochs=0")
    (first,) = play(federation, 1)
    sizes = {k: len(rows) for k, rows in federation.shards.items()}
    expected = weighted_mean((sizes[k], first.uploads[k].weights) for k in (0, 2))
    assert digest(first.server.weights["cnn"]) == digest(expected)
    assert digest(first.server.weights["vgg9"]) == digest(first.uploads[1].weights)


def test_feddf_leaves_an_architecture_without_uploads_as_it_was(distilling: Federation, distilled: list[Round]):
    before = distilled[0].server_before
    uploads = {k: upload for k, upload in distilled[0].uploads.items() if k in (1, 3)}
    after = distilling.update_server(1, before, uploads).state
    changed = {name for name in before.weights if digest(after.weights[name]) != digest(before.weights[name])}
    assert changed == {"vgg9", "cnn"}


def test_feddf_distils_every_teacher_into_every_student(open_tiny: Open):
    """A student of one architecture changes with an upload of the other; without distillation it does not."""
    for epochs, changes in ((1, True), (0, False)):
        federation = open_tiny("feddf", "clients.models=[cnn, vgg9]", f"method.distil_epochs={epochs}")
        (first,) = play(federation, 1)
        fewer = {k: upload for k, upload in first.uploads.items() if upload.architecture == "cnn"}
        alone = federation.update_server(1, first.server_before, fewer).state
        assert (digest(alone.weights["cnn"]) != digest(first.server.weights["cnn"])) == changes


def test_feddf_of_one_architecture_shows_a_global_encoder(open_tiny: Open):
    federation = open_tiny("feddf", "clients.models=[vgg9]")
    encoders = federation.method.encoders(federation.init_server(), {})
    assert {name: encoder.architecture for name, encoder in encoders.items()} == {"global": "vgg9"}
