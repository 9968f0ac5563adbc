"""FedSIGReg against SIGReg of all samples in one place, its identities, and what it sends."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.ledger import account
from rayfed_ssl.methods.fedsigreg import FedSIGReg
from rayfed_ssl.objectives import LeJEPA
from rayfed_ssl.objectives.lejepa import characteristic, directions, epps_pulley, normality
from rayfed_ssl.testing.trial import Round, play
from rayfed_ssl.trees import digest
from tests.methods.conftest import Open, Played
from tests.objectives.linear_model import batch_of, linear_model
from tests.tensors import EXACT, rows, seeded

LEJEPA = ("objective={name: lejepa, hidden: 48, directions: 32}",)
SETTINGS = {"largest": 3.0, "knots": 17}


def weights(rounds: list[Round]) -> list[str]:
    return [digest(round.server.weights) for round in rounds]


def test_the_weighted_mean_of_functions_is_that_of_all_samples():
    parts = [rows(num, 4, num) for num in (3, 5, 2)]
    mean = sum(len(part) * characteristic(part, **SETTINGS) for part in parts) / 10
    torch.testing.assert_close(mean, characteristic(torch.cat(parts), **SETTINGS), rtol=EXACT, atol=EXACT)


def test_a_samples_gradient_is_that_of_sigreg_over_everybodys_samples():
    """Of a client with 4 of 10 samples, which sees its own in one batch."""
    own, others = rows(4, 3, 1).requires_grad_(), rows(6, 3, 2)
    everybody = epps_pulley(torch.cat([own, others]), 3.0, 17).mean()
    mixed = 0.4 * characteristic(own, **SETTINGS) + 0.6 * characteristic(others, **SETTINGS)
    ours = normality(mixed, len(own) / 0.4, 3.0).mean()
    assert float(ours.detach()) == pytest.approx(float(everybody.detach()), rel=EXACT)
    (expected,), (gradient,) = (torch.autograd.grad(value, own) for value in (everybody, ours))
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=EXACT)


def test_a_step_mixes_the_others_functions_into_each_views(open_tiny: Open):
    task = replace(open_tiny("fedsigreg").task, objective=LeJEPA(strength=0.3, directions=16))
    model, along, others = linear_model(5), directions(5, 16, seeded(4), torch.device("cpu")), rows(4, 16, 5).float()
    others = characteristic(others, **SETTINGS)
    step = partial(FedSIGReg().loss, task, seeded(2), along, others, torch.tensor([0.25, 0.75]))
    loss = step(model, nn.Module(), batch_of()).loss
    views = task.objective.project(task, model, batch_of().images, seeded(2))

    def statistic(view: Tensor) -> Tensor:
        return normality(0.25 * characteristic(view @ along, **SETTINGS) + 0.75 * others, len(view) / 0.25, 3.0).mean()

    expected = 0.7 * (views - views.mean(0)).square().mean() + 0.3 * (statistic(views[0]) + statistic(views[1])) / 2
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_of_one_client_it_is_lejepa_alone(played: Played):
    settings = ("partition=pooled", "rounds=3")
    assert weights(played("fedsigreg", *settings)) == weights(played("fedavg", *LEJEPA, *settings))


def test_the_first_round_is_fedavgs_and_the_second_is_not(played: Played):
    ours, theirs = weights(played("fedsigreg")), weights(played("fedavg", *LEJEPA))
    assert ours[0] == theirs[0]
    assert ours[1] != theirs[1]


@pytest.fixture(scope="module")
def federation(open_tiny: Open) -> Federation:
    return open_tiny("fedsigreg", "clients.number=4", "clients.fraction=0.67", "rounds=3")


def test_functions_are_those_of_the_last_rounds_other_clients(federation: Federation):
    last = play(federation)[-1]
    assert set(last.server.functions) == set(last.uploads)
    one, *others = sorted(last.uploads)
    download = federation.method.download(last.server, one)
    sizes = [last.uploads[other].num_samples for other in others]
    mean = sum(size * last.uploads[k].functions.double() for k, size in zip(others, sizes, strict=True)) / sum(sizes)
    torch.testing.assert_close(download.others.double(), mean, rtol=1e-6, atol=1e-7)
    assert download.weight == sum(sizes)
    entries = {entry.field: entry for entry in account(last.uploads[one], 1, one, "up")}
    assert entries["functions"].kind == "statistics"
    assert entries["functions"].bytes == 2 * 32 * 17 * 4
    assert last.uploads[one].functions.abs().max() <= 1
