"""The actor that runs clients' steps, one after the other; nothing in it survives a call."""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from actors.federation_actor import FederationActor, Versions, ending_without_gpu
from actors.object_store import fetch
from rayfed_ssl.engine.gpu_memory import limit_process, release
from rayfed_ssl.engine.round_loop import ClientError, ClientReport, Evaluation
from rayfed_ssl.engine.start_scores import score_start
from rayfed_ssl.method import Encoder, Metrics
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.addresses import Directory
from rayfed_ssl.storage.checkpoints import Stored
from rayfed_ssl.trees import Flat, flatten


@dataclass(frozen=True)
class ClientStep:
    """What a client's step needs besides the configuration; the download has refs in the place of its parts.

    `is_killed` has the actor die once the step is done, as `--inject kill-actor` asks.
    """

    round: int
    client: int
    download: Any
    state: Stored | None
    epochs: int | None = None
    is_killed: bool = False


class ClientActor(FederationActor):
    """Runs steps of any client: all that a step needs is in its arguments or follows from the configuration."""

    def __init__(self, config: dict[str, Any], versions: Versions | None = None, working_directory: str = "") -> None:
        super().__init__(config, versions, working_directory)
        torch.set_num_threads(self._config.engine.threads)
        limit_process(self._config.engine.gpus_per_actor)

    def update_clients(self, steps: Sequence[ClientStep], directory: Directory) -> list[Any]:
        """Run clients' steps and store their next states, which never pass through the driver.

        Returns a list of uploads as arrays, one object because each costs a millisecond, and a list of reports, with a
        `ClientError` for a step that failed.
        """
        uploads: list[Flat | None] = []
        reports: list[ClientReport | ClientError] = []
        for step, download in zip(steps, fetch([step.download for step in steps]), strict=True):
            try:
                state = None if step.state is None else checkpoints.read(step.state, directory)
                with ending_without_gpu():
                    result, report = self.steps.update_client(
                        step.round, step.client, download, state, directory, step.epochs
                    )
            except ClientError as error:
                error.__cause__ = None  # it may hold what cannot be pickled
                uploads.append(None)
                reports.append(error)
            else:
                if step.is_killed:
                    os.kill(os.getpid(), signal.SIGKILL)
                uploads.append(flatten(result.upload))
                reports.append(report)
        return [uploads, reports]

    def release(self) -> None:
        """Free the GPU memory that torch caches, for others that share the GPU."""
        release()

    @ending_without_gpu()
    def score_start(self, architecture: str) -> list[Metrics]:
        """Score what an architecture starts from; returns a list of one."""
        return [score_start(self._federation, architecture)]

    @ending_without_gpu()
    def score_client(
        self, round: int, client_id: int, encoders: Mapping[str, Encoder], state: Stored | None, directory: Directory
    ) -> list[Evaluation]:
        """Score a client on its test part by encoders whose weights are refs; returns a list of one."""
        return [self.steps.score_client(round, client_id, fetch(encoders), state, directory)]

    @ending_without_gpu()
    def evaluate(self, encoder: Encoder, name: str, round: int, final: bool) -> list[Evaluation]:
        """Score an encoder, whose weights are refs; returns a list of one."""
        return [self._federation.evaluate(fetch(encoder), name, round, final)]
