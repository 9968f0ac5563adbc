"""Decoder: the pictures that representations in an upload come from, drawn by a network.

He, Zhang, Lee: Model Inversion Attacks Against Collaborative Inference, ACSAC 2019, the inverse network of its
black-box setting. Symbols: f the client's model, x auxiliary pictures, z = f(x) their projections; g the inverse network,
which minimizes ||g(f(x)) - x||^2; q rows of private samples in the upload.

Deviations:
- z and q are of unit length, as q is sent. Where q has another width than z, features or pixels take the place of z.
- g is this project's decoder (`rayfed_ssl/models/decoder.py`), and it learns for a number of steps, not of epochs.
- No upload says which row is whose. The true picture of a row is the member with the highest cosine to it under f, each
  member of one row at most and all cosines together at their largest. So rows of pictures that the client never had get
  originals too, which look like them: what chance gives stands beside (`psnr-chance`, `rank-chance`).
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from rayfed_ssl.attacks.attack import Attack, Finding, Pictures, Seen, Truth
from rayfed_ssl.attacks.matched_representation import private_rows, rows_like
from rayfed_ssl.attacks.model_theft import attacked, target_kind
from rayfed_ssl.attacks.reconstruction import assign, compare, pixels, split_auxiliary
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.models.decoder import Decoder, reconstruction_error
from rayfed_ssl.randomness.draws import draw
from rayfed_ssl.randomness.seeds import seeded_globally
from rayfed_ssl.training.objective import Batch, StepOutput
from rayfed_ssl.training.optimizers import Adam
from rayfed_ssl.training.step import Training
from rayfed_ssl.validation import Validated


@dataclass(frozen=True, kw_only=True)
class InverseNetwork(Attack, Validated):
    """A decoder of auxiliary pictures, shown the rows of the upload."""

    knows: ClassVar = ("auxiliary pictures",)
    steps: PositiveInt = 500
    """Of the decoder's training."""
    batch: Annotated[int, Field(ge=2)] = 64
    """Pictures a step."""
    lr: PositiveFloat = 1e-3
    """Of Adam (the paper's)."""
    width: PositiveInt = 64
    """Channels of the decoder's first map."""

    def target(self, seen: Seen) -> str:
        """Representations of private samples."""
        private_rows(seen)
        target_kind(seen)
        return "representations"

    def run(self, seen: Seen, truth: Truth) -> Iterator[Finding | Pictures]:
        """Train g and draw g(q)."""
        model, rows = attacked(seen), private_rows(seen).to(seen.task.device)
        _, auxiliary = split_auxiliary(seen)
        kinds = rows_like(seen, model, auxiliary, rows.shape[1])
        alike = max(range(len(kinds)), key=lambda kind: (kinds[kind] @ rows.T).amax(0).mean().item())
        inverse = self.train(seen, kinds[alike], pixels(seen, auxiliary))
        with torch.no_grad():
            drawn = torch.cat([inverse(part) for part in rows.split(256)])

        def choose(samples: Shard) -> tuple[Tensor, Tensor]:
            return assign(-rows @ rows_like(seen, model, samples, rows.shape[1])[alike].T)

        yield from compare(seen, drawn, choose, truth)

    def train(self, seen: Seen, projections: Tensor, pictures: Tensor) -> Decoder:
        """Train g on projections [N, p] of pictures [N, C, S, S]."""
        with seeded_globally(seen.seed, seen.task.device):
            inverse = Decoder(projections.shape[1], channels=pictures.shape[1], size=seen.task.size, width=self.width)
        inverse = inverse.to(seen.task.device)
        training = Training(
            loss=partial(_inversion_loss, seen.generator(5), projections, pictures),
            model=inverse,
            state=nn.Module(),
            generators=(),
            optimizers={"": Adam(lr=1.0, weight_decay=0)},
        )
        index = torch.empty(self.batch, dtype=torch.int64, device=seen.task.device)
        with seen.task.running(training, [(self.lr, None)], self.steps) as run:
            for _ in range(self.steps):
                run.take(Batch(index, index, None, 0))
        return inverse.eval()


def _inversion_loss(
    random: torch.Generator, projections: Tensor, pictures: Tensor, inverse: Decoder, state: nn.Module, batch: Batch
) -> StepOutput:
    """Decode random projections, as many as a batch's index has."""
    index = draw(torch.randint, len(pictures), (len(batch.index),), generator=random, device=pictures.device)
    drawn = inverse(projections[index])
    return StepOutput(reconstruction_error(drawn, pictures[index]), drawn)
