import json
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from rayfed_ssl.engine.client_cost import (
    STEP_BYTES,
    StepCost,
    activation_bytes,
    estimate,
    largest_client,
    measure,
    measure_apart,
    one_epoch,
    record,
    recorded,
    step_cost,
)
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.trees import nbytes


def test_the_largest_client_is_the_one_with_most_samples(open_tiny):
    federation = open_tiny("fedavg")
    client_id, samples = largest_client(federation)
    assert samples == len(federation.shards[client_id]) == max(len(rows) for rows in federation.shards.values())


def test_an_estimate_grows_with_the_batch_the_model_and_on_a_gpu_with_the_shard(open_tiny):
    small, large = (estimate(open_tiny("fedavg", f"training.batch={size}"), "cpu").memory for size in (8, 32))
    deeper = estimate(open_tiny("fedavg", "model.encoder=resnet18", "training.batch=8"), "cpu").memory
    assert STEP_BYTES < small < large < deeper
    on_gpu = estimate(open_tiny("fedavg", "training.batch=8"), "cuda")
    assert on_gpu.memory == STEP_BYTES
    assert on_gpu.gpu_memory > small - STEP_BYTES
    assert not on_gpu.is_measured


def test_what_a_view_leaves_behind_is_proportional_to_the_batch_and_holds_no_weights(open_tiny):
    task = open_tiny("fedavg").task
    assert activation_bytes(task, task.encoder, 64) == 8 * activation_bytes(task, task.encoder, 8) > 0
    narrow = replace(task, precision=replace(task.precision, dtype="bf16"))
    assert activation_bytes(narrow, task.encoder, 8) < activation_bytes(task, task.encoder, 8)
    wide = open_tiny("fedavg", "objective=byol").task
    assert nbytes(wide.blank(wide.encoder).state_dict()) > activation_bytes(wide, wide.encoder, 2)


def test_estimating_draws_no_random_number(open_tiny):
    federation = open_tiny("fedavg")
    before = torch.get_rng_state()
    estimate(federation, "cpu")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_measurement_is_found_again_by_runs_of_the_same_step_alone(open_tiny):
    cost = StepCost(123, state=5, seconds=0.5)
    federation = open_tiny("fedavg", "seed=23", "training.batch=16")
    record(federation, "cpu", cost)
    same = open_tiny("fedavg", "seed=23", "training.batch=16", "rounds=9", "engine.actors=1", "evaluation.every=1")
    assert step_cost(same, "cpu") == cost
    assert recorded(federation, "cuda") is None
    for other in (["training.batch=17"], ["objective=byol"], ["model.encoder=resnet18"], ["engine.precision=bf16"]):
        assert recorded(open_tiny("fedavg", "seed=23", "training.batch=16", *other), "cpu") is None


def test_a_measurement_that_cannot_be_read_is_none(open_tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    federation = open_tiny("fedavg")
    record(federation, "cpu", StepCost(1, seconds=1.0))
    (file,) = tmp_path.rglob("*.json")
    assert json.loads(file.read_text()) == asdict(StepCost(1, seconds=1.0))
    file.write_text("{")
    assert recorded(federation, "cpu") is None


class Hungry:
    """A method whose clients hold 100 MB while they train."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def update_client(self, *words: Any) -> Any:
        ballast = torch.ones(25_000_000)
        return *self.inner.update_client(*words)[:2], {"held": float(ballast[0])}


def test_a_measured_step_counts_what_it_holds_at_its_peak(open_tiny):
    federation = open_tiny("fedema")
    thrifty = measure(federation)
    federation.method = Hungry(federation.method)
    hungry = measure(federation)
    assert 90e6 < hungry.memory < 100e6 + thrifty.memory + 50e6
    assert hungry.gpu_memory == 0
    assert thrifty.is_measured
    assert thrifty.state


def test_a_step_that_fails_alone_says_why_in_one_line(tiny):
    with pytest.raises(ConfigError) as caught:
        measure_apart(tiny("fedavg", "training.optimizer.lr=1e30"))
    assert "the step of one client, run alone, failed: client " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_step_that_does_not_end_is_told_in_one_line(tiny):
    with pytest.raises(ConfigError, match=r"run alone, took more than 0\.01 s: lower data.train_limit"):
        measure_apart(tiny("fedavg"), limit=0.01)


def test_an_epoch_stands_for_all_of_them(tiny):
    short = one_epoch(tiny("fedavg", "training.total_epochs=8"))
    assert short.epochs == 1
    assert one_epoch(tiny("fedavg", "training.epochs=7")) == tiny("fedavg")
