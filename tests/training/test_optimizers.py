"""Optimizers: the learning rate of a round, and torch.optim's bits."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn import Parameter

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.training.optimizers import SGD, Adam, Optimizer
from rayfed_ssl.trees import digest


def test_a_cosine_falls_from_the_full_rate_in_the_first_round_towards_0():
    rates = [Adam(lr=0.032, schedule="cosine").at(round, 4).lr for round in (1, 2, 3, 4)]
    expected = [0.5 * 0.032 * (1 + math.cos(math.pi * r / 4)) for r in range(4)]  # EasyFL counts rounds from 0
    assert rates == pytest.approx(expected, rel=1e-12)
    assert rates[0] == 0.032 == Adam(lr=0.032, schedule="cosine").at(1, 1).lr


def test_a_constant_rate_stays():
    assert {Adam(lr=0.1).at(round, 7).lr for round in (1, 3, 7)} == {0.1}


def test_local_training_takes_its_rounds_rate(open_tiny: Callable[..., Federation]):
    federation = open_tiny("fedavg")
    shard = Shard.of(federation.dataset.train.images, federation.shards[0], "cpu")
    task = replace(federation.task, rounds=3, optimizer=Adam(schedule="cosine", lr=1e-2))
    half = replace(task, optimizer=Adam(lr=Adam(schedule="cosine", lr=1e-2).at(2, 3).lr))
    digests = []
    for one, round in ((task, 2), (half, 2), (task, 1)):
        model = one.model(one.initial_weights())
        one.fit(model, shard, torch.Generator().manual_seed(0), round=round)
        digests.append(digest(model.state_dict()))
    assert digests[0] == digests[1] != digests[2]


SETTINGS = {
    "adam": Adam(lr=0.01, weight_decay=0.1),
    "adam without decay": Adam(lr=0.3, weight_decay=0),
    "sgd": SGD(lr=0.01, weight_decay=0.1, momentum=0.7),
    "sgd without momentum": SGD(lr=0.3, weight_decay=0, momentum=0),
}


def torchs(settings: Optimizer, parameter: Parameter) -> torch.optim.Optimizer:
    """The same in torch.optim, for one parameter, so that each has moments and steps of its own."""
    if isinstance(settings, Adam):
        return torch.optim.Adam([parameter], lr=settings.lr, weight_decay=settings.weight_decay, fused=True)
    decay, momentum = settings.weight_decay, settings.momentum
    return torch.optim.SGD([parameter], lr=settings.lr, momentum=momentum, weight_decay=decay, fused=True)


def drawn_parameters() -> list[Parameter]:
    random = torch.Generator().manual_seed(0)
    shapes = ((7, 3, 5, 5), (130,), (), (40, 33))
    drawn = [Parameter(torch.randn(shape, generator=random)) for shape in shapes]
    drawn[0].data = drawn[0].data.contiguous(memory_format=torch.channels_last)
    return drawn


def draw_gradients(parameters: list[Parameter], step: int) -> None:
    """Set gradients as backward passes do: the second parameter has none at first, the last one none in step 2."""
    random = torch.Generator().manual_seed(step)
    for number, parameter in enumerate(parameters):
        gradient = torch.empty_like(parameter).copy_(torch.randn(parameter.shape, generator=random))
        if not (number == 1 and step < 3) and not (number == 3 and step == 2):
            parameter.grad = gradient


@pytest.mark.parametrize("name", SETTINGS)
def test_steps_have_the_bits_of_torchs_fused_optimizers(name: str):
    settings, ours, theirs = SETTINGS[name], drawn_parameters(), drawn_parameters()
    for start in (0, 10):  # the second descent starts anew, as that of the next local training does
        descent, references = settings.over(ours), [torchs(settings, parameter) for parameter in theirs]
        for step in range(start, start + 6):
            descent.lr = settings.lr * (1 + step)
            descent.zero_grad()
            assert all(parameter.grad is None for parameter in ours)
            draw_gradients(ours, step)
            descent.step()
            for reference in references:
                reference.param_groups[0]["lr"] = settings.lr * (1 + step)
                reference.zero_grad()
            draw_gradients(theirs, step)
            for reference in references:
                reference.step()
            assert digest(ours) == digest(theirs), step
    assert digest(ours) != digest(drawn_parameters())
