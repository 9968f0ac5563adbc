"""What a hostile client is: it sends something else than what it has computed.

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


@dataclass(frozen=True, kw_only=True)
class Adversary(Validated, ABC):
    """Hostile clients and what they send.

    Class attributes:
        sees_honest: Whether it needs the honest uploads of the round; where there are none it sends its own.
    """

    sees_honest: ClassVar[bool] = False
    clients: PositiveInt | tuple[NonNegativeInt, ...] = 1
    """Ids of hostile clients, or how many, which the seed then draws."""
    from_round: PositiveInt = 1
    """The first round in which they attack."""

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
