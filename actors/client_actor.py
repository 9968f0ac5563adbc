"""The actor that runs clients' steps, one after the other; clients are data to it, and nothing survives a call."""

from functools import cached_property
from typing import Any

import ray
import torch

from actors.memories import Memory
from actors.parking import fetch
from rayfed_ssl import checkpoints
from rayfed_ssl.config import Config
from rayfed_ssl.federation import Federation
from rayfed_ssl.local_executor import client_file
from rayfed_ssl.method import Encoder
from rayfed_ssl.places import Directory
from rayfed_ssl.rounds import ClientReport, Evaluation
from rayfed_ssl.trees import to_numpy


class ClientActor:
    """Runs steps of any client: all that a step needs comes in its arguments or follows from the configuration.

    Args:
        config: The run's configuration as plain data.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = Config.load(config)
        torch.set_num_threads(self._config.engine.threads)

    @cached_property
    def _federation(self) -> Federation:
        return Federation.open(self._config)

    def ready(self) -> None:
        """Open the data, so that what is wrong with it is told before the first round."""
        assert self._federation

    @ray.method(num_returns=3)
    def update_client(
        self, round: int, client_id: int, download: Any, memory: Memory | None, directory: Directory
    ) -> tuple[Any, Any, ClientReport]:
        """Run one client's step and store its next state, which so never passes through the driver.

        Args:
            round: From 1.
            client_id: Who trains.
            download: What the server sent, with refs in the place of parked parts.
            memory: The client's state, or None before its first round.
            directory: Where checkpoints go.

        Returns:
            The upload and the next state as numpy, and the report.
        """
        own = None if memory is None else memory.recall(directory)
        result = self._federation.update_client(round, client_id, fetch(download), own)
        stored = checkpoints.store(result.state, directory, client_file(client_id, round))
        report = ClientReport(client_id, stored, result.metrics, result.ledger, result.seconds)
        return to_numpy(result.upload), to_numpy(result.state), report

    def evaluate(self, encoder: Encoder, name: str, round: int, final: bool) -> Evaluation:
        """Score an encoder, whose weights are refs."""
        return self._federation.evaluate(fetch(encoder), name, round, final)
