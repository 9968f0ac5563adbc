"""What FedSC's clients send and receive, and what the server keeps."""

import pytest
import torch

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.methods.fedsc import mean_of_others
from rayfed_ssl.testing.trial import Round, play
from rayfed_ssl.trees import digest
from tests.methods.conftest import Open


@pytest.fixture(scope="module")
def federation(open_tiny: Open) -> Federation:
    return open_tiny("fedsc", "clients.number=4", "clients.fraction=0.67", "rounds=4")


@pytest.fixture(scope="module")
def rounds(federation: Federation) -> list[Round]:
    return play(federation)


def test_the_server_keeps_the_last_matrix_of_everybody_who_ever_sent_one(rounds: list[Round]):
    latest: dict[int, torch.Tensor] = {}
    for round in rounds:
        latest |= {client_id: upload.correlation for client_id, upload in round.uploads.items()}
        assert digest(round.server.correlations) == digest(latest)
    assert set(latest) == {0, 1, 2, 3}


def test_a_client_gets_the_others_mean_of_the_rounds_before(rounds: list[Round]):
    assert all(download.others is None for download in rounds[0].downloads.values())
    for round in rounds[1:]:
        bank = round.server_before
        for client_id, download in round.downloads.items():
            assert digest(download.others) == digest(mean_of_others(bank.correlations, bank.factors, client_id))


def test_a_dropped_outs_matrix_stays(federation: Federation, rounds: list[Round]):
    uploads = dict(list(rounds[1].uploads.items())[:1])
    after = federation.update_server(2, rounds[1].server_before, uploads).state
    assert set(after.correlations) == set(rounds[1].server_before.correlations) | set(uploads)
