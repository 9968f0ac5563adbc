"""Every shipped recipe obeys the laws of accelerators, on a pretend one, and the laws reject planted mistakes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from examples.my_method import FedAvgM, ServerState
from rayfed_ssl.config.recipes import recipe_names
from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.augmentation import augment
from rayfed_ssl.data.shards import ResidentShards, Shard
from rayfed_ssl.data.view_recipes import VIEWS
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.local_executor import LocalExecutor
from rayfed_ssl.method import Client, Method, Metrics, Server
from rayfed_ssl.methods.fedavg import Download, Upload
from rayfed_ssl.objectives import SimCLR
from rayfed_ssl.randomness.seeds import generator
from rayfed_ssl.testing import DEVICE_LAWS, LawViolation, check_device_laws, check_method, toy_config
from rayfed_ssl.testing.device_laws import DeviceTrial, open_on_device
from rayfed_ssl.testing.pretend_device import DEVICE, PretendDevice
from rayfed_ssl.testing.trial import open_afresh, simulate
from rayfed_ssl.training.objective import StepOutput
from tests.small_recipes import small

DEFAULT = frozenset({"flesd"})
"""Recipes that the default tier checks; the others are slow."""

IBOT = ("feddino", "objective={name: ibot, hidden: 48}", "model.encoder=vit-micro")

FEDFOA_WAITS = 5
"""A trace, and for each of two other clients a matrix to the host and back: FedFoA's SVDs are computed there."""


@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=[] if name in DEFAULT else pytest.mark.slow) for name in recipe_names()]
)
def test_a_recipe_obeys_the_laws_of_devices(recipe: str):
    config = small(recipe, "data.train_limit=180", "clients.number=3")
    with sdpa_kernel(SDPBackend.MATH):  # the pretend device has no fused attention, whose bits differ
        check_device_laws(DeviceTrial(config, waits_per_step=FEDFOA_WAITS if recipe.startswith("fedfoa") else 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [("feddino", "objective.koleo=0.1"), IBOT, ("fedlejepa", "method=fedsigreg"), ("fedswav",)],
    ids=" ".join,
)
def test_small_crops_obey_the_laws_of_devices(settings: tuple[str, ...]):
    config = small(*settings, "data.train_limit=180", "clients.number=3", "training.small_crops=2")
    with sdpa_kernel(SDPBackend.MATH):
        check_device_laws(DeviceTrial(config))


@pytest.mark.slow
@pytest.mark.parametrize("adversary", ["bad-encoder, tuning_epochs: 2", "ssl-backdoor", "wrong-positives"])
def test_training_of_hostile_clients_obeys_the_laws_of_devices(adversary: str):
    config = small("fedsimclr", "data.train_limit=180", "clients.number=3", f"adversary={{name: {adversary}}}")
    check_device_laws(DeviceTrial(config))


@pytest.mark.parametrize("resident", [pytest.param(0, marks=pytest.mark.slow), 70 * 64], ids=["none", "one at a time"])
@pytest.mark.parametrize(
    "recipe", ["flesd", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedca", "fedx"))]
)
def test_a_recipe_obeys_the_laws_of_devices_where_not_all_shards_stay(
    recipe: str, resident: int, monkeypatch: pytest.MonkeyPatch
):
    ask, given, absent = ResidentShards.shard, dict[Any, Shard](), []

    def shard(self: ResidentShards, name: Any, *inputs: Any, **more: Any) -> Shard:
        found = ask(self, name, *inputs, **more)
        if found.device == DEVICE:
            absent.append(not found.is_resident or given.setdefault((self, name), found) is not found)
        return found

    monkeypatch.setattr(ResidentShards, "shard", shard)
    check_device_laws(DeviceTrial(small(recipe, "data.train_limit=180", "clients.number=3"), resident=resident))
    assert any(absent), "a shard was read from the CPU or had to be loaded again"


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant",
    [
        "flesd-mixed-models",
        "flesd-int8",
        "fedmd-mixed-models-with-targets",
        "feddf-mixed-models-with-local-predictors",
        "fedavg-swav-with-queues",
        "fcl-remote-negatives-alone",
        "fedavg-half-of-the-clients",
        "fedavg-private-samples",
    ],
)
def test_a_variant_obeys_the_laws_of_devices(variant_config: Callable[[str], Config], variant: str):
    check_device_laws(DeviceTrial(variant_config(variant)))


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("lars", marks=pytest.mark.slow)])
def test_a_learning_rate_for_each_step_obeys_the_laws_of_devices(optimizer: str):
    settings = [f"training.optimizer.name={optimizer}", "training.optimizer.schedule=warmup-cosine"]
    check_device_laws(DeviceTrial(toy_config(settings=settings)))


class ChangesTheLoss(SimCLR):
    """Does something to each step's loss, which a subclass chooses."""

    def changed(self, loss: Tensor, output: StepOutput, images: Tensor) -> Tensor:
        raise NotImplementedError

    def loss(self, *given: Any) -> StepOutput:
        output, batch = super().loss(*given), given[3]
        return replace(output, loss=self.changed(output.loss, output, batch.images))


class ReadsItsLoss(ChangesTheLoss):
    def changed(self, loss: Tensor, output: StepOutput, images: Tensor) -> Tensor:
        return loss * (1.0 if loss.item() > 0 else 2.0)


class SelectsRows(ChangesTheLoss):
    def changed(self, loss: Tensor, output: StepOutput, images: Tensor) -> Tensor:
        return loss + output.projections[output.projections[:, 0].isfinite().nonzero()[:, 0]].sum() * 0


class MasksRows(ChangesTheLoss):
    def changed(self, loss: Tensor, output: StepOutput, images: Tensor) -> Tensor:
        return loss + output.projections[output.projections[:, 0] > 0].sum() * 0


class MakesTensorsOnTheCPU(ChangesTheLoss):
    def changed(self, loss: Tensor, output: StepOutput, images: Tensor) -> Tensor:
        return loss + (output.projections * torch.ones(output.projections.shape[1])).sum() * 0


class DrawsForTheDeviceOnTheCPU(ChangesTheLoss):
    def changed(self, loss: Tensor, output: StepOutput, images: Tensor) -> Tensor:
        draws = torch.rand(len(images), generator=torch.Generator(), device=images.device)
        return loss + draws.sum() * 0


class LooksAtItsDevice(ChangesTheLoss):
    def changed(self, loss: Tensor, output: StepOutput, images: Tensor) -> Tensor:
        return loss if loss.device.type == "cpu" else loss * 2


class ReadsItsStateTwiceAnEpoch(SimCLR):
    def start_epoch(self, context: Any, model: Any, *given: Any) -> None:
        for parameter in list(model.parameters())[:2]:
            float(parameter.detach().sum())


class CountsItsSteps(ChangesTheLoss):
    seen: ClassVar[list[int]] = []

    def start(self, *given: Any) -> nn.Module:
        self.seen.clear()
        return super().start(*given)

    def changed(self, loss: Tensor, output: StepOutput, images: Tensor) -> Tensor:
        self.seen.append(1)
        return loss * len(self.seen)


class LeavesUploadsOnTheDevice(FedAvgM):
    def update_client(self, download: Download, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        upload, next_state, metrics = super().update_client(download, state, client)
        weights = {name: value.to(client.task.device) for name, value in upload.weights.items()}
        return replace(upload, weights=weights), next_state, metrics


class UploadsGradients(FedAvgM):
    def update_client(self, download: Download, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        upload, next_state, metrics = super().update_client(download, state, client)
        weights = {name: v.requires_grad_() if v.is_floating_point() else v for name, v in upload.weights.items()}
        return replace(upload, weights=weights), next_state, metrics


class MixesDevicesOnTheServer(FedAvgM):
    def update_server(self, state: ServerState, uploads: Mapping[int, Upload], server: Server) -> tuple[Any, Metrics]:
        ones = torch.ones(3, device=server.task.device)
        return super().update_server(state, uploads, server)[0], {"ones": float((ones + torch.ones(3)).sum())}


MISTAKES: list[tuple[str, Method | SimCLR, str]] = [
    ("waits_do_not_grow_with_steps", ReadsItsLoss(), "more _local_scalar_dense"),
    ("waits_do_not_grow_with_steps", SelectsRows(), "more nonzero"),
    ("waits_do_not_grow_with_steps", MasksRows(), "more index.Tensor"),
    ("waits_do_not_grow_with_steps", ReadsItsStateTwiceAnEpoch(), "with one more local epoch"),
    ("bits_are_those_of_the_cpu", MakesTensorsOnTheCPU(), "client 0 in round 1 fails on a device .* got some on lazy"),
    ("bits_are_those_of_the_cpu", DrawsForTheDeviceOnTheCPU(), "expected a generator of lazy"),
    ("bits_are_those_of_the_cpu", LooksAtItsDevice(), "the step of client 0 in round 1 gives another upload"),
    ("bits_are_those_of_the_cpu", MixesDevicesOnTheServer(), "the server's step of round 1 fails on a device"),
    (
        "captured_steps_have_the_bits_of_eager_ones",
        CountsItsSteps(),
        "another upload where its training steps are captured",
    ),
    ("nothing_stays_on_the_device", LeavesUploadsOnTheDevice(), "leaves upload/weights/encoder"),
    ("nothing_stays_on_the_device", UploadsGradients(), "with a gradient"),
]


@pytest.mark.parametrize(
    ("law", "mistake", "message"), MISTAKES, ids=[type(mistake).__name__ for _, mistake, _ in MISTAKES]
)
def test_a_law_finds_a_planted_mistake(law: str, mistake: Method | SimCLR, message: str):
    config = toy_config(mistake) if isinstance(mistake, Method) else toy_config(objective=mistake)
    with pytest.raises(LawViolation, match=message) as violation:
        DEVICE_LAWS[law](DeviceTrial(config))
    assert "\n" not in str(violation.value)


def test_there_is_a_mistake_for_every_law():
    assert {law for law, *_ in MISTAKES} == set(DEVICE_LAWS)


def test_an_authors_method_is_checked_on_the_device():
    with pytest.raises(LawViolation, match=r"^nothing stays on the device: the step of client 0"):
        check_method(LeavesUploadsOnTheDevice())


def test_a_local_training_waits_for_its_epochs_and_for_what_it_hands_over():
    """One wait reads an epoch's loss, and the last one also whether weights are finite; one transfer hands all over."""
    trial = DeviceTrial(toy_config(settings=["training.epochs=3", "rounds=1"]))
    _, waits = trial.client_step(open_on_device(trial.config), 1, 0)
    assert waits.total() == 3 + 1


@pytest.mark.parametrize("name", VIEWS)
def test_views_in_color_give_the_bits_of_the_cpu_without_a_wait(name: str):
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8, generator=generator(1))
    for recipe in (VIEWS[name].first, VIEWS[name].second):
        expected = augment(images, recipe, generator(2))
        with PretendDevice() as device:
            there = augment(images.to(DEVICE), recipe, generator(2))
            assert device.waits.total() == 0
            assert torch.equal(there.cpu(), expected)


def test_a_run_on_a_device_leaves_the_checkpoints_of_one_on_the_cpu(tmp_path: Path):
    def on_device(federation: Federation) -> LocalExecutor:
        federation.task = replace(federation.task, device=DEVICE)
        return LocalExecutor(federation)

    config = small("flesd", "data.train_limit=180", "clients.number=3")
    expected = simulate(config, tmp_path / "cpu")
    with PretendDevice():
        there = simulate(config, tmp_path / "device", on_device)
    assert there.digests == expected.digests
    assert len(there.digests) == 2


def test_an_encoder_scores_on_a_device_as_on_the_cpu():
    trial = DeviceTrial(toy_config(settings=["evaluation.diagnostics=1"]))
    federation = open_afresh(trial.config)
    (encoder,) = federation.method.encoders(trial.played[-1].server, {}).values()
    expected = federation.evaluate(encoder, "global", 2, True)
    with PretendDevice():
        there = open_on_device(trial.config).evaluate(encoder, "global", 2, True)
    # Equal inputs have singular values of other last digits on some processors: MKL promises none.
    assert there.metrics == pytest.approx(expected.metrics, rel=1e-14, abs=0)
