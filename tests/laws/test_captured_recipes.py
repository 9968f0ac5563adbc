"""Local trainings of recipes with losses and terms of their own have the bits of eager ones where steps are captured."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rayfed_ssl.engine.round_loop import ClientError
from rayfed_ssl.method import Client
from rayfed_ssl.methods import fedx
from rayfed_ssl.testing.device_laws import open_on_device
from rayfed_ssl.testing.pretend_device import PretendDevice
from rayfed_ssl.testing.trial import open_afresh, play
from rayfed_ssl.training.step import CAPTURE_FAILURES, DeviceRunner, TrainingStep, device_runner
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import digest
from tests.small_recipes import small
from tests.tape import taped


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[DeviceRunner]]:
    """What ran the steps on the pretend device."""
    made: list[DeviceRunner] = []
    eager = Task._runner

    def runner(self: Task, step: TrainingStep, num_steps: int) -> object:
        if self.device.type == "cpu":
            return eager(self, step, num_steps)
        made.append(device_runner(step, self.device, taped, num_steps))
        return made[-1]

    monkeypatch.setattr(Task, "_runner", runner)
    yield made
    CAPTURE_FAILURES.clear()


def check_captured(recipe: str) -> None:
    """Compare the step of a client in each of two rounds with the same step on the CPU."""
    config = small(recipe, "data.train_limit=120", "clients.number=2", "training={epochs: 6, batch: 8}")
    federation, state = open_on_device(config), None
    for number, round in enumerate(play(open_afresh(config), 2), 1):
        client_id = 0
        expected = round.results[client_id]
        with PretendDevice():
            there = federation.update_client(number, client_id, round.downloads[client_id], state)
        assert digest(there.upload) == digest(expected.upload)
        state = expected.state


SLOW = ("fedca", "fedu2", "fedsc", "ssd", "fedalignuniform", "fedx")


@pytest.mark.parametrize("recipe", ["fedpr", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_captured_steps_of_a_recipe_have_the_bits_of_eager_ones(recipe: str, runners: list[DeviceRunner]) -> None:
    check_captured(recipe)
    assert runners
    assert all(runner.num_captured for runner in runners)


def test_a_draw_within_a_captured_step_is_found(runners: list[DeviceRunner], monkeypatch: pytest.MonkeyPatch) -> None:
    def random_anchors(client: Client, choices: torch.Generator) -> Tensor:
        task, data = client.task, client.data
        order = torch.randperm(len(data), generator=choices).to(task.device)
        return task.augment(data.batch(order[: task.batch]), task.views.first, client.method_generator)

    monkeypatch.setattr(fedx, "random_anchors", random_anchors)
    with pytest.raises(ClientError, match=r"randperm.*: a draw that replays would not repeat"):
        check_captured("fedx")
