"""FedSC's correlation matrices and its loss against naive loops."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from rayfed_ssl.aggregation.compression import symmetric
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.methods import FedSC
from rayfed_ssl.methods.fedsc import contrast, mean_of_others, own_share
from rayfed_ssl.objectives import Spectral
from rayfed_ssl.training.objective import Batch
from tests.methods.conftest import Open
from tests.methods.steps import client_of, linear, pixels, projected, shard_of
from tests.objectives import naive_spectral
from tests.tensors import EXACT, rows, seeded

ALPHAS = [1.0, 0.7, 0.2]


def weights_of(alpha: float) -> Tensor:
    return torch.tensor([alpha, 2 * (1 - alpha)], dtype=torch.float64)


def symmetric_rows(dim: int, seed: int) -> Tensor:
    values = rows(dim + 2, dim, seed)
    return values.T @ values / len(values)


@pytest.fixture(scope="module")
def federation(open_tiny: Open) -> Federation:
    return open_tiny("fedsc")


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_contrast_is_with_own_and_others_correlations(alpha: float):
    own, others = symmetric_rows(4, 1), symmetric_rows(4, 2)
    places = [(i, j) for i in range(4) for j in range(4)]
    expected = alpha * math.fsum(float(own[place]) ** 2 for place in places)
    expected += 2 * (1 - alpha) * math.fsum(float(own[place]) * float(others[place]) for place in places)
    assert float(contrast(own, others, weights_of(alpha))) == pytest.approx(expected, rel=EXACT)


def test_with_the_clients_weight_as_alpha_gradients_add_up_to_the_global_objectives():
    """||sum_k q_k R_k||^2 has the gradient of sum_k q_k contrast(R_k, R_-k, q_k), where R_-k is held still."""
    weights, matrices = [0.5, 0.3, 0.2], [symmetric_rows(3, seed).requires_grad_() for seed in range(3)]
    sum(q * r for q, r in zip(weights, matrices, strict=True)).square().sum().backward()
    expected = [matrix.grad for matrix in matrices]
    for k, q in enumerate(weights):
        own = matrices[k].detach().requires_grad_()
        others = sum(weights[j] * matrices[j].detach() for j in range(3) if j != k) / (1 - q)
        (q * contrast(own, others, weights_of(q))).backward()
        torch.testing.assert_close(own.grad, expected[k], rtol=EXACT, atol=EXACT)


def test_the_others_mean_leaves_a_client_out_and_is_weighted():
    correlations = {k: rows(1, 6, k)[0].float() for k in (0, 3, 4)}
    factors = {0: 5.0, 3: 1.0, 4: 2.0}
    mean = mean_of_others(correlations, factors, 0)
    expected = [(a + 2 * b) / 3 for a, b in zip(correlations[3].tolist(), correlations[4].tolist(), strict=True)]
    assert mean is not None
    assert mean.tolist() == pytest.approx(expected, rel=1e-6)  # sent as float32
    assert mean_of_others({2: correlations[0]}, {2: 1.0}, 2) is None


def test_the_share_of_own_correlations_falls_along_a_line():
    assert [own_share(t, 4, 1.0, 0.2) for t in (1, 2, 3, 4)] == pytest.approx([1.0, 0.8, 0.6, 0.4])


def test_a_clients_correlation_is_the_mean_over_all_views_of_its_shard(federation: Federation):
    method, task = FedSC(passes=2), replace(federation.task, batch=5, objective=Spectral(mu=0.5))
    shard = shard_of(federation, 1, num=13)
    weights = task.initial_weights()
    packed = method.correlation(weights, client_of(task, shard))
    model, generator, expected = task.model(weights).eval(), seeded(), []
    for _ in range(2):
        for index in torch.arange(13).split(5):
            for view in task.two_views(shard.batch(index), generator):
                expected += [naive_spectral.shortened(row, 0.5) for row in model(view)[1].double().tolist()]
    assert len(expected) == 2 * 2 * 13
    naive = torch.tensor(naive_spectral.correlation(expected))
    torch.testing.assert_close(symmetric(packed), naive, rtol=1e-5, atol=1e-7)  # the forward pass is float32


def test_noise_has_its_standard_deviation_and_keeps_the_matrix_symmetric(federation: Federation):
    shard, weights = shard_of(federation, 1, num=8), federation.task.initial_weights()

    def packed(noise: float) -> Tensor:
        return FedSC(passes=1, noise=noise).correlation(weights, client_of(federation.task, shard))

    noise = packed(0.5) - packed(0.0)
    assert len(noise) == 24 * 25 // 2
    assert float(noise.std()) == pytest.approx(0.5, rel=0.12)  # of 300 numbers, three standard errors
    matrix = symmetric(packed(0.5))
    assert torch.equal(matrix, matrix.T)


def test_a_sample_moves_the_matrix_by_no_more_than_the_stated_sensitivity(federation: Federation):
    task, method = replace(federation.task, objective=Spectral(mu=0.01)), FedSC(passes=1)
    weights, images = task.initial_weights(), pixels(8).numpy()
    other = images.copy()
    other[3] = 255 - other[3]
    matrices = [
        symmetric(method.correlation(weights, client_of(task, Shard.of(each, range(8), "cpu"))))
        for each in (images, other)
    ]
    assert 0 < float((matrices[0] - matrices[1]).norm()) <= 2 * 0.01 / 8


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_loss_is_attraction_and_contrast(federation: Federation, alpha: float):
    task = replace(federation.task, objective=Spectral(mu=0.5))
    model, others = linear(dim=5), symmetric_rows(5, 1).float()
    batch = Batch(pixels(6), torch.arange(6), None, 0)
    ours = FedSC().loss(task, seeded(), others, weights_of(alpha).float(), model, nn.Module(), batch).loss
    views = task.two_views(pixels(6), seeded())
    first, second = ([naive_spectral.shortened(z, 0.5) for z in projected(model, view).tolist()] for view in views)
    own = torch.tensor(naive_spectral.correlation([*first, *second]), dtype=torch.float64)
    expected = naive_spectral.attraction(first, second) + float(contrast(own, others.double(), weights_of(alpha)))
    assert float(ours.detach()) == pytest.approx(expected, rel=1e-5, abs=1e-6)  # the forward pass is float32
