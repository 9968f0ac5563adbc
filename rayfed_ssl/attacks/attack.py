"""The protocol of an attack: what the server has of a client's step, and what an attack may ask and answer.

An attack is honest but curious: it reads what the method sends anyway and changes nothing. What it knows besides, it
declares. `run` gets the truth to measure the answer against, and an attack must not look at it for its answer.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.method import Client, Method, Task, Weights, sent_fields
from rayfed_ssl.models import Model
from rayfed_ssl.randomness.seeds import generator

Knowledge: TypeAlias = Literal[
    "auxiliary pictures", "objective", "views", "hyperparameters", "the client's random draws"
]
"""Side knowledge of an attack."""


@dataclass(frozen=True)
class Seen:
    """What the server has of one client's step, and pictures of its own.

    Attributes:
        client: Whose upload it is.
        round: From 1.
        method: The method, which is public.
        task: Models, objective, views and local training, which are public.
        download: What the client received.
        upload: What it sent.
        public: The public samples of the run, or None.
        auxiliary: Pictures like those of the clients, of which no client has any; with labels.
        seed: Fixes the attack's own draws.
        client_seed: Fixes what the client drew; a server has it not, so it is for attacks that declare to know it.
        first: Gives what the client received in round 1, which nobody had trained; the server has it.
        delta: Of the run's claim of epsilon.
        memory: What attacks on other clients of the round have computed in this process, by a digest of all it follows from.
    """

    client: int
    round: int
    method: Method
    task: Task
    download: Any
    upload: Any
    public: Shard | None
    auxiliary: Shard
    seed: int
    client_seed: int
    first: Callable[[], Any]
    delta: float
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        """The client's encoder."""
        return self.task.architecture(self.client)

    def generator(self, draw: int = 0) -> torch.Generator:
        """Make a generator; each number is another one."""
        return generator(self.seed + draw)

    @cached_property
    def received(self) -> Weights:
        """The weights that the client received; empty where there are none."""
        return weights_in(self.download)

    @cached_property
    def sent(self) -> Weights:
        """The weights that the client sent; empty where there are none."""
        return weights_in(self.upload)

    def simulate(self, data: Shard, draw: int) -> Any:
        """Compute what a client with these samples would send after the same download, with other random draws."""
        labels = data.labels if self.task.objective.needs_labels else None
        shard = dataclasses.replace(data, labels=labels)
        draws = self.generator(2 * draw + 1), self.generator(2 * draw + 2)
        client = Client(self.client, self.round, shard, self.public, self.task, *draws)
        return self.method.update_client(self.download, self.method.init_client(client), client)[0]


@dataclass(frozen=True)
class Truth:
    """What an audit knows and an attack does not.

    Attributes:
        members: Samples that the client trained on, with labels.
        others: Samples of the same shard that it did not train on.
        canaries: Samples of which a fair coin decided.
        trained: Whether each of the canaries was trained on.
        shares: Shares of the K classes among the client's samples, [K]; NaN where none has a label.
    """

    members: Shard
    others: Shard
    canaries: Shard
    trained: Tensor
    shares: Tensor


@dataclass(frozen=True)
class Finding:
    """A number that an attack reached, with its 95 % interval where it has one, over so many targets."""

    metric: str
    value: float
    low: float | None = None
    high: float | None = None
    targets: int = 1


@dataclass(frozen=True)
class Pictures:
    """Originals beside reconstructions, uint8 [M, C, H, W] each, for the report."""

    originals: Tensor
    reconstructions: Tensor


class Attack(ABC):
    """An attack: its settings as fields of a frozen dataclass, its answer a pure function of what was seen.

    Class attributes:
        knows: Its side knowledge.
        needs: What of the truth its measure needs: "others", "canaries", "labels" or nothing.
    """

    knows: ClassVar[tuple[Knowledge, ...]] = ()
    needs: ClassVar[Literal["others", "canaries", "labels"] | None] = None

    @property
    def most(self) -> int | None:
        """Most samples of a client that it fits; None for any number."""
        return None

    @abstractmethod
    def target(self, seen: Seen) -> str:
        """Name the kind of content of the upload that is attacked.

        Raises:
            ValueError: The upload has nothing that this attack fits.
        """

    @abstractmethod
    def run(self, seen: Seen, truth: Truth) -> Iterator[Finding | Pictures]:
        """Attack, and measure the answer against the truth."""


def weights_in(message: Any) -> Weights:
    """Find the weights in a download or an upload; an empty dict where there are none."""
    return next((value for _, declared, value in sent_fields(message) if declared.kind == "weights"), {})


def uploaded_model(seen: Seen) -> Model:
    """Build the client's model from what it sent, over what it received.

    Raises:
        ValueError: It sent no weights of an encoder.
    """
    if not any(name.startswith("encoder.") for name in seen.sent):
        raise ValueError("the upload holds no weights of an encoder")
    return seen.task.model(seen.received | seen.sent, seen.architecture)


def received_model(seen: Seen) -> Model:
    """Build the model that the client received as it trains it, batch-norm on a batch's own statistics; without dropout."""
    model = seen.task.model(seen.received, seen.architecture).eval()
    for layer in model.modules():
        if isinstance(layer, _BatchNorm):
            layer.train()
    return model
