"""Optimizers: the learning rate of a round and of a step, torch.optim's bits, and what the papers say."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.training.optimizers import LARS, OPTIMIZERS, SGD, Adam, AdamW, Descent, Optimizer
from rayfed_ssl.training.step import descend
from rayfed_ssl.trees import digest


def test_a_cosine_falls_from_the_full_rate_in_the_first_round_towards_0():
    rates = [Adam(lr=0.032, schedule="cosine").at(round, 4).lr for round in (1, 2, 3, 4)]
    expected = [0.5 * 0.032 * (1 + math.cos(math.pi * r / 4)) for r in range(4)]  # EasyFL counts rounds from 0
    assert rates == pytest.approx(expected, rel=1e-12)
    assert rates[0] == 0.032 == Adam(lr=0.032, schedule="cosine").at(1, 1).lr


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


def rate(lr: float, step: int, steps: int, rising: int) -> float:
    """SimCLR's schedule, from the paper: linear warm-up, then a cosine without restarts."""
    if step < rising:
        return lr * (step + 1) / rising
    return lr * 0.5 * (1 + math.cos(math.pi * (step - rising) / (steps - rising)))


@pytest.mark.parametrize(("rounds", "steps", "warmup", "rising"), [(3, 7, 0.2, 4), (1, 5, 0.0, 0), (2, 1, 0.9, 2)])
def test_a_warm_up_and_a_cosine_span_the_local_steps_of_all_rounds(rounds: int, steps: int, warmup: float, rising: int):
    settings = SGD(lr=0.3, schedule="warmup-cosine", warmup=warmup)
    expected = [rate(0.3, step, rounds * steps, rising) for step in range(rounds * steps)]
    parts = [settings.at(round, rounds).rates(round, rounds, steps) for round in range(1, rounds + 1)]
    assert torch.cat([part for part in parts if part is not None]).tolist() == pytest.approx(expected, rel=1e-6)  # fp32
    assert max(expected) == 0.3


def test_only_a_schedule_by_steps_has_a_rate_for_each():
    assert Adam().rates(1, 2, 3) is None is Adam(schedule="cosine").rates(1, 2, 3)


def test_a_warm_up_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"warmup has no meaning for schedule=cosine: remove it or take schedule=warm"):
        Adam(schedule="cosine", warmup=0.2)


@pytest.mark.parametrize("round", [None, 2])
def test_local_training_takes_its_steps_rates(
    open_tiny: Callable[..., Federation], monkeypatch: pytest.MonkeyPatch, round: int | None
):
    federation = open_tiny("fedavg", "training.epochs=2", "training.batch=8")
    task = replace(federation.task, rounds=3, optimizer=AdamW(schedule="warmup-cosine", lr=1e-2, warmup=0.25))
    shard = Shard.of(federation.dataset.train.images, federation.shards[0][:27], "cpu")  # batches of 8, 8, 8 and 3
    taken: list[float] = []
    monkeypatch.setattr(AdamW, "move", lambda self, lr, *rest: taken.append(float(lr)))
    task.fit(task.model(task.initial_weights()), shard, torch.Generator().manual_seed(0), round=round)
    # Without a round a training is one of its own: the schedule spans it.
    steps, first = (8, 0) if round is None else (24, 8)
    assert taken == pytest.approx([rate(1e-2, step, steps, steps // 4) for step in range(first, first + 8)], rel=1e-6)


SETTINGS = {
    "adam": Adam(lr=0.01, weight_decay=0.1),
    "adam without decay": Adam(lr=0.3, weight_decay=0),
    "adamw": AdamW(lr=0.01, weight_decay=0.1),
    "adamw of MAE": AdamW(lr=0.01, weight_decay=0.1, betas=(0.9, 0.95), exclude_1d=True),
    "sgd": SGD(lr=0.01, weight_decay=0.1, momentum=0.7),
    "sgd without momentum": SGD(lr=0.3, weight_decay=0, momentum=0),
}


def torchs(settings: Optimizer, parameter: Parameter) -> torch.optim.Optimizer:
    """The same in torch.optim, for one parameter, so that each has moments and steps of its own."""
    if isinstance(settings, Adam):
        kind = torch.optim.AdamW if isinstance(settings, AdamW) else torch.optim.Adam
        decay = 0 if getattr(settings, "exclude_1d", False) and parameter.ndim < 2 else settings.weight_decay
        return kind([parameter], lr=settings.lr, betas=settings.betas, weight_decay=decay, fused=True)
    decay, momentum = settings.weight_decay, settings.momentum
    return torch.optim.SGD([parameter], lr=settings.lr, momentum=momentum, weight_decay=decay, fused=True)


def drawn_parameters() -> list[Parameter]:
    random = torch.Generator().manual_seed(0)
    shapes = ((7, 3, 5, 5), (130,), (), (40, 33))
    drawn = [Parameter(torch.randn(shape, generator=random)) for shape in shapes]
    drawn[0].data = drawn[0].data.contiguous(memory_format=torch.channels_last)
    return drawn


def linear_loss(parameters: list[Parameter], step: int) -> Tensor:
    """A loss with random gradients: the second parameter has none at first, the last one none in step 2."""
    random, loss = torch.Generator().manual_seed(step), torch.zeros(())
    for number, parameter in enumerate(parameters):
        gradient = torch.randn(parameter.shape, generator=random)
        if not (number == 1 and step < 3) and not (number == 3 and step == 2):
            loss = loss + (parameter * gradient).sum()
    return loss


@pytest.mark.parametrize("name", SETTINGS)
def test_steps_have_the_bits_of_torchs_fused_optimizers(name: str):
    settings, ours, theirs = SETTINGS[name], drawn_parameters(), drawn_parameters()
    for start in (0, 10):  # the second descent starts anew, as that of the next local training does
        descent, references = settings.over(ours), [torchs(settings, parameter) for parameter in theirs]
        for step in range(start, start + 6):
            descent.lr = settings.lr * (1 + step)
            descend(linear_loss(ours, step), descent)
            for reference in references:
                reference.param_groups[0]["lr"] = settings.lr * (1 + step)
                reference.zero_grad()
            linear_loss(theirs, step).backward()
            for reference in references:
                reference.step()
            assert digest(ours) == digest(theirs), step
    assert digest(ours) != digest(drawn_parameters())


def values_of(parameters: list[Parameter]) -> list[list[float]]:
    return [parameter.detach().flatten().tolist() for parameter in parameters]


Vector = list[float]


def lars(w: Vector, g: Vector, state: dict[str, Any], lr: float, decay: float, ndim: int) -> Vector:
    """You et al. (2017), Algorithm 1, with SimCLR's norm of the decayed gradient; vectors by plain momentum."""
    ratio = 1.0
    if ndim > 1:
        g = [b + decay * a for a, b in zip(w, g, strict=True)]
        length, slope = (math.sqrt(math.fsum(x * x for x in vector)) for vector in (w, g))
        ratio = 0.02 * length / slope if length > 0 and slope > 0 else 1.0
    v = state["v"] = [0.7 * a + lr * ratio * b for a, b in zip(state.get("v", [0.0] * len(w)), g, strict=True)]
    return [x - step for x, step in zip(w, v, strict=True)]


def test_steps_of_lars_are_the_papers():
    settings = LARS(lr=0.5, weight_decay=0.2, momentum=0.7, trust=0.02)
    random = torch.Generator().manual_seed(0)
    shapes = ((3, 2, 2, 3), (5,), (), (4, 3))
    parameters = [Parameter(torch.randn(shape, generator=random, dtype=torch.float64)) for shape in shapes]
    parameters[0].data = parameters[0].data.contiguous(memory_format=torch.channels_last)
    parameters[3].data.zero_()  # no length: the trust ratio is 1 in the first step
    expected = values_of(parameters)
    descent, states = settings.over(parameters), [dict[str, Any]() for _ in shapes]
    for _ in range(4):
        loss = torch.zeros((), dtype=torch.float64)
        for number, parameter in enumerate(parameters):
            gradient = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
            loss = loss + (parameter * gradient).sum()
            expected[number] = lars(
                expected[number], gradient.flatten().tolist(), states[number], 0.5, 0.2, parameter.ndim
            )
        descend(loss, descent)
        for values, reference in zip(values_of(parameters), expected, strict=True):
            assert values == pytest.approx(reference, rel=1e-11, abs=1e-13)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rate_on_the_device_moves_as_a_number_does(name: str):
    settings, numbers, tensors = OPTIMIZERS[name](lr=0.25), drawn_parameters(), drawn_parameters()
    rates = torch.tensor([0.5, 0.125, 0.0625])
    by_number, by_tensor = settings.over(numbers), Descent(settings, tensors, rates)
    for step, lr in enumerate(rates.tolist()):
        by_number.lr = lr
        for descent, parameters in ((by_number, numbers), (by_tensor, tensors)):
            descend(linear_loss(parameters, step), descent)
        assert digest(numbers) == digest(tensors), step


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_gradient_may_lie_in_memory_in_any_way(layout: torch.memory_format):
    """A sum's gradient is one number for all elements, that of a permuted product lies across its parameter's."""
    values = torch.randn(5, 1, 3, 2, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=layout)
    weights = torch.randn(2, 5, 3, 1, generator=torch.Generator().manual_seed(1))
    for loss in (Tensor.sum, lambda parameter: (parameter.permute(3, 0, 2, 1) * weights).sum()):
        ours, theirs = Parameter(values.clone()), Parameter(values.clone())
        reference = torchs(SETTINGS["sgd"], theirs)
        descent = SETTINGS["sgd"].over([ours])
        for _ in range(2):
            descend(loss(ours), descent)
            reference.zero_grad()
            loss(theirs).backward()
            reference.step()
        assert torch.equal(ours, theirs)
