"""FedProx's term against float64."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from rayfed_ssl.engine.federation import Federation, training_seed
from rayfed_ssl.methods import FedProx
from rayfed_ssl.methods.fedprox import proximal_term
from rayfed_ssl.models import Model
from rayfed_ssl.training.objective import Batch
from rayfed_ssl.training.optimizers import SGD
from tests.methods.conftest import Open
from tests.methods.steps import shard_of
from tests.tensors import seeded


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
    """One step of plain SGD from w^t has no proximal gradient; the second has 2 strength (w_1 - w^t)."""
    federation = open_tiny("fedprox", "training.epochs=1", "training.batch=16", "partition=pooled")
    task = replace(federation.task, optimizer=SGD(lr=0.05, weight_decay=0.0, momentum=0.0))
    federation.task, federation.method = task, FedProx(mu=0.3, convention=convention)
    download = federation.method.download(federation.init_server(), 0)
    rows = federation.shards[0][:32]
    federation.shards = {0: rows}
    result = federation.update_client(1, 0, download, None)
    expected = two_steps_of_sgd(federation, download.weights, strength)
    for name, value in expected.items():
        # Two float32 steps of sums over 16 samples and some hundred products.
        torch.testing.assert_close(result.upload.weights[name], value, rtol=1e-4, atol=1e-6)


def two_steps_of_sgd(
    federation: Federation, start: dict[str, torch.Tensor], strength: float
) -> dict[str, torch.Tensor]:
    task = federation.task
    shard, generator = shard_of(federation, 0), seeded(training_seed(federation.config, 1, 0))
    model = task.model(start)
    order = torch.randperm(32, generator=generator)
    for batch in (order[:16], order[16:]):
        model.zero_grad()
        step = Batch(shard.batch(batch), batch, None, 0)
        task.objective.loss(task, model, nn.Module(), step, generator).loss.backward()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter -= 0.05 * (parameter.grad + 2 * strength * (parameter - start[name]))
    return {name: value.detach().contiguous() for name, value in model.state_dict().items()}
