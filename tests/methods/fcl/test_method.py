"""What FCL sends, keeps and refuses."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from rayfed_ssl.data.instahide import encrypt
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.methods import FCL
from rayfed_ssl.testing.trial import Round, play
from rayfed_ssl.trees import digest
from tests.methods.conftest import MOCO, Open
from tests.methods.steps import client_of, shard_of
from tests.tensors import seeded


@pytest.fixture(scope="module")
def federation(open_tiny: Open) -> Federation:
    return open_tiny("fcl", *MOCO, "rounds=3")


@pytest.fixture(scope="module")
def rounds(federation: Federation) -> list[Round]:
    return play(federation)


def test_a_client_receives_the_others_last_features_and_never_its_own(rounds: list[Round]):
    assert all(download.features is None for download in rounds[0].downloads.values())
    for before, after in pairwise(rounds):
        for client_id, download in after.downloads.items():
            others = [upload.features for k, upload in before.uploads.items() if k != client_id]
            assert digest(list(download.features)) == digest(others)


def test_a_client_that_is_missing_is_in_nobodys_features(federation: Federation, rounds: list[Round]):
    uploads = {k: upload for k, upload in rounds[0].uploads.items() if k != 1}
    after = federation.update_server(1, rounds[0].server_before, uploads).state
    assert sorted(after.features) == [0, 2]
    assert len(federation.method.download(after, 1).features) == 2
    assert len(federation.method.download(after, 0).features) == 1


def test_a_client_alone_has_nobodys_features(federation: Federation, rounds: list[Round]):
    after = federation.update_server(1, rounds[0].server_before, {0: rounds[0].uploads[0]}).state
    assert federation.method.download(after, 0).features is None
    result = federation.update_client(2, 0, federation.method.download(after, 0), rounds[0].results[0].state)
    assert all(value == value for value in result.metrics.values())


@pytest.mark.parametrize("mixed", [3, 1])
def test_features_are_those_of_encrypted_images_by_the_momentum_model(
    federation: Federation, rounds: list[Round], mixed: int
):
    """Drawn again by hand: which images, then a second view of each, then the keys, batch by batch."""
    task, weights = federation.task, rounds[0].uploads[0].weights
    data = shard_of(federation, 0)
    found = FCL(features=24, mixed=mixed).encode_encrypted(weights, client_of(replace(task, batch=10), data))
    generator, rows = seeded(), []
    model = task.model({name[7:]: value for name, value in weights.items() if name.startswith("target.")})
    chosen = torch.randperm(len(data), generator=generator)[:24]
    for index in (chosen[:12], chosen[12:]):  # no batch is smaller than a batch: batch-norm needs more than one image
        views = task.augment(data.batch(index), task.views.second, generator)
        outputs = model(encrypt(views, 3, generator) if mixed == 3 else views)[1].detach()
        rows.append(outputs / outputs.norm(dim=1, keepdim=True))
    torch.testing.assert_close(found, torch.cat(rows), rtol=1e-5, atol=1e-6)  # one division in another order


@pytest.mark.parametrize("num", [2, 3, 5])
def test_a_client_smaller_than_a_batch_sends_what_it_has(federation: Federation, rounds: list[Round], num: int):
    client = client_of(replace(federation.task, batch=2), shard_of(federation, 0, num))
    download = federation.method.download(rounds[0].server, 0)
    upload, _, metrics = federation.method.update_client(download, rounds[0].results[0].state, client)
    assert len(upload.features) == num
    assert bool(upload.features.isfinite().all())
    assert metrics["loss"] == metrics["loss"]


def test_without_fusion_no_feature_leaves_a_client(open_tiny: Open):
    for round in play(open_tiny("fcl", *MOCO, "method.fusion=false", "method.neighborhood=0")):
        assert not any(hasattr(upload, "features") for upload in round.uploads.values())
        assert round.server.features == {}
