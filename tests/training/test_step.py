"""How an accelerator runs steps: ahead of time and from captured work, with the bits of steps that run as they come."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.models import Model
from rayfed_ssl.testing.pretend_device import DEVICE, PretendDevice
from rayfed_ssl.testing.trial import play
from rayfed_ssl.training.objective import Batch
from rayfed_ssl.training.optimizers import OPTIMIZERS, SGD
from rayfed_ssl.training.step import (
    CAPTURE_FAILURES,
    MIN_REPLAYS,
    Capture,
    DeviceRunner,
    Replay,
    TrainingStep,
    capturable,
    descend,
    device_runner,
)
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import digest
from tests.tape import taped
from tests.tensors import seeded

Open = Callable[..., Federation]

SETTINGS = {
    "simclr": (),
    "byol": ("objective.hidden=48",),
    "moco": ("objective.queue_size=50", "objective.key_groups=3"),
    "swav": tuple(f"objective.{s}" for s in ("prototypes=6", "queue_size=40", "queue_epoch=1", "freeze_epochs=2")),
    "deepcluster": ("objective.clusters=6",),
    "rotation": ("model.projection_dim=null",),
}

SLOW = frozenset({"swav", "rotation", "deepcluster", "sgd", "adam", "lars"})
"""Objectives and optimizers that the default tier leaves to the slow one."""


def by_tier(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in names]


def result(task: Task, images: np.ndarray) -> str:
    """Train on the task's device; gives the digest of model, state and losses."""
    shard = Shard.of(images, np.arange(len(images)), task.device)
    weights, metrics = task.train(task.initial_weights(), task.encoder, shard, seeded(3), round=1)
    return digest({**weights, "loss": metrics["loss"], "first": metrics["loss_first"]})


def on_device(
    task: Task, images: np.ndarray, patch: pytest.MonkeyPatch, capture: Capture | None
) -> tuple[str, DeviceRunner]:
    """Train on the pretend device; gives the digest and what ran the steps."""
    runners = []

    def runner(self: Task, step: TrainingStep, num_steps: int) -> DeviceRunner:
        runners.append(device_runner(step, self.device, capture, num_steps))
        return runners[0]

    patch.setattr(Task, "_runner", runner)
    with PretendDevice():
        return result(replace(task, device=DEVICE), images), runners[0]


@pytest.fixture(autouse=True)
def no_failure_is_remembered() -> Iterator[None]:
    yield
    CAPTURE_FAILURES.clear()


@pytest.fixture
def small(open_tiny: Open) -> Callable[..., tuple[Task, np.ndarray]]:
    """A task of an objective and 26 digits: in each epoch six batches of 4 and a last one of 2."""

    def make(*overrides: str) -> tuple[Task, np.ndarray]:
        federation = open_tiny("fedavg", "training.batch=4", "training.epochs=4", *overrides)
        return federation.task, federation.dataset.train.images[:26]

    return make


@pytest.mark.parametrize("name", by_tier(SETTINGS))
def test_steps_ahead_and_captured_have_the_bits_of_eager_ones(
    name: str, small, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, images = small(f"objective={name}", *SETTINGS[name])
    eager = result(task, images)
    ahead, runner = on_device(task, images, monkeypatch, None)
    assert ahead == eager
    assert runner.num_captured == 0
    captured, runner = on_device(task, images, monkeypatch, taped)
    assert captured == eager
    assert runner.num_captured > 0


@pytest.mark.parametrize("name", by_tier(OPTIMIZERS))
def test_an_optimizer_and_a_rate_for_each_step_are_captured(name: str, small, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = f"training.optimizer.name={name}", "training.optimizer.schedule=warmup-cosine", "rounds=3"
    task, images = small(*settings)
    constant, _ = small(*settings, "training.optimizer.schedule=constant")
    eager = result(task, images)
    assert result(constant, images) != eager
    assert on_device(task, images, monkeypatch, None)[0] == eager
    captured, runner = on_device(task, images, monkeypatch, taped)
    assert captured == eager
    assert runner.num_captured == 1


def test_a_phase_of_the_objective_is_captured_anew(small, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, images = small("objective=swav", "objective.freeze_epochs=1", "objective.prototypes=6", "training.epochs=8")
    assert on_device(frozen, images, monkeypatch, taped)[1].num_captured == 2
    never, images = small("objective=swav", "objective.freeze_epochs=0", "objective.prototypes=6")
    assert on_device(never, images, monkeypatch, taped)[1].num_captured == 1


def test_a_capture_that_fails_costs_no_bit_and_says_why(small, monkeypatch: pytest.MonkeyPatch) -> None:
    task, images = small()
    expected, _ = on_device(task, images, monkeypatch, None)

    def refuse(run: Callable[[], None]) -> Replay:
        with monkeypatch.context() as patch:
            patch.setattr(Model, "forward", lambda self, images: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                run()  # up to the forward pass, so that views have been drawn
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    with pytest.warns(UserWarning, match="steps are not captured: operation not permitted when stream is capturing$"):
        failed, runner = on_device(task, images, monkeypatch, refuse)
    assert failed == expected
    assert runner.num_captured == 0
    assert CAPTURE_FAILURES == ["operation not permitted when stream is capturing"]


def test_a_loss_or_a_term_is_captured_if_it_is_marked(small) -> None:
    task, _ = small()
    model = task.model(task.initial_weights())
    descent = task.optimizer.over(model.parameters())

    def obstacle(loss: Callable[..., object], *terms: Callable[..., object]) -> str:
        return TrainingStep(loss, terms, model, torch.nn.Module(), descent, print, task.device).obstacle  # type: ignore[arg-type]

    marked = capturable(lambda *inputs: None)
    assert not obstacle(marked)
    assert not obstacle(marked, marked)
    assert obstacle(lambda *inputs: None) == obstacle(marked, lambda *inputs: None) != ""


@pytest.mark.parametrize("resident", [True, False])
def test_a_step_that_draws_samples_is_captured_where_their_pixels_are_on_the_device(resident: bool) -> None:
    images, generator, drawn = np.arange(36, dtype=np.uint8).reshape(9, 1, 2, 2), seeded(1), []
    with PretendDevice():
        shard = Shard.of(images, np.arange(9), DEVICE, resident=resident)
        total = torch.zeros(4, dtype=torch.int64, device=DEVICE)

        def step(batch: Batch) -> None:
            index, pixels = shard.draw_samples(4, generator)
            total.copy_(index + pixels[:, 0, 0, 0])

        runner = DeviceRunner(step, torch.device(DEVICE), taped, 30)
        batch = Batch(torch.zeros(2, 1, device=DEVICE), torch.zeros(2, device=DEVICE), None, 0)
        with nullcontext() if resident else pytest.warns(UserWarning, match="they move values of the host"):
            for _ in range(30):
                runner(batch, None)
                drawn.append(total.tolist())
    expected = seeded(1)
    assert drawn == [(5 * torch.randperm(9, generator=expected)[:4]).tolist() for _ in range(30)]
    assert runner.num_captured == resident


@pytest.mark.parametrize(("name", "captured"), [("fedprox", True), ("fedfoa", False)])
def test_terms_of_built_in_methods_are_captured_but_those_that_wait(
    open_tiny: Open, monkeypatch: pytest.MonkeyPatch, name: str, captured: bool
) -> None:
    marks, train = [], Task.train

    def watched(self: Task, *inputs: Any, terms: Sequence[Callable[..., Tensor]], **settings: Any) -> Any:
        marks.extend(getattr(term, "capturable", False) for term in terms)
        return train(self, *inputs, terms=terms, **settings)

    monkeypatch.setattr(Task, "train", watched)
    play(open_tiny(name), 1)
    assert marks == [captured] * 3


def test_dropout_is_not_captured_and_the_run_says_why(small, monkeypatch: pytest.MonkeyPatch) -> None:
    task, images = small("model.encoder=vgg9")
    with pytest.warns(UserWarning, match=r"^steps are not captured: the model has dropout, which draws on the device$"):
        _, runner = on_device(task, images, monkeypatch, taped)
    assert runner.num_captured == 0


@pytest.mark.parametrize("encoder", ["torchvision:convnext_tiny", "timm:convnext_atto"])
def test_blocks_that_are_left_out_at_random_are_not_captured(small, encoder: str) -> None:
    if encoder.startswith("timm"):
        pytest.importorskip("timm")
    task, _ = small(f"model.encoder={encoder}", "data.channels=3", "data.size=32")
    model = task.model(task.initial_weights())
    descent = task.optimizer.over(model.parameters())
    marked = capturable(lambda *inputs: None)
    obstacle = TrainingStep(marked, (), model, torch.nn.Module(), descent, print, task.device).obstacle  # type: ignore[arg-type]
    assert bool(obstacle) == encoder.startswith("torchvision")  # timm's default leaves no block out


def test_short_trainings_are_not_captured(small, monkeypatch: pytest.MonkeyPatch) -> None:
    task, images = small("training.epochs=1")
    assert len(images) // 4 < MIN_REPLAYS
    assert on_device(task, images, monkeypatch, taped)[1].num_captured == 0


def test_a_model_without_anything_to_train_stays_as_it_is() -> None:
    model = torch.nn.Linear(2, 1)
    before = digest(model.state_dict())
    loss = model(torch.ones(3, 2)).sum()
    descend(loss, SGD(lr=0.1).over(model.requires_grad_(False).parameters()))
    assert digest(model.state_dict()) == before
