"""The actor that clients live in: it runs their steps one after the other, and nothing in it survives a call."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from actors.cluster.version_check import Versions, hardware, refuse_others
from actors.fault_injection import strike_actor
from actors.objects.client_states import Memory, is_mapped
from actors.objects.object_store import fetch
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.client_cost import StepCost, measure, one_epoch
from rayfed_ssl.engine.fault_injection import fill_disk, update_client
from rayfed_ssl.engine.faults import Fault
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.gpu_memory import limit_process, release
from rayfed_ssl.engine.local_executor import client_file
from rayfed_ssl.engine.round_loop import ClientError, ClientReport, Evaluation
from rayfed_ssl.method import Encoder
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.addresses import Directory
from rayfed_ssl.trees import to_numpy


@dataclass(frozen=True)
class Step:
    """What a client's step needs beside the configuration.

    Attributes:
        client: Who trains.
        download: What the server sent, with refs in the place of parked parts.
        memory: The client's state, or None before its first round.
        faults: What shall go wrong in it.
    """

    client: int
    download: Any
    memory: Memory | None
    faults: tuple[Fault, ...] = ()


class ClientActor:
    """Runs steps of any client: all that a step needs comes in its arguments or follows from the configuration.

    Args:
        config: The run's configuration as plain data.
        versions: The driver's; None compares nothing.
    """

    def __init__(self, config: dict[str, Any], versions: Versions | None = None) -> None:
        self._versions = versions or {}
        self._config = Config.load(config)
        torch.set_num_threads(self._config.engine.threads)
        limit_process(self._config.engine.gpus_per_actor)

    @cached_property
    def _federation(self) -> Federation:
        refuse_others(self._versions)
        return Federation.open(self._config)

    def ready(self) -> str:
        """Open the data, so that what is wrong with it is told before the first round.

        Returns:
            The hardware that it computes on.
        """
        return hardware(self._federation.task.device)

    def update_clients(self, round: int, steps: Sequence[Step], directory: Directory) -> list[Any]:
        """Run clients' steps and store their next states, which so never pass through the driver.

        Args:
            round: From 1.
            steps: Whose, and from what.
            directory: Where checkpoints go.

        Returns:
            A list of uploads as numpy, each next state alone in its list where these cannot be mapped, and a list of
            reports. Where a step failed, a `ClientError` is in the report's place and None in the others'. Uploads are
            one object, because each object costs a millisecond; states are several, so that each goes when its next one
            comes.
        """
        uploads: list[Any] = []
        states: list[Any] = []
        reports: list[ClientReport | ClientError] = []
        for step, download in zip(steps, fetch([step.download for step in steps]), strict=True):
            try:
                upload, state, report = self._update_client(round, step, download, directory)
            except ClientError as error:
                error.__cause__ = None  # it may hold what cannot be sent
                upload = state = None
                reports.append(error)
            else:
                reports.append(report)
            uploads.append(upload)
            states.append([to_numpy(state)])
        return [uploads, reports] if is_mapped(directory) else [uploads, *states, reports]

    def _update_client(
        self, round: int, step: Step, download: Any, directory: Directory
    ) -> tuple[Any, Any, ClientReport]:
        own = None if step.memory is None else step.memory.recall(directory)
        result = update_client(self._federation, round, step.client, download, own, step.faults)
        fill_disk(step.faults, client_file(step.client, round))
        stored = checkpoints.store(result.state, directory, client_file(step.client, round))
        strike_actor(step.faults)
        report = ClientReport(step.client, stored, result.metrics, result.ledger, result.seconds)
        return to_numpy(result.upload), result.state, report

    def measure(self) -> StepCost:
        """Run the step of the client with most samples, and say what it takes of the GPU."""
        try:
            return measure(Federation.open(one_epoch(self._config)))
        finally:
            release()

    def release(self) -> None:
        """Give back the GPU memory that torch keeps, for whoever shares the GPU."""
        release()

    def evaluate(self, encoder: Encoder, name: str, round: int, final: bool) -> list[Evaluation]:
        """Score an encoder, whose weights are refs; alone in its list."""
        return [self._federation.evaluate(fetch(encoder), name, round, final)]
