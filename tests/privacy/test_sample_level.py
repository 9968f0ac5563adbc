"""Sample-level privacy: gradients of single samples, their noise, and what joins samples."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import dp_accounting as dp
import pytest
import torch
from dp_accounting.rdp import RdpAccountant

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.methods import FedAvg
from rayfed_ssl.models import build_model
from rayfed_ssl.privacy.protection import protected
from rayfed_ssl.randomness.seeds import generator
from rayfed_ssl.testing import LAWS
from rayfed_ssl.testing.trial import Trial, play
from rayfed_ssl.training.objective import Batch, PerSample
from rayfed_ssl.training.per_sample import SampleNoise, clipped_gradients
from rayfed_ssl.training.task import Task

Tiny = Callable[..., Config]
Open = Callable[..., Federation]

GROUPED = "model={encoder: cnn-group, projection_dim: null}"
MAE = ("objective={name: mae, width: 32, depth: 1}", "model={encoder: vit-micro, projection_dim: null}")
ALLOWED = [
    MAE,
    ("objective={name: autoencoder, width: 16}", GROUPED),
    ("objective=rotation", GROUPED),
    ("objective={name: rotation, turns: one}", GROUPED),
    ("objective=supervised", GROUPED),
]
PRIVATE = "privacy={level: sample, clip: 1.0, noise: 0.5}"


def opened(open_tiny: Open, settings: tuple[str, ...], size: int) -> tuple[Task, PerSample, Batch]:
    federation = open_tiny("fedavg", *settings)
    objective, train = federation.task.objective, federation.dataset.train
    assert isinstance(objective, PerSample)
    images, labels = torch.tensor(train.images[:size]), torch.tensor(train.labels[:size])
    return federation.task, objective, Batch(images, torch.arange(size), labels, 0)


@pytest.mark.parametrize("settings", ALLOWED, ids=lambda settings: settings[0].removeprefix("objective="))
def test_gradients_of_samples_are_those_of_a_naive_loop(
    open_tiny: Open, settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    """In float64, to which also goes what models give as float32; 19 samples are more than a chunk."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    task, objective, batch = opened(open_tiny, settings, 19)
    model = task.model(task.initial_weights()).double()
    inputs = tuple(
        each.double() if each.is_floating_point() else each for each in objective.inputs(task, batch, generator(1))
    )
    clip = 0.7
    expected = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    norms, losses = [], 0.0
    for number in range(19):
        loss = objective.loss_of(task, model, *(each[number : number + 1] for each in inputs)).loss
        parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        gradients = {name: grad for name, grad in zip(parameters, found, strict=True) if grad is not None}
        norms.append(math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients.values())))
        losses += float(loss.detach())
        for name, gradient in gradients.items():
            expected[name] += gradient * min(1.0, clip / norms[-1])
    sums, total = clipped_gradients(task, objective, model, inputs, clip)
    assert float(total) == pytest.approx(losses, rel=1e-12)
    assert max(norms) > clip
    for name, value in sums.items():
        assert torch.allclose(value, expected[name], rtol=1e-10, atol=1e-12), name  # sums in another order


def test_a_sample_moves_the_sum_by_the_clip_norm_at_most(open_tiny: Open):
    task, objective, batch = opened(open_tiny, ALLOWED[-1], 5)
    model = task.model(task.initial_weights())
    inputs = objective.inputs(task, batch, generator(1))
    for clip in (0.01, 1.0):
        for number in range(5):
            sums, _ = clipped_gradients(task, objective, model, tuple(x[number : number + 1] for x in inputs), clip)
            norm = math.sqrt(sum(float(value.double().square().sum()) for value in sums.values()))
            assert norm <= clip * (1 + 1e-5)  # of float32


def test_a_step_has_the_mean_gradient_and_noise_of_z_times_the_clip_norm_over_the_batch(open_tiny: Open):
    task, objective, batch = opened(open_tiny, ALLOWED[-1], 10)
    model = task.model(task.initial_weights())
    parameters = [value for value in model.parameters() if value.requires_grad]

    def gradient(clip: float, noise: float) -> torch.Tensor:
        loss = partial(SampleNoise(clip, noise, generator(7)).loss, task, objective, generator(1))
        output = loss(model, torch.nn.Module(), batch)
        return torch.cat([grad.flatten() for grad in torch.autograd.grad(output.loss, parameters)])

    plain = objective.loss(task, model, torch.nn.Module(), batch, generator(1)).loss
    expected = torch.cat([grad.flatten() for grad in torch.autograd.grad(plain, parameters)])
    assert torch.allclose(gradient(1e6, 0.0), expected, rtol=1e-3, atol=1e-6)  # sums in float32 in another order
    noise = (gradient(0.1, 2.0) - gradient(0.1, 0.0)).double()
    assert float(noise.std()) == pytest.approx(2.0 * 0.1 / 10, rel=5 / math.sqrt(2 * len(noise)))


def test_each_local_epoch_is_one_gaussian(open_tiny: Open):
    federation = open_tiny("fedavg", *MAE, PRIVATE, "training.epochs=3", "clients.fraction=0.34", "rounds=5")
    cohorts = [federation.cohort(round) for round in range(1, 6)]
    most = max(sum(client in cohort for cohort in cohorts) for client in federation.client_ids)
    accountant = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp.GaussianDpEvent(0.25), 3 * most)
    assert federation.planned_epsilon() == pytest.approx(float(accountant.get_epsilon(1e-5)))


@pytest.mark.parametrize("law", ["inputs_are_not_written", "steps_repeat", "resuming_changes_nothing"])
def test_training_on_noised_gradients_obeys_laws(trial: Trial, law: str):
    LAWS[law](trial)


@pytest.fixture(scope="module")
def trial(tiny: Tiny) -> Trial:
    return Trial(tiny("fedavg", *ALLOWED[-1], PRIVATE))


def test_another_seed_or_no_noise_gives_other_weights(tiny: Tiny):
    noisy, quiet = (
        play(Federation.open(tiny("fedavg", *ALLOWED[-1], f"privacy={{level: sample, clip: 1.0, noise: {z}}}")), 1)[0]
        for z in (0.5, 0)
    )
    assert "epsilon" in noisy.metrics
    assert "epsilon" not in quiet.metrics
    first, second = (round.uploads[0].weights["projector.weight"] for round in (noisy, quiet))
    assert not torch.equal(first, second)


REFUSED = [
    ("fedavg", (), "objective SimCLR joins them: NT-Xent and InfoNCE contrast a sample with the others"),
    ("fedavg", ("objective=moco", "objective.queue_size=50"), "the queue holds keys of other samples"),
    ("fedavg", ("objective=deepcluster", "objective.clusters=6"), "clusters are of all samples"),
    ("fedavg", ("objective=byol", "objective.hidden=32"), "its loss is not written as a sum over samples"),
    ("fedavg", ("objective=supervised", "model.projection_dim=null"), "batch-norm in the model of cnn joins"),
    (
        "fedavg",
        ("objective=autoencoder", "model={encoder: vgg9, projection_dim: null}"),
        "batch-norm in the model of vgg9",
    ),
    ("fedprox", MAE, "FedProx changes the loss or sends more"),
    ("fedsc", (), "objective Spectral joins them"),
    ("fedavg", (*MAE, "privacy.clip_quantile=0.5"), "remove clip_quantile"),
    ("fedavg", (*MAE, "privacy.clip={weights: 1.0}"), "set clip to a number"),
]


@pytest.mark.parametrize(("name", "settings", "message"), REFUSED)
def test_what_joins_samples_is_refused_by_name(open_tiny: Open, name: str, settings: tuple[str, ...], message: str):
    with pytest.raises(ConfigError, match=message) as error:
        open_tiny(name, PRIVATE, *settings)
    assert "\n" not in str(error.value)


class Inherits(FedAvg):
    """Does not say itself that its uploads follow from weights."""


def test_a_method_does_not_inherit_that_its_uploads_follow_from_weights(open_tiny: Open):
    federation = open_tiny("fedavg", *MAE, PRIVATE)
    method: Any = protected(Inherits(), federation.config.privacy, ())
    with pytest.raises(ValueError, match="Inherits changes the loss or sends more"):
        method.check(federation.task, 0)


def test_group_norm_takes_the_place_of_every_batch_norm_and_changes_no_other_weight():
    models = []
    for name in ("cnn", "cnn-group"):
        torch.manual_seed(3)
        models.append(build_model(name, head="simclr-bn", channels=1, size=8))
    plain, grouped = (model.state_dict() for model in models)
    assert not any("running" in name for name in grouped)
    assert all(torch.equal(value, plain[name]) for name, value in grouped.items())
    assert grouped.keys() == {name for name in plain if not name.endswith(("mean", "var", "tracked"))}
