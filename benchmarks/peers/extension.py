"""Plug-ins of rayfed-ssl that the suite measures with: clients that do not train, and shards of log-normal sizes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rayfed_ssl.method import Client, Empty, Encoder, Metrics, Server
from rayfed_ssl.methods.fedavg import ClientState, Download, FedAvg, ServerState, Upload
from rayfed_ssl.trees import Weights


def resnet18_sizes() -> list[int]:
    """Count the elements of each parameter of a ResNet-18 for small images, without torchvision, which costs memory."""
    sizes = [27 * 64, 64, 64]
    for inside, width in ((64, 64), (64, 128), (128, 256), (256, 512)):
        sizes += [9 * inside * width, width, width, 9 * width * width, width, width]
        sizes += [inside * width, width, width] if inside != width else []
        sizes += [9 * width * width, width, width] * 2
    return sizes


def weights_of(megabytes: float) -> Weights:
    """Draw weights of a size, in as many tensors and in the proportions of a ResNet-18's parameters."""
    sizes = resnet18_sizes()
    scale = megabytes * 1e6 / 4 / sum(sizes)
    random = torch.Generator().manual_seed(0)
    return {
        f"encoder.{index:03d}": torch.randn(max(1, round(size * scale)), generator=random)
        for index, size in enumerate(sizes)
    }


def noisy(weights: Weights, client: int, round: int) -> Weights:
    """Add noise that follows from the client and the round, so that a sum depends on the order of its summands."""
    drawn = noise(weights.values(), client, round)
    return {name: value + added for (name, value), added in zip(weights.items(), drawn, strict=True)}


def noise(like: Iterable[Tensor], client: int, round: int) -> list[Tensor]:
    """Draw noise of the shapes of some tensors."""
    random = torch.Generator().manual_seed(round * 1_000_003 + client)
    return [torch.randn(value.shape, generator=random) for value in like]


@dataclass(frozen=True, kw_only=True)
class NoOp(FedAvg):
    """FedAvg with clients that return what they received; aggregation, checkpoints and records are FedAvg's own.

    Attributes:
        megabytes: Size of the weights.
        state_megabytes: What each client remembers, all of which changes in every round.
        noise: Whether clients add seeded noise.
    """

    megabytes: float = 1.0
    state_megabytes: float = 0.0
    noise: bool = False

    def init_server(self, server: Server) -> ServerState:
        """Draw the weights."""
        return ServerState(server.task.encoder, weights_of(self.megabytes))

    def update_client(
        self, download: Download, state: ClientState | Empty, client: Client
    ) -> tuple[Upload, ClientState | Empty, Metrics]:
        """Return the weights, and add one to all that the client remembers."""
        weights = noisy(download.weights, client.id, client.round) if self.noise else download.weights
        upload = Upload(weights, len(client.data))
        if not self.state_megabytes:
            return upload, Empty(), {}
        if isinstance(state, ClientState):
            return upload, ClientState({"memory": state.kept["memory"] + 1}), {}
        return upload, ClientState({"memory": torch.zeros(round(self.state_megabytes * 1e6 / 4))}), {}

    def encoders(self, state: ServerState, clients: Mapping[int, ClientState | Empty]) -> dict[str, Encoder]:
        """Show none: these weights are no encoder's."""
        return {}


def log_normal(labels: np.ndarray, num_clients: int, generator: np.random.Generator, sigma: float) -> list[np.ndarray]:
    """Divide samples into shards of log-normal sizes, each of at least 4; `sigma` is that of the sizes' logarithm."""
    shares = generator.lognormal(sigma=sigma, size=num_clients)
    sizes = 4 + (shares / shares.sum() * (len(labels) - 4 * num_clients)).astype(int)
    rows = generator.permutation(len(labels))[: sizes.sum()]
    return np.split(rows, sizes.cumsum())[:-1]
