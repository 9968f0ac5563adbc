"""Membership: was this picture among those that the client trained on?

Attacks of this kind give each picture a score, and members should have higher ones. An audit compares pictures of the same
shard, of which coins decided whether they were trained on: pictures of other clients would be told apart by their classes.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from rayfed_ssl.attacks.attack import Attack, Finding, Seen, Truth
from rayfed_ssl.attacks.measures import guess_coins, separation
from rayfed_ssl.attacks.model_theft import attacked, target_kind
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.models import Model
from rayfed_ssl.validation import Validated


@dataclass(frozen=True, kw_only=True)
class Membership(Attack, Validated):
    """Scores, compared between members and others, and guesses of coins from them."""

    needs: ClassVar = "others"
    guessed: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Part of the canaries of which coins are guessed, for the bound of epsilon."""
    delta: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Of the claim that the bound is compared with; None takes the run's `privacy.delta`."""

    def target(self, seen: Seen) -> str:
        """The content that the client's model, or a copy of it, comes from."""
        return target_kind(seen)

    @abstractmethod
    def scores(self, seen: Seen, model: Model, samples: Shard) -> Tensor:
        """Score samples, [N]: the higher, the more likely the client trained on it."""

    def run(self, seen: Seen, truth: Truth) -> Iterator[Finding]:
        """Score all pictures in the same way and compare."""
        model = attacked(seen)
        groups = (truth.members, truth.others, truth.canaries)
        rows = torch.cat([group.rows for group in groups])
        order = torch.randperm(len(rows), generator=seen.generator(10)).to(rows.device)  # batches mix all groups
        mixed = self.scores(seen, model, replace(truth.members, rows=rows[order], labels=None)).double().cpu()
        if len(mixed) != len(rows):
            raise ValueError(f"scores must be one for each of {len(rows)} samples, got {len(mixed)}")
        scores = torch.empty_like(mixed).index_copy_(0, order.cpu(), mixed)
        members, others, canaries = scores.split([len(group) for group in groups])
        yield from separation(members.numpy(), others.numpy(), seen.seed)
        if len(canaries):
            yield from guess_coins(
                canaries, truth.trained, self.guessed, seen.delta if self.delta is None else self.delta
            )
