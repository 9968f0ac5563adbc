"""FedFoA's bank and warm-up, what it takes over from its base, and what it refuses or says."""

import pytest
import torch

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.methods import FLESD, FedAvg, FedEMA, FedFoA, FedU, LocalOnly
from rayfed_ssl.testing.trial import Round, play
from rayfed_ssl.trees import digest
from tests.methods.conftest import Open, Tiny


@pytest.fixture(scope="module")
def federation(open_tiny: Open) -> Federation:
    return open_tiny("fedfoa", "clients.number=4", "clients.fraction=0.67", "rounds=6", "method.warm_up=2")


@pytest.fixture(scope="module")
def rounds(federation: Federation) -> list[Round]:
    return play(federation)


def test_nothing_is_sent_down_during_the_warm_up(rounds: list[Round]):
    for number, round in enumerate(rounds, 1):
        for download in round.downloads.values():
            assert (download.relations is None) == (number <= 2)


def test_the_bank_holds_the_last_matrix_of_everybody_who_ever_sent_one(rounds: list[Round]):
    latest: dict[int, torch.Tensor] = {}
    for round in rounds:
        latest |= {client_id: upload.relation for client_id, upload in round.uploads.items()}
        assert digest(round.server.bank) == digest(latest)
    assert set(latest) == {0, 1, 2, 3}


def test_a_client_gets_everybody_elses_matrix_and_not_its_own(rounds: list[Round]):
    for round in rounds[2:]:
        bank = round.server_before.bank
        for client_id, download in round.downloads.items():
            others = [bank[other] for other in sorted(bank) if other != client_id]
            assert digest(list(download.relations)) == digest(others)


def test_the_dropped_outs_matrix_stays(federation: Federation, rounds: list[Round]):
    uploads = dict(list(rounds[1].uploads.items())[:1])
    after = federation.update_server(2, rounds[1].server_before, uploads).state
    assert set(after.bank) == set(rounds[1].server_before.bank) | set(uploads)


@pytest.mark.parametrize("base", [LocalOnly(), FLESD(), FedAvg(), FedEMA()])
def test_the_base_says_what_the_run_needs(base: object):
    method = FedFoA(base=base)
    assert method.needs_public == base.needs_public
    assert method.averages_weights == base.averages_weights


def test_a_base_is_named_and_set_up_in_the_configuration(tiny: Tiny):
    assert tiny("fedfoa", "method.base=fedema").method.base == FedEMA()
    assert tiny("fedfoa", "method.base=fedu", "method.base.threshold=0.2").method.base == FedU(threshold=0.2)
    config = tiny("fedfoa", "method={name: fedfoa, base: {name: fedavg, weighting: uniform}, strength: 0.1}")
    assert config.method == FedFoA(base=FedAvg(weighting="uniform"), strength=0.1)
    assert Config.load(config.dump()) == config
