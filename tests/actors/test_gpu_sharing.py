"""How many actors share a GPU, against what was measured of a ResNet-18 on an H100."""

import pytest

from actors.cluster.machine import Node
from actors.cluster.mps import MAX_CLIENTS
from actors.placement.actor_cost import ActorCost
from actors.placement.allocation import allocate
from actors.placement.gpu_sharing import actors_per_gpu, fitting, reason, speedup, worthwhile
from rayfed_ssl.config.schema import Engine
from rayfed_ssl.engine.gpu_memory import CONTEXT_BYTES

ONE, STEPS_ALONE = 5_424, 19_600
"""Pairs/s of one actor, and of its steps without all that is between clients: docs/gpu.md."""

BUSY = ONE / STEPS_ALONE
TOTAL = 80_000_000_000


def cost(gigabytes: float, busy: float | None = BUSY) -> ActorCost:
    return ActorCost(10**9, int(gigabytes * 10**9), is_measured=True, busy=busy)


@pytest.mark.parametrize(
    ("actors", "mps", "pairs"), [(2, False, 7_619), (4, False, 10_000), (4, True, 12_800), (8, True, 14_545)]
)
def test_the_estimate_is_within_a_tenth_of_what_was_measured(actors, mps, pairs):
    assert ONE * speedup(actors, BUSY, mps=mps) == pytest.approx(pairs, rel=0.1)


def test_one_actor_is_as_fast_as_itself_and_no_number_is_faster_than_the_gpu():
    assert speedup(1, BUSY, mps=False) == 1
    assert speedup(10**6, BUSY, mps=True) == pytest.approx(1 / BUSY, rel=1e-3)
    assert speedup(9, 0.9, mps=False) == 1


@pytest.mark.parametrize(
    ("busy", "with_mps", "without"), [(BUSY, 8, 5), (0.97, 1, 1), (0.5, 3, 2), (0.05, MAX_CLIENTS - 1, 39), (1.0, 1, 1)]
)
def test_the_more_a_step_leaves_idle_the_more_actors_are_worthwhile(busy, with_mps, without):
    assert (worthwhile(busy, mps=True), worthwhile(busy, mps=False)) == (with_mps, without)


def test_the_fewest_actors_are_taken_that_reach_three_quarters_of_the_limit():
    most = 1 / BUSY
    assert speedup(7, BUSY, mps=True) < 0.75 * most <= speedup(8, BUSY, mps=True)


def test_a_gpus_memory_limits_the_actors_and_the_server_has_a_context_of_its_own():
    assert actors_per_gpu(cost(1), TOTAL, mps=True) == 8
    assert actors_per_gpu(cost(20), TOTAL, mps=True) == fitting(TOTAL, cost(20)) == 3
    assert fitting(TOTAL + CONTEXT_BYTES, cost(20)) == 4
    assert actors_per_gpu(cost(90), TOTAL, mps=True) == 1


def test_what_is_not_known_gets_a_gpu_one_actor():
    assert actors_per_gpu(cost(1, busy=None), TOTAL, mps=True) == 1
    assert actors_per_gpu(cost(1), 0, mps=True) == 1
    assert actors_per_gpu(ActorCost(busy=BUSY), TOTAL, mps=True) == 1
    assert reason(1, cost(1, busy=None), TOTAL, mps=True).startswith("how busy a step keeps its GPU is not known")


def test_the_reason_has_the_figures_that_decided():
    assert reason(8, cost(2), TOTAL, mps=True) == (
        "a step keeps its GPU busy for 28% of the time: actors on it with MPS are at most 3.6 times as fast as one, "
        "8 of them 2.7 times; memory carries 39"
    )
    assert "without MPS are at most 2.5 times" in reason(5, cost(2), TOTAL, mps=False)


@pytest.mark.parametrize(
    ("settings", "cpus", "mps", "number", "share"),
    [
        ({}, 64, True, 16, 0.125),
        ({}, 64, False, 10, 0.2),
        ({}, 6, True, 6, 0.3333),  # an actor takes a core
        ({"actors": 2}, 64, True, 2, 1.0),
        ({"gpus_per_actor": 0.5}, 64, True, 4, 0.5),
    ],
)
def test_auto_shares_gpus_by_what_was_measured_and_settings_go_first(settings, cpus, mps, number, share):
    machine = [Node("a", cpus=cpus, gpus=2, memory=500e9, gpu_memory=TOTAL)]
    placement = allocate(Engine(**settings), 100, machine, use_gpu=True, cost=cost(2), mps=mps)
    assert (placement.num_actors, placement.gpus) == (number, share)
    assert placement.per_gpu == number // 2
