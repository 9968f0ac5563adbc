import json
import subprocess
import sys

import pytest
import torch

from actors.runs import make_executor
from rayfed_ssl.capacity.client_cost import (
    STEP_BYTES,
    StepCost,
    check_memory,
    estimate,
    measure,
    measure_apart,
    one_epoch,
    record,
    recorded,
    step_cost,
)
from rayfed_ssl.errors import ConfigError


def test_an_estimate_grows_with_the_batch_the_model_and_on_a_gpu_with_the_shard(open_tiny):
    random_state = torch.get_rng_state()
    small, large = (estimate(open_tiny("fedavg", f"training.batch={size}"), "cpu").memory for size in (8, 32))
    deeper = estimate(open_tiny("fedavg", "model.encoder=resnet18", "training.batch=8"), "cpu").memory
    assert STEP_BYTES < small < large < deeper
    on_gpu = estimate(open_tiny("fedavg", "training.batch=8"), "cuda")
    assert on_gpu.memory == STEP_BYTES
    assert on_gpu.gpu_memory > small - STEP_BYTES
    assert not on_gpu.is_measured
    assert torch.equal(torch.get_rng_state(), random_state)


def test_a_measurement_is_found_again_by_runs_of_the_same_step_alone(open_tiny):
    cost = StepCost(123, state=5, seconds=0.5)
    federation = open_tiny("fedavg", "seed=23", "training.batch=16")
    record(federation, "cpu", cost)
    same = open_tiny("fedavg", "seed=23", "training.batch=16", "rounds=9", "engine.actors=1", "evaluation.every=1")
    assert step_cost(same, "cpu") == cost
    assert recorded(federation, "cuda") is None
    others = ["training.batch=17", "objective=byol", "model.encoder=resnet18"]
    others += [f"engine.{setting}" for setting in ("precision=bf16", "deterministic=false", "capture=never")]
    for other in others:
        assert recorded(open_tiny("fedavg", "seed=23", "training.batch=16", other), "cpu") is None, other


def test_a_step_larger_than_the_free_memory_is_refused_by_estimate_or_measurement(open_tiny, monkeypatch):
    federation = open_tiny("fedavg", "training.batch=21", "engine.executor=local")
    needed = estimate(federation, "cpu").memory
    monkeypatch.setattr("rayfed_ssl.capacity.client_cost.free_memory", lambda: needed)
    make_executor(federation)
    monkeypatch.setattr("rayfed_ssl.capacity.client_cost.free_memory", lambda: needed - 1)
    with pytest.raises(
        ConfigError, match=r"step takes .* \(by estimate; `rayfed-ssl doctor --measure` measures it\), but .* free"
    ):
        make_executor(federation)
    record(federation, "cpu", StepCost(needed - 1, seconds=1.0))
    check_memory(federation)


def test_an_estimate_counts_the_views_that_the_objective_takes(open_tiny):
    objectives = ("supervised", "simclr", "{name: rotation, turns: one}", "{name: rotation, turns: all}")
    views = [
        open_tiny("fedavg", "model.projection_dim=null", f"objective={objective}").task.objective.num_views
        for objective in objectives
    ]
    assert views == [1, 2, 1, 4]


@pytest.mark.parametrize(("files", "grown"), [((10, 40), 80), ((40, 10), 110), ((40, 40), 80)])
def test_files_that_are_mapped_or_dropped_meanwhile_hide_no_memory(open_tiny, monkeypatch, files, grown):
    before, after = {"VmRSS": 100, "RssFile": files[0]}, {"VmHWM": 180, "RssFile": files[1]}
    memory = iter([before, after])
    monkeypatch.setattr("rayfed_ssl.capacity.client_cost._memory", lambda: next(memory))
    assert measure(open_tiny("fedavg")).memory == grown


MEASUREMENTS = """
import dataclasses
import json
import sys
import torch
from rayfed_ssl.config.schema import Config
from rayfed_ssl.capacity.client_cost import measure
from rayfed_ssl.engine.federation import Federation

federation = Federation.open(Config.load(json.load(sys.stdin)))
costs = [measure(federation)]
method = type(federation.method)
update_client = method.update_client

def with_100_mb(*arguments):
    ballast = torch.ones(25_000_000)
    return *update_client(*arguments)[:2], {"ballast": float(ballast[0])}

method.update_client = with_100_mb
costs.append(measure(federation))
print(json.dumps([dataclasses.asdict(cost) for cost in costs]))
"""


@pytest.mark.slow
def test_a_measured_step_counts_what_it_holds_at_its_peak(tiny):
    # In a process of its own: memory that other tests have freed is taken again before the process grows.
    settings = json.dumps(tiny("fedema").dump())
    process = subprocess.run(
        [sys.executable, "-c", MEASUREMENTS], input=settings, stdout=subprocess.PIPE, text=True, check=True
    )
    before, after = [StepCost(**cost) for cost in json.loads(process.stdout)]
    assert 0 < before.memory < 90e6 < after.memory < 250e6
    assert after.gpu_memory == 0
    assert before.is_measured
    assert before.state


@pytest.mark.slow
def test_a_step_that_fails_alone_is_one_line(tiny):
    with pytest.raises(ConfigError, match=r"^the step of one client failed: client [^\n]*$"):
        measure_apart(tiny("fedavg", "training.optimizer.lr=1e30"))


def test_one_epoch_is_measured(tiny):
    assert one_epoch(tiny("fedavg", "training.total_epochs=8")).epochs == 1
    assert one_epoch(tiny("fedavg", "training.epochs=7")) == tiny("fedavg")
