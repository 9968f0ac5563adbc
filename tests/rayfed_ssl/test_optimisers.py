"""Optimisers as settings: the learning rate of a round."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn import Parameter

from rayfed_ssl.data.shard import Shard
from rayfed_ssl.federation import Federation
from rayfed_ssl.optimisers import Optimiser
from rayfed_ssl.trees import digest


def test_a_cosine_falls_from_the_full_rate_in_the_first_round_towards_0():
    rates = [Optimiser(lr=0.032, schedule="cosine").at(round, 4).lr for round in (1, 2, 3, 4)]
    expected = [0.5 * 0.032 * (1 + math.cos(math.pi * r / 4)) for r in range(4)]  # EasyFL counts rounds from 0
    assert rates == pytest.approx(expected, rel=1e-12)
    assert rates[0] == 0.032


@pytest.mark.parametrize("round", [1, 3, 7])
def test_a_constant_rate_stays(round: int):
    assert Optimiser(lr=0.1).at(round, 7).lr == 0.1


def test_a_single_round_has_the_full_rate():
    assert Optimiser(lr=0.1, schedule="cosine").at(1, 1).lr == 0.1


def test_the_rate_reaches_the_step():
    parameter = Parameter(torch.zeros(3))
    settled = Optimiser(name="sgd", lr=0.5, momentum=0, weight_decay=0, schedule="cosine").at(2, 2)
    descent = settled.over([parameter])
    parameter.grad = torch.ones(3)
    descent.step()
    assert parameter.tolist() == pytest.approx([-0.25] * 3, rel=1e-6)


def test_local_training_takes_its_rounds_rate(open_tiny: Callable[..., Federation]):
    federation = open_tiny("fedavg")
    shard = Shard.of(federation.dataset.train.images, federation.shards[0], "cpu")
    task = replace(federation.task, rounds=3, optimiser=Optimiser(schedule="cosine", lr=1e-2))
    half = replace(task, optimiser=Optimiser(lr=Optimiser(schedule="cosine", lr=1e-2).at(2, 3).lr))
    digests = []
    for one, round in ((task, 2), (half, 2), (task, 1)):
        model = one.model(one.initial_weights())
        one.fit(model, shard, torch.Generator().manual_seed(0), round=round)
        digests.append(digest(model.state_dict()))
    assert digests[0] == digests[1] != digests[2]
