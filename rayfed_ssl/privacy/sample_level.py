"""Sample-level differential privacy: local training by DP-SGD, in which no single sample moves the weights far.

Neighbors differ in one sample of one client, which is replaced by another; how many samples a client has is public, and may
be sent. A batch's sum of clipped gradients moves by at most 2 C, so noise of z C has sigma = z / 2. An epoch takes each
sample in one batch at most, and its batches are no random samples: it is one Gaussian mechanism, and nothing is claimed for
sampling. Samples of different clients are disjoint, so the client that took part most often counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch.nn.modules.batchnorm import _BatchNorm

from rayfed_ssl.method import Client, Metrics, Task
from rayfed_ssl.privacy.accounting import Accounted
from rayfed_ssl.privacy.wrapper import Wrapper
from rayfed_ssl.randomness.seeds import Purpose, derive_seed, generator
from rayfed_ssl.training.objective import PerSample
from rayfed_ssl.training.per_sample import SampleNoise


@dataclass(frozen=True, kw_only=True)
class SampleLevel(Accounted):
    """A method whose clients train by DP-SGD.

    Attributes:
        clip: C.
    """

    clip: float

    def cost(self, num_arrived: int, task: Task) -> float:
        """(2 / z)^2 for each local epoch."""
        return task.epochs * 4 / self.noise**2

    def hides_cohort(self, task: Task) -> bool:
        """Clients send weights under their names."""
        return False

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse what joins samples, and methods that send more than what follows from weights."""
        if problem := next(self.problems(task), None):
            raise ValueError(f"privacy.level=sample clips gradients of single samples, and {problem}")
        return super().check(task, num_public)

    def problems(self, task: Task) -> Iterator[str]:
        """Say what a gradient of a single sample does not hold for."""
        objective = task.objective
        if not isinstance(objective, PerSample):
            joins = f"objective {type(objective).__name__} joins them: {objective.joins}"
            yield f"{joins}: take mae, autoencoder, rotation or supervised"
        if isinstance(self.method, Wrapper):
            yield "robust and adversary change what clients train on or send: remove them, or take privacy.level=client"
        elif not vars(type(self.method)).get("uploads_follow_weights"):
            name = type(self.method).__name__
            yield (
                f"{name} changes the loss or sends more than follows from weights: take fedavg, fedema, ldawa, flesd, "
                "fedmd or feddf"
            )
        for encoder in sorted({task.encoder, *task.client_encoders}):
            if any(isinstance(layer, _BatchNorm) for layer in task.blank(encoder).modules()):
                yield (
                    f"batch-norm in the model of {encoder} joins those of a batch: take an encoder with group norm "
                    "(cnn-group, resnet18-group) or without norm (vgg9, vit-micro)"
                )

    def update_client(self, download: Any, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        """Train as the inner method does, on noised gradients."""
        seed = derive_seed(client.task.seed, Purpose.PRIVACY, round=client.round, participant=client.id)
        task = replace(client.task, sample_noise=SampleNoise(self.clip, self.noise, generator(seed)))
        return super().update_client(download, state, replace(client, task=task))
