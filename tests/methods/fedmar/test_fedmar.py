"""FedMAR against its code's equations in loops, its identities, and what it sends."""

import math

import pytest
import torch
from torch import Tensor, nn

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.ledger import account
from rayfed_ssl.methods.fedmar import FedMAR, discrepancy
from rayfed_ssl.objectives import MAE
from rayfed_ssl.testing.trial import Round, play
from rayfed_ssl.training.objective import Batch
from rayfed_ssl.trees import digest
from tests.methods.conftest import Open, Played
from tests.methods.steps import client_of, shard_of
from tests.tensors import EXACT, rows, seeded

MODEL = ("objective={name: mae, width: 32, depth: 1}", "model={encoder: vit-micro, projection_dim: null}")


def weights(rounds: list[Round]) -> list[str]:
    return [digest(round.server.weights) for round in rounds]


def naive_discrepancy(x: Tensor, z: Tensor) -> float:
    """ammd.mmd_loss with mean_pairwise_distance of the local latents, a number at a time."""
    distances = [math.dist(a, b) for image in x.tolist() for a in image for b in image]
    sigma = math.fsum(distances) / len(distances)

    def kernels(left: Tensor, right: Tensor) -> float:
        squares = [
            math.fsum((a[v][c] - b[v][c]) ** 2 for v in range(len(a)))
            for a in left.tolist()
            for b in right.tolist()
            for c in range(len(a[0]))
        ]
        return math.fsum(math.exp(-square / (2 * sigma**2)) for square in squares)

    within = [kernels(each, each) / (len(each) * (len(each) - 1)) for each in (x, z)]
    return sum(within) - 2 * kernels(x, z) / (len(x) * len(z) * x.shape[2])


@pytest.mark.parametrize(("num", "others", "patches", "width"), [(2, 3, 2, 1), (6, 4, 3, 5)])
def test_the_discrepancy_is_the_codes(num: int, others: int, patches: int, width: int):
    x, z = rows(num, patches * width, 1).view(num, patches, width), 2 * rows(others, patches * width, 2) + 1
    z = z.view(others, patches, width)
    assert float(discrepancy(x, z)) == pytest.approx(naive_discrepancy(x, z), rel=EXACT)


def test_a_single_image_or_equal_patches_have_a_finite_discrepancy():
    for x in (rows(1, 8, 1).view(1, 2, 4), torch.ones(3, 2, 4, dtype=torch.float64)):
        value = discrepancy(x.requires_grad_(), rows(5, 8, 2).view(5, 2, 4))
        (gradient,) = torch.autograd.grad(value, x)
        assert torch.isfinite(value)
        assert torch.isfinite(gradient).all()


def test_a_step_adds_the_weighted_discrepancy_to_maes_loss(federation: Federation):
    task, data = federation.task, shard_of(federation, 0)
    model, images = task.model(task.initial_weights()), data.batch(torch.arange(6))
    batch, objective, z = (
        Batch(images, torch.arange(6), None, 0),
        task.objective,
        rows(20, 4 * 128, 3).float().view(20, 4, 128),
    )
    assert isinstance(objective, MAE)
    inputs = objective.inputs(task, batch, seeded(2))
    mae, latents = objective.loss_of(task, model, *inputs).loss, objective.latents(model, *inputs)
    ours = FedMAR().loss(task, seeded(2), z, torch.tensor(0.25), model, nn.Module(), batch).loss
    expected = float(mae.detach()) + naive_discrepancy(latents.detach(), z) / 4
    assert float(ours.detach()) == pytest.approx(expected, rel=1e-5)  # float32


def test_gamma_falls_along_half_a_cosine():
    gammas = [FedMAR().gamma(round, 4) for round in (1, 2, 3, 4)]
    assert gammas == pytest.approx(
        [0.001 + 0.099 * (1 + math.cos(math.pi * share)) / 2 for share in (0, 0.25, 0.5, 0.75)]
    )
    assert gammas[0] == 0.1


def test_the_first_round_is_fedavgs_and_so_are_all_without_weight(played: Played):
    ours, theirs = weights(played("fedmar")), weights(played("fedavg", *MODEL))
    assert ours[0] == theirs[0]
    assert ours[1] != theirs[1]
    assert weights(played("fedmar", "method.first=0", "method.last=0")) == theirs


@pytest.fixture(scope="module")
def federation(open_tiny: Open) -> Federation:
    return open_tiny("fedmar", "training.batch=20")


def test_what_is_sent_is_the_mean_latent_of_each_place_of_a_batch(federation: Federation):
    task, data = federation.task, shard_of(federation, 0)
    client, objective, size = client_of(task, data), task.objective, len(data)
    assert isinstance(objective, MAE)
    assert size % 20
    model, again = task.model(task.initial_weights(), client.architecture).eval(), client_of(task)
    sums, number = torch.zeros(20, 4, 128), 0
    for start in range(0, size, 20):
        index = torch.tensor([place % size for place in range(start, start + 20)])
        ((_, images),) = data.batches([index])
        inputs = objective.inputs(task, Batch(images, index, None, 0), again.method_generator)
        with torch.no_grad():
            sums, number = sums + objective.latents(model, *inputs), number + 1
    ours = FedMAR().latents(task.initial_weights(), client)
    torch.testing.assert_close(ours, sums / number, rtol=1e-5, atol=1e-6)


def test_the_server_sends_the_weighted_mean_of_latents(federation: Federation):
    last = play(federation)[-1]
    sizes = {k: upload.num_samples for k, upload in last.uploads.items()}
    mean = sum(sizes[k] * upload.latents.double() for k, upload in last.uploads.items()) / sum(sizes.values())
    sent = federation.method.download(last.server, 0)
    torch.testing.assert_close(sent.latents.double(), mean, rtol=1e-6, atol=1e-7)
    entries = {entry.field: entry for entry in account(sent, 3, 0, "down")}
    assert (entries["latents"].kind, entries["latents"].bytes) == ("representations", 20 * 4 * 128 * 4)
