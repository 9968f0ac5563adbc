"""What FedCA sends, keeps and refuses."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.ledger import account
from rayfed_ssl.methods import fedca
from rayfed_ssl.testing.trial import Round, play
from rayfed_ssl.trees import digest
from tests.methods.conftest import Open
from tests.methods.steps import client_of, shard_of


@pytest.fixture(scope="module")
def federation(open_tiny: Open) -> Federation:
    return open_tiny("fedca", "rounds=3", "method.dictionary_size=34")


@pytest.fixture(scope="module")
def rounds(federation: Federation) -> list[Round]:
    return play(federation)


def test_the_dictionary_is_empty_at_first_and_then_k_unit_rows_of_all_clients(rounds: list[Round]):
    assert all(download.dictionary is None for download in rounds[0].downloads.values())
    for before, after in pairwise(rounds):
        uploads = list(before.uploads.values())
        expected = torch.cat([upload.dictionary[:n] for upload, n in zip(uploads, (12, 11, 11), strict=True)])
        for download in after.downloads.values():
            assert torch.equal(download.dictionary, expected)
        torch.testing.assert_close(expected.norm(dim=1), torch.ones(34), rtol=1e-5, atol=0)  # float32


def test_a_client_sends_different_samples_and_no_more_than_it_has(federation: Federation, rounds: list[Round]):
    sizes = {k: len(rows) for k, rows in federation.shards.items()}
    assert min(sizes.values()) < 34 <= max(sizes.values())
    for client_id, upload in rounds[0].uploads.items():
        assert len(upload.dictionary) == min(34, sizes[client_id])
        assert len(upload.dictionary.unique(dim=0)) == len(upload.dictionary)
        assert upload.num_samples == sizes[client_id]


def test_what_to_align_with_is_sent_once(federation: Federation, rounds: list[Round]):
    assert all(download.aligned is not None for download in rounds[0].downloads.values())
    for round in rounds[1:]:
        assert all(download.aligned is None for download in round.downloads.values())
    aligned = rounds[0].server_before.aligned
    assert aligned.features.shape == (45, 256)
    assert aligned.projections.shape == (45, 24)
    for round in rounds:
        assert {digest(result.state.aligned) for result in round.results.values()} == {digest(aligned)}
    entries = account(rounds[0].downloads[0], 1, 0, "down")
    assert {(e.kind, e.field, e.bytes) for e in entries if e.field == "aligned"} == {
        ("representations", "aligned", 45 * (256 + 24) * 4)
    }


def test_a_newcomer_is_sent_what_to_align_with_whenever_it_comes(federation: Federation, rounds: list[Round]):
    uploads = {k: upload for k, upload in rounds[0].uploads.items() if k != 2}
    after = federation.update_server(1, rounds[0].server_before, uploads).state
    assert federation.method.download(after, 0).aligned is None
    assert federation.method.download(after, 2).aligned is not None
    assert len(after.dictionary) == 34  # two clients share it


def test_ensembles_go_on_from_round_to_round(federation: Federation, rounds: list[Round]):
    """Z^t = Z^(t-1) / 2 + z^t / 2, from the trained local model on plain images."""
    for client_id in rounds[0].results:
        ensembled = None
        for round in rounds:
            upload = round.uploads[client_id]
            model = federation.task.model(upload.weights)
            z = federation.task.represent(model, shard_of(federation, client_id))[1]
            ensembled = z / 2 if ensembled is None else ensembled / 2 + z / 2
            # The same numbers by another order of float32 operations.
            torch.testing.assert_close(round.results[client_id].state.ensembled, ensembled, rtol=1e-5, atol=1e-6)
            unit = ensembled / ensembled.norm(dim=1, keepdim=True)
            distances = torch.cdist(upload.dictionary.double(), unit.double()).amin(dim=1)
            assert float(distances.max()) < 1e-4


def test_without_a_dictionary_no_projection_leaves_a_client(open_tiny: Open):
    for round in play(open_tiny("fedca", "method.dictionary=false")):
        assert not any(hasattr(upload, "dictionary") for upload in round.uploads.values())
        assert round.server.dictionary is None
        assert all(result.state.ensembled is None for result in round.results.values())


def test_the_alignment_model_is_trained_on_public_data_alone(open_tiny: Open):
    federation = open_tiny("fedca", "method.align_epochs=3")
    aligned = federation.init_server().aligned
    task = federation.task
    model = task.model(task.initial_weights())
    untrained = task.represent(model, federation._server_public)[1]
    assert not torch.allclose(aligned.projections, untrained)
    other = open_tiny("fedca", "method.align_epochs=3")
    hidden = [row for rows in other.shards.values() for row in rows]
    images = other.dataset.train.images.copy()
    images[hidden] = 0
    object.__setattr__(other.dataset.train, "images", images)
    assert digest(other.init_server().aligned) == digest(aligned)


def test_the_alignment_of_a_step_records_nothing(federation: Federation, rounds: list[Round]):
    public, task = federation._server_public, federation.task
    model, client = task.model(task.initial_weights()), client_of(task, public, public)
    before = {name: value.clone() for name, value in model.named_buffers()}
    federation.method.alignment(client, rounds[0].server_before.aligned)(model, torch.zeros(1)).backward()
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters())


def test_layers_without_running_statistics_stay_so():
    model = nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False), nn.BatchNorm1d(2))
    with fedca.unrecorded(model):
        pass
    assert [layer.track_running_stats for layer in model] == [False, True]
