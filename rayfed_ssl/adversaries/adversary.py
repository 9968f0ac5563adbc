"""What a hostile client is: it sends something else than what it has computed, or computes it from something else.

Symbols: h honest uploads of the round, f hostile ones; mu and sigma mean and deviation (with h - 1) of the honest ones by
number. Weights are seen as differences from what the clients received, everything else as it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from rayfed_ssl.data.image_store import ImageSet
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import Weights
from rayfed_ssl.validation import Validated


@plain_dataclass(frozen=True)
class Numbers:
    """The same piece of the round's uploads, float64.

    Attributes:
        own: What this client has computed, [p].
        honest: What honest clients send, [h, p]; no rows where their uploads have another form.
    """

    own: Tensor
    honest: Tensor

    @property
    def mean(self) -> Tensor:
        """mu, [p]."""
        return self.honest.mean(dim=0)

    @property
    def deviation(self) -> Tensor:
        """sigma, [p]; 0 of a single upload."""
        return self.honest.std(dim=0) if len(self.honest) > 1 else torch.zeros_like(self.own)


@plain_dataclass(frozen=True, eq=False)
class Insider:
    """What a hostile client knows beside its pictures.

    Attributes:
        place: Its place among the hostile clients, from 0.
        targets: Positions in its shard of the pictures of the target class, int64 [t].
        reference: A picture of the target class that all hostile clients share, uint8 [C, H, W]; None where no class is.
        seed: Of its draws, the same in all rounds.
    """

    place: int
    targets: Tensor
    reference: Tensor | None
    seed: int


@dataclass(frozen=True, kw_only=True)
class Adversary(Validated):
    """Hostile clients."""

    clients: PositiveInt | tuple[NonNegativeInt, ...] = 1
    """Ids of hostile clients, or how many, which the seed then draws."""
    from_round: PositiveInt = 1
    """The first round in which they attack; after the last one they are as honest as others."""

    def check(self, task: Task, train: ImageSet) -> None:
        """Raise ValueError, before a run begins, for a task or samples that cannot be attacked so."""


@dataclass(frozen=True, kw_only=True)
class TrainingAdversary(Adversary):
    """Hostile clients that train on something else, or towards it, and send what comes out.

    Class attributes:
        tunes: Whether it moves the weights that clients send.
    """

    tunes: ClassVar[bool] = False

    def poison(self, data: Shard, insider: Insider) -> Shard:
        """Give what the client trains on in the place of its samples; by default the same."""
        return data

    def settings(self, task: Task) -> Task:
        """Give how it trains; by default as all do."""
        return task

    def tune(self, weights: Weights, architecture: str, data: Shard, task: Task, insider: Insider) -> Weights:
        """Give what is sent in the place of trained weights, where it `tunes`."""
        return weights


@dataclass(frozen=True, kw_only=True)
class UploadAdversary(Adversary, ABC):
    """Hostile clients that train as others do, and what they send.

    Class attributes:
        sees_honest: Whether it needs the honest uploads of the round; where there are none it sends its own.
    """

    sees_honest: ClassVar[bool] = False

    @property
    def searches(self) -> bool:
        """Whether it tries the server's step for the strength that brings the result farthest from the honest mean."""
        return False

    def strength(self, pieces: Callable[[], Iterator[Numbers]], number: int, hostile: int) -> float:
        """Choose one number for the round from all pieces; `number` uploads arrived, `hostile` of them hostile ones."""
        return 1.0

    @abstractmethod
    def forge(self, numbers: Numbers, strength: float, draws: torch.Generator) -> Tensor:
        """Give what is sent in the place of `own`, [p]."""

    def rearrange(self, rows: Tensor, draws: torch.Generator) -> Tensor:
        """Give what is sent in the place of rows [N, ...] that are no weights, before `forge`; by default the same."""
        return rows


Scale = Annotated[float, Field(gt=0, allow_inf_nan=False)]
