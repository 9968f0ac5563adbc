"""How an accelerator runs trainings: ahead of time, from captured work in buffers that stay, with the CPU's bits."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.models import Model
from rayfed_ssl.randomness.draws import move
from rayfed_ssl.testing.pretend_device import DEVICE, PretendDevice
from rayfed_ssl.testing.tape import Tapes
from rayfed_ssl.training.captured import Captures, DeviceRunner
from rayfed_ssl.training.contents import Contents, UndeclaredError
from rayfed_ssl.training.graphs import Replay
from rayfed_ssl.training.objective import Batch, StepOutput
from rayfed_ssl.training.optimizers import OPTIMIZERS, SGD
from rayfed_ssl.training.step import Term, descend
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import digest
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


MakeTerm = Callable[[torch.device], Term]


def result(task: Task, images: np.ndarray, seed: int = 3, round: int = 1, term: MakeTerm | None = None) -> str:
    """Train on the task's device; gives the digest of model, state and metrics."""
    shard, terms = Shard.of(images, np.arange(len(images)), task.device), () if term is None else (term(task.device),)
    weights, metrics = task.train(task.initial_weights(), task.encoder, shard, seeded(seed), round=round, terms=terms)
    return digest({**weights, "metrics": metrics})


@dataclass
class Accelerator:
    """A pretend device that captures, after fewer steps than a real one, as each operation of it costs Python's time."""

    device: PretendDevice
    captures: Captures

    @classmethod
    def new(cls, kind: type[Tapes] = Tapes, **thresholds: int) -> "Accelerator":
        device = PretendDevice()
        return cls(device, Captures(kind(device), **({"eager_steps": 2, "min_replays": 3} | thresholds)))

    def result(self, task: Task, *inputs: Any, **more: Any) -> str:
        with self.device:
            return result(replace(task, device=DEVICE, captures=self.captures), *inputs, **more)


def eager_on_device(task: Task, images: np.ndarray) -> str:
    with PretendDevice():
        return result(replace(task, device=DEVICE), images)


@pytest.fixture
def small(open_tiny: Open) -> Callable[..., tuple[Task, np.ndarray]]:
    """A task of an objective and 10 digits: in each epoch two batches of 4 and a last one of 2."""

    def make(*overrides: str) -> tuple[Task, np.ndarray]:
        federation = open_tiny("fedavg", "rounds=3", "training.batch=4", "training.epochs=3", *overrides)
        return federation.task, federation.dataset.train.images[:10]

    return make


@pytest.mark.parametrize("name", by_tier(SETTINGS))
def test_steps_ahead_and_captured_have_the_bits_of_eager_ones(name: str, small) -> None:
    task, images = small(f"objective={name}", *SETTINGS[name])
    eager = result(task, images)
    assert eager_on_device(task, images) == eager
    accelerator = Accelerator.new(eager_steps=1, min_replays=1)  # as SwAV's phases have two steps each
    assert accelerator.result(task, images) == eager
    assert accelerator.captures.num_captured > 0


@pytest.mark.parametrize("name", by_tier(OPTIMIZERS))
def test_an_optimizer_and_a_rate_for_each_step_are_captured(name: str, small) -> None:
    settings = f"training.optimizer.name={name}", "training.optimizer.schedule=warmup-cosine"
    task, images = small(*settings)
    constant, _ = small(*settings, "training.optimizer.schedule=constant")
    eager = result(task, images)
    assert result(constant, images) != eager
    assert eager_on_device(task, images) == eager
    accelerator = Accelerator.new()
    assert accelerator.result(task, images) == eager
    assert accelerator.captures.num_captured == 2


def test_rounds_of_other_learning_rates_share_captures(small) -> None:
    task, images = small("training.optimizer.schedule=cosine")
    accelerator = Accelerator.new()
    assert len({accelerator.result(task, images, round=round) for round in (1, 2, 3)}) == 3
    assert accelerator.result(task, images, round=2) == result(task, images, round=2)
    assert accelerator.captures.num_captured == 2


def test_a_phase_of_the_objective_is_captured_anew(small) -> None:
    frozen, images = small("objective=swav", "objective.freeze_epochs=1", "objective.prototypes=6")
    accelerator = Accelerator.new(eager_steps=1, min_replays=4)
    assert accelerator.result(frozen, images) == result(frozen, images)
    assert accelerator.captures.num_captured == 3  # no last batch of the first epoch
    assert accelerator.result(frozen, images, round=2) == result(frozen, images, round=2)
    assert accelerator.captures.num_captured == 3


def test_ten_clients_of_one_shape_share_captures_copies_and_waits(small) -> None:
    task, images = small()
    accelerator, per_client = Accelerator.new(), set()
    for round in (1, 2, 3):
        for client in range(10):
            before = accelerator.captures.num_eager, accelerator.device.waits.total()
            copies = accelerator.device.operations["_foreach_copy_.default"]
            found = accelerator.result(task, images, client, round)
            if (round, client) in ((1, 3), (3, 9)):
                assert found == result(task, images, client, round)
            if (round, client) != (1, 0):
                assert accelerator.captures.num_eager == before[0]
                copied = accelerator.device.operations["_foreach_copy_.default"] - copies
                per_client.add((copied, accelerator.device.waits.total() - before[1]))
    assert accelerator.captures.num_captured == 2
    (counts,) = per_client
    assert counts[1] == task.epochs + 1  # each epoch's losses, and the weights


def test_a_client_after_one_that_failed_has_the_bits_of_a_fresh_process(small) -> None:
    task, images = small()
    accelerator = Accelerator.new()
    accelerator.result(task, images)
    with pytest.raises(ValueError, match="the loss is nan"):
        accelerator.result(replace(task, optimizer=SGD(lr=1e30)), images)
    with pytest.raises(RuntimeError, match="stopped"):
        accelerator.result(task, images, term=lambda device: stops)
    assert accelerator.result(task, images, 4) == result(task, images, 4)


def stops(model: Model, projections: Tensor) -> Tensor:
    raise RuntimeError("stopped")


def test_a_term_reads_what_the_client_that_trains_has(small) -> None:
    task, images = small()
    accelerator = Accelerator.new()
    for aim in (0.5, 2.0):

        def term(device: torch.device, aim: float = aim) -> Term:
            return partial(pulled, {"to": torch.full((task.projection_dim,), aim, device=device)})

        assert accelerator.result(task, images, term=term) == result(task, images, term=term)
    assert accelerator.captures.num_captured == 2


def pulled(aim: dict[str, Tensor], model: Model, projections: Tensor) -> Tensor:
    return (projections - aim["to"]).square().mean()


def test_a_capture_that_fails_costs_no_bit_and_says_why_and_is_the_last(small, monkeypatch: pytest.MonkeyPatch) -> None:
    task, images = small()

    class Refusing(Tapes):
        tries = 0

        def capture(self, run: Callable[[], None], pool: None) -> Replay:
            Refusing.tries += 1
            with monkeypatch.context() as patch:
                patch.setattr(Model, "forward", lambda self, images: 1 // 0)
                with pytest.raises(ZeroDivisionError):
                    run()  # up to the forward pass, so that views have been drawn
            raise RuntimeError("operation not permitted when stream is capturing\nand more")

    accelerator = Accelerator.new(Refusing)
    with pytest.warns(UserWarning, match="steps are not captured: operation not permitted when stream is capturing$"):
        assert accelerator.result(task, images) == result(task, images)
    assert accelerator.result(task, images, 4) == result(task, images, 4)
    assert Refusing.tries == 1
    assert accelerator.captures.num_captured == 0


def nested(device: torch.device) -> Term:
    aim = torch.zeros((), device=device)

    def hidden(model: Model, projections: Tensor) -> Tensor:
        return projections.mean() - aim

    return hidden


class Counts:
    def __init__(self, device: torch.device) -> None:
        self.steps = 0

    def __call__(self, model: Model, projections: Tensor) -> Tensor:
        self.steps += 1
        return self.steps * projections.mean()


def reads(model: Model, projections: Tensor) -> Tensor:
    return projections.mean() * (1.0 if projections.mean().item() > 0 else 2.0)


def moves(model: Model, projections: Tensor) -> Tensor:
    return projections.mean() + move(torch.ones(()), projections.device)


@pytest.mark.parametrize(
    ("term", "reason"),
    [
        (nested, "nested.<locals>.hidden is a nested function that holds tensors or generators: bind them"),
        (Counts, "a Counts may hold what is not seen"),
        (lambda device: reads, "_local_scalar_dense.default waits for the device"),
        (lambda device: moves, "they move values of the host"),
    ],
)
def test_a_term_that_cannot_be_captured_costs_no_bit_and_is_named_once(small, term: MakeTerm, reason: str) -> None:
    task, images = small()
    accelerator = Accelerator.new()
    with pytest.warns(UserWarning, match="steps are not captured: ") as caught:
        found = [accelerator.result(task, images, term=term) for _ in range(2)]
    assert found == [result(task, images, term=term)] * 2
    assert [reason in str(warning.message) for warning in caught if "captured" in str(warning.message)] == [True]
    assert accelerator.captures.num_captured == 0
    accelerator.result(task, images)
    assert accelerator.captures.num_captured == 2  # others still are


@pytest.mark.parametrize("resident", [True, False])
def test_a_step_that_draws_samples_is_captured_where_their_pixels_are_on_the_device(resident: bool) -> None:
    images, generator, drawn = np.arange(36, dtype=np.uint8).reshape(9, 1, 2, 2), seeded(1), []
    with (device := PretendDevice()):
        captures = Captures(Tapes(device))
        shard = Shard.of(images, np.arange(9), DEVICE, resident=resident)
        total = torch.zeros(4, dtype=torch.int64, device=DEVICE)

        def step(batch: Batch) -> None:
            index, pixels = shard.draw_samples(4, generator)
            total.copy_(index + pixels[:, 0, 0, 0])

        runner = DeviceRunner(step, torch.device(DEVICE), captures)
        runner.expect(30)
        batch = Batch(torch.zeros(2, 1, device=DEVICE), torch.zeros(2, device=DEVICE), None, 0)
        with nullcontext() if resident else pytest.warns(UserWarning, match="they move values of the host"):
            for _ in range(30):
                runner(batch)
                drawn.append(total.tolist())
    expected = seeded(1)
    assert drawn == [(5 * torch.randperm(9, generator=expected)[:4]).tolist() for _ in range(30)]
    assert captures.num_captured == resident


def test_dropout_is_captured_and_draws_anew_in_each_replay(small) -> None:
    task, images = small("model.encoder=vgg9")
    accelerator = Accelerator.new()
    torch.manual_seed(0)
    expected = [result(task, images, seed) for seed in (3, 4)]
    torch.manual_seed(0)
    assert [accelerator.result(task, images, seed) for seed in (3, 4)] == expected
    assert accelerator.captures.num_captured == 2


def test_a_capture_waits_until_the_run_has_enough_steps_for_it(small) -> None:
    once, images = small("training.epochs=1", "rounds=1", "clients.fraction=0.2")
    accelerator = Accelerator.new()
    accelerator.result(once, images)
    assert accelerator.captures.num_captured == 0
    often, _ = small("training.epochs=1", "rounds=12")
    assert [accelerator.result(often, images, seed, seed) for seed in (1, 2, 3, 4)] == [
        result(often, images, seed, seed) for seed in (1, 2, 3, 4)
    ]
    assert accelerator.captures.num_captured == 2


def test_the_least_recently_used_kind_makes_room(small) -> None:
    (one, images), (other, _), (third, _) = (small(f"model.projection_dim={width}") for width in (8, 9, 10))

    class Room(Tapes):
        for_kinds = 2

        def is_full(self) -> bool:
            return len(accelerator.captures._residents) > self.for_kinds

    accelerator = Accelerator.new(Room)
    for task in (one, other, one, third, one):
        assert accelerator.result(task, images) == result(task, images)
    assert accelerator.captures.num_captured == 6
    accelerator.result(other, images)
    assert accelerator.captures.num_captured == 8


def test_a_copy_shares_no_tensor_and_keeps_what_is_one() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    generator = seeded(4)
    parts = (model, partial(descend, model[0].weight), {"queue": torch.ones(2)}, generator, generator)
    contents = Contents.of(parts)
    copied = contents.copy(parts)
    assert Contents.of(copied).kind == contents.kind
    assert copied[1].args[0] is copied[0][0].weight
    assert copied[3] is copied[4]
    assert torch.rand(3, generator=copied[3]).equal(torch.rand(3, generator=seeded(4)))
    ours = {tensor.data_ptr() for tensor in contents.tensors}
    assert len(ours) == len(contents.tensors) == 8
    assert not ours & {tensor.data_ptr() for tensor in Contents.of(copied).tensors}


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: (nn.Linear(3, 2, bias=False), *parts[1:]),
        lambda parts: (parts[0].eval(), *parts[1:]),
        lambda parts: (parts[0].requires_grad_(False), *parts[1:]),
        lambda parts: (parts[0], torch.ones(4), *parts[2:]),
        lambda parts: (parts[0], torch.ones(3, dtype=torch.float64), *parts[2:]),
        lambda parts: (*parts[:2], 1.0, parts[3]),
        lambda parts: (*parts[:3], partial(StepOutput, 2)),
    ],
)
def test_whatever_decides_operations_makes_another_kind(change: Callable[[Any], Any]) -> None:
    def parts() -> Any:
        return nn.Linear(3, 2), torch.ones(3), 1, partial(StepOutput, 1)

    assert Contents.of(parts()).kind == Contents.of(parts()).kind
    assert Contents.of(change(parts())).kind != Contents.of(parts()).kind


def test_samples_that_are_read_from_the_host_are_refused() -> None:
    images = np.zeros((4, 1, 2, 2), dtype=np.uint8)
    with PretendDevice(), pytest.raises(UndeclaredError, match="samples that they draw are not on the device"):
        Contents.of(Shard.of(images, np.arange(4), DEVICE, resident=False))


def test_a_model_without_anything_to_train_stays_as_it_is() -> None:
    model = torch.nn.Linear(2, 1)
    before = digest(model.state_dict())
    loss = model(torch.ones(3, 2)).sum()
    descend(loss, SGD(lr=0.1).over(model.requires_grad_(False).parameters()))
    assert digest(model.state_dict()) == before
