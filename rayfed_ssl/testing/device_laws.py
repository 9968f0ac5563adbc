"""The laws of a method's steps on an accelerator, checked on a pretend one: equal bits, few waits, nothing left behind."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from torch import Tensor

from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.shards import ResidentShards
from rayfed_ssl.engine.federation import ClientResult, Federation
from rayfed_ssl.engine.round_loop import ClientError, ServerError
from rayfed_ssl.machine.environment import compute_threads
from rayfed_ssl.testing.method_laws import LawViolation, demand
from rayfed_ssl.testing.pretend_device import DEVICE, PretendDevice
from rayfed_ssl.testing.tape import Tapes
from rayfed_ssl.testing.trial import Round, open_afresh, play
from rayfed_ssl.training.captured import Captures
from rayfed_ssl.trees import digest, leaves

Result = TypeVar("Result")


@dataclass(frozen=True)
class DeviceStep:
    """A step on the pretend device that was given what the same step was given on the CPU.

    Attributes:
        where: The step, for messages.
        results: What it gives, by name.
        expected: What it gives on the CPU, by name.
        waits: How often each operation waited for the device.
    """

    where: str
    results: dict[str, Any]
    expected: dict[str, Any]
    waits: Counter[str]


def open_on_device(config: Config, resident: int = 2**30) -> Federation:
    """Open a federation whose steps run on the pretend device, where so many bytes of pixels stay."""
    federation = open_afresh(config)
    federation.task = replace(federation.task, device=DEVICE)
    federation.resident = ResidentShards(lambda: resident)
    return federation


def on_device(
    where: str, threads: int, step: Callable[..., Result], *inputs: Any, device: PretendDevice | None = None
) -> tuple[Result, Counter[str]]:
    """Make a step on the device, a new one by default.

    Returns:
        What it gives, and how often each operation waited for the device.

    Raises:
        LawViolation: The step fails.
    """
    with device or PretendDevice() as device, compute_threads(threads):
        before = device.waits.copy()
        try:
            return step(*inputs), device.waits - before
        except (ClientError, ServerError, RuntimeError) as error:
            raise LawViolation(f"{where} fails on a device that is not the CPU: {error}") from error


class DeviceTrial:
    """A run on the CPU in fp32, and each of its steps once more on the pretend device.

    Attributes:
        config: What both have in common.
        waits_per_step: How often a training step may wait, for a method that needs the host for some of its work.
        resident: Bytes of pixels that stay on the device; larger shards are copied to it batch by batch.
    """

    def __init__(self, config: Config, waits_per_step: int = 0, resident: int = 2**30) -> None:
        self.waits_per_step, self.resident = waits_per_step, resident
        engine = config.engine.model_copy(update={"device": "cpu", "precision": "fp32", "compile": False})
        self.config = config.model_copy(update={"engine": engine})

    @cached_property
    def played(self) -> list[Round]:
        """The rounds of the whole run on the CPU."""
        return play(open_afresh(self.config))

    @cached_property
    def client_steps(self) -> dict[tuple[int, int], tuple[Any, Any]]:
        """Download and state that each client's step was given, by round and client."""
        given: dict[tuple[int, int], tuple[Any, Any]] = {}
        states: dict[int, Any] = {}
        for number, round in enumerate(self.played, 1):
            for client_id in sorted(round.results):
                given[number, client_id] = round.downloads[client_id], states.get(client_id)
            states |= {client_id: result.state for client_id, result in round.results.items()}
        return given

    @cached_property
    def steps(self) -> list[DeviceStep]:
        """All steps on the device: the server's first, those of clients, those of the server."""
        return list(self._steps(PretendDevice()))

    @cached_property
    def captured(self) -> tuple[list[DeviceStep], Captures]:
        """All steps on a device that captures each kind of training step as soon as it can, and what captured them."""
        device = PretendDevice()
        captures = Captures(Tapes(device), eager_steps=1, min_replays=1)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="steps are not captured")
            return list(self._steps(device, captures)), captures

    def _steps(self, device: PretendDevice, captures: Captures | None = None) -> Iterator[DeviceStep]:
        federation, threads = open_on_device(self.config, self.resident), self.config.engine.server_threads
        federation.task = replace(federation.task, captures=captures)
        where = "the server's first step"
        state, waits = on_device(where, threads, federation.init_server, device=device)
        yield DeviceStep(where, {"state": state}, {"state": self.played[0].server_before}, waits)
        for number, client_id in self.client_steps:
            result, waits = self.client_step(federation, number, client_id, device)
            expected = self.played[number - 1].results[client_id]
            yield DeviceStep(name_of_step(number, client_id), _outcome(result), _outcome(expected), waits)
        for number, round in enumerate(self.played, 1):
            where, uploads = f"the server's step of round {number}", round.uploads
            inputs = number, round.server_before, uploads
            after, waits = on_device(where, threads, federation.update_server, *inputs, device=device)
            outcome = {"state": after.state, "metrics": after.metrics}
            yield DeviceStep(where, outcome, {"state": round.server, "metrics": round.metrics}, waits)

    def client_step(
        self, federation: Federation, round: int, client_id: int, device: PretendDevice | None = None
    ) -> tuple[ClientResult, Counter[str]]:
        """Make a client's step of the run in a federation on the device; gives result and waits."""
        inputs = round, client_id, *self.client_steps[round, client_id]
        threads = federation.config.engine.threads
        return on_device(name_of_step(round, client_id), threads, federation.update_client, *inputs, device=device)


def _outcome(result: ClientResult) -> dict[str, Any]:
    return {"upload": result.upload, "state": result.state, "metrics": result.metrics}


def name_of_step(round: int, client_id: int) -> str:
    """Name a client's step in messages."""
    return f"the step of client {client_id} in round {round}"


def nothing_stays_on_the_device(trial: DeviceTrial) -> None:
    """What a step gives is on the CPU and has no gradient, so that it can be stored and sent."""
    for step in trial.steps:
        for name, result in step.results.items():
            for path, leaf in leaves(result):
                if not isinstance(leaf, Tensor):
                    continue
                demand(type(leaf) is Tensor, f"{step.where} leaves {name}{path} on the device: copy it to the CPU")
                demand(not leaf.requires_grad, f"{step.where} gives {name}{path} with a gradient: detach it")


def bits_are_those_of_the_cpu(trial: DeviceTrial) -> None:
    """Every step gives the bits that it gives on the CPU: nothing depends on where it runs."""
    for step in trial.steps:
        for name, result in step.results.items():
            same = digest(result) == digest(step.expected[name])
            demand(same, f"{step.where} gives another {name} on a device than on the CPU")


def captured_steps_have_the_bits_of_eager_ones(trial: DeviceTrial) -> None:
    """Steps that are captured once, and replayed for each client and round in the same buffers, change no bit."""
    steps, captures = trial.captured
    for step in steps:
        for name, result in step.results.items():
            same = digest(result) == digest(step.expected[name])
            demand(
                same,
                f"{step.where} gives another {name} where its training steps are captured: a loss or a term reads and "
                "writes tensors alone, all of them declared (docs/gpu.md)",
            )
    trains = any("steps" in round.results[k].metrics for round in trial.played for k in round.results)
    demand(
        bool(captures.num_captured or captures.refused) or not trains,
        "no kind of training step was captured, nor refused",
    )


def waits_do_not_grow_with_steps(trial: DeviceTrial) -> None:
    """Training waits once per local epoch, to read its loss: steps add no wait, and one more epoch adds one at most.

    So whatever else a client's step waits for, at its start and at its end, does not depend on how long it trains.
    """
    training = trial.config.training
    halved = training.model_copy(update={"batch": max(2, training.batch // 2)})
    longer = training.lasting(trial.config.epochs + 1)
    waits = {step.where: step.waits for step in trial.steps}
    for changed, epochs, what in ((halved, 0, "batches of half the size"), (longer, 1, "one more local epoch")):
        federation = open_on_device(trial.config.model_copy(update={"training": changed}), trial.resident)
        for number, round in enumerate(trial.played, 1):
            client_id = max(round.results, key=lambda client_id: len(federation.shards[client_id]))
            where = name_of_step(number, client_id)
            result, counted = trial.client_step(federation, number, client_id)
            steps = result.metrics.get("steps", 0) - round.results[client_id].metrics.get("steps", 0)
            more = ", ".join(f"{count} more {name}" for name, count in (counted - waits[where]).items())
            demand(
                counted.total() - waits[where].total() <= epochs + trial.waits_per_step * steps,
                f"with {what}, {where} waits {counted.total()} times for the device in place of "
                f"{waits[where].total()}: {more}",
            )


DEVICE_LAWS: dict[str, Callable[[DeviceTrial], None]] = {
    law.__name__: law
    for law in (
        nothing_stays_on_the_device,
        bits_are_those_of_the_cpu,
        captured_steps_have_the_bits_of_eager_ones,
        waits_do_not_grow_with_steps,
    )
}
"""All laws of steps on a device by name."""
