"""How an accelerator runs steps: ahead of time and from captured work, with the bits of steps that run as they come."""

from collections.abc import Callable

import pytest
import torch

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.training import task as task_module
from rayfed_ssl.training.step import MIN_REPLAYS, Capture, DeviceRunner, Replay, TrainingStep, capturable
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import digest

Open = Callable[..., Federation]

SETTINGS = {
    "simclr": (),
    "byol": ("objective.hidden=48",),
    "moco": ("objective.queue_size=50", "objective.key_groups=3"),
    "swav": tuple(f"objective.{s}" for s in ("prototypes=6", "queue_size=40", "queue_epoch=1", "freeze_epochs=2")),
    "deepcluster": ("objective.clusters=6",),
    "rotation": ("model.projection_dim=null",),
}


def again(run: Callable[[], None]) -> Replay:
    """Stand for a graph: nothing runs while it is captured, and a replay runs all of it on the same tensors."""
    return run


def train(task: Task, shard: Shard, patch: pytest.MonkeyPatch, capture: Capture | None) -> tuple[str, DeviceRunner]:
    """Train as on an accelerator; gives the digest of model and state, and what ran the steps."""
    runners = []

    def runner(self: Task, step: TrainingStep, num_steps: int) -> DeviceRunner:
        runners.append(DeviceRunner(step, self.device, capture if step.capturable else None, num_steps))
        return runners[0]

    patch.setattr(task_module.Task, "_runner", runner)
    weights, metrics = task.train(
        task.initial_weights(), task.encoder, shard, torch.Generator().manual_seed(3), round=1
    )
    return digest({**weights, "loss": metrics["loss"], "first": metrics["loss_first"]}), runners[0]


@pytest.fixture
def small(open_tiny: Open) -> Callable[..., tuple[Task, Shard]]:
    """A task of an objective and 42 digits: in each epoch ten batches of 4 and a last one of 2."""

    def make(*overrides: str) -> tuple[Task, Shard]:
        federation = open_tiny("fedavg", "training.batch=4", "training.epochs=4", *overrides)
        return federation.task, Shard.of(federation.dataset.train.images, torch.arange(42).numpy(), "cpu")

    return make


@pytest.mark.parametrize("name", SETTINGS)
def test_steps_ahead_and_captured_have_the_bits_of_eager_ones(
    name: str, small, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, shard = small(f"objective={name}", *SETTINGS[name])
    weights, metrics = task.train(
        task.initial_weights(), task.encoder, shard, torch.Generator().manual_seed(3), round=1
    )
    eager = digest({**weights, "loss": metrics["loss"], "first": metrics["loss_first"]})
    ahead, runner = train(task, shard, monkeypatch, None)
    assert ahead == eager
    assert runner.num_captured == 0
    captured, runner = train(task, shard, monkeypatch, again)
    assert captured == eager
    assert runner.num_captured > 0


def test_a_phase_of_the_objective_is_captured_anew(small, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, shard = small("objective=swav", "objective.freeze_epochs=1", "objective.prototypes=6")
    assert train(frozen, shard, monkeypatch, again)[1].num_captured == 2
    never, shard = small("objective=swav", "objective.freeze_epochs=0", "objective.prototypes=6")
    assert train(never, shard, monkeypatch, again)[1].num_captured == 1


def test_a_capture_that_fails_costs_no_bit_and_says_why(small, monkeypatch: pytest.MonkeyPatch) -> None:
    task, shard = small()
    expected, _ = train(task, shard, monkeypatch, None)

    def refuse(run: Callable[[], None]) -> Replay:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    with pytest.warns(UserWarning, match="steps are not captured: operation not permitted when stream is capturing$"):
        failed, runner = train(task, shard, monkeypatch, refuse)
    assert failed == expected
    assert runner.num_captured == 0


def test_a_loss_or_a_term_is_captured_if_it_is_marked(small) -> None:
    task, _ = small()
    model = task.model(task.initial_weights())
    descent = task.optimizer.over(model.parameters())

    def of(loss: Callable[..., object], *terms: Callable[..., object]) -> bool:
        return TrainingStep(loss, terms, model, torch.nn.Module(), descent, print, task.device).capturable  # type: ignore[arg-type]

    marked = capturable(lambda *inputs: None)
    assert of(marked)
    assert of(marked, marked)
    assert not of(lambda *inputs: None)
    assert not of(marked, lambda *inputs: None)


def test_short_trainings_are_not_captured(small, monkeypatch: pytest.MonkeyPatch) -> None:
    task, shard = small("training.epochs=1")
    assert len(shard) // 4 < MIN_REPLAYS
    assert train(task, shard, monkeypatch, again)[1].num_captured == 0
