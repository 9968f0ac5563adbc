"""FedProx's term against float64."""

import pytest
import torch
from torch import nn

from rayfed_ssl.methods import FedProx
from rayfed_ssl.methods.fedavg import Download
from rayfed_ssl.methods.fedprox import proximal_term
from rayfed_ssl.models import Model
from tests.methods.conftest import Open
from tests.methods.steps import client_of


def small_model(seed: int) -> Model:
    torch.manual_seed(seed)
    return Model(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Linear(4, 2, bias=False), 2).double()


@pytest.mark.parametrize("mu", [0.001, 0.7, 3.0])
def test_the_proximal_term_and_its_gradient(mu: float):
    model, reference = small_model(1), small_model(2).state_dict()
    reference["encoder.1.running_mean"] += 100.0  # a statistic, not a parameter
    term = proximal_term(model, reference, mu)
    term.backward()
    total = 0.0
    for name, parameter in model.named_parameters():
        difference = parameter.detach() - reference[name]
        total += sum(value**2 for value in difference.flatten().tolist())
        torch.testing.assert_close(parameter.grad, 2 * mu * difference, rtol=1e-12, atol=0)
    assert float(term.detach()) == pytest.approx(mu * total, rel=1e-12)  # float64, a few dozen terms


@pytest.mark.parametrize(("convention", "strength"), [("flesd", 0.3), ("original", 0.15)])
def test_conventions_differ_by_a_factor_of_two(open_tiny: Open, convention: str, strength: float):
    task, model, reference = open_tiny("fedprox").task, small_model(1), small_model(2).state_dict()
    term = FedProx(mu=0.3, convention=convention).local_term(Download(reference), client_of(task))
    assert term is not None
    assert float(term(model, torch.zeros(1)).detach()) == pytest.approx(
        float(proximal_term(model, reference, strength).detach())
    )
