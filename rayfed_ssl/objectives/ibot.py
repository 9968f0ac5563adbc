"""iBOT: DINO whose student, with patches hidden, also predicts what the teacher gives for each hidden patch.

Zhou, Wei, Wang, Shen, Xie, Yuille, Kong: iBOT: Image BERT Pre-Training with Online Tokenizer, ICLR 2022. "Code" below is
bytedance/ibot.

Symbols: those of DINO; P patches a view, H of them hidden; r share that is hidden; m mask token [d]; C' center of patches.

Deviations, beside DINO's:
- Patches are hidden one by one, the same number in each view; the code hides blocks of them, and offers this, too.
- Without small crops and with them r is the same; the code's recipes with small crops hide nothing in half of the views.
- Our vision transformers have no class token: the mean over patches stands for it, of the student over hidden ones, too.
- C' follows the teacher's outputs for hidden patches, as in DINOv2's code; iBOT's takes all patches of the same views.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field, NonNegativeFloat
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.models import Model
from rayfed_ssl.models.vit import num_patches
from rayfed_ssl.objectives.dino import DINO, Center, DINOState, teacher_distribution
from rayfed_ssl.objectives.mae import shuffled, transformer
from rayfed_ssl.randomness.draws import draw
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import Batch, Head, StepOutput, state_as
from rayfed_ssl.training.state_parts import Rule


class MaskToken(nn.Module):
    """m, in the place of a hidden patch before its position is added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(width))

    def forward(self, tokens: Tensor, positions: Tensor, hidden: Tensor) -> Tensor:
        """Replace tokens [N, P, d], positions added, where `hidden` [N, P] says so."""
        return torch.where(hidden.unsqueeze(2), (self.token + positions).to(tokens.dtype), tokens)


def predicted(students: Tensor, teachers: Tensor, temperature: float) -> Tensor:
    """L_MIM (Eq. 2): the mean cross entropy of a hidden patch's P_t [n, K] with the student's output for it, [n, K]."""
    return -(teachers * F.log_softmax(students / temperature, dim=1)).sum(1).mean()


def encoded(model: Model, tokens: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Encode tokens [N, P, d]: features [N, d], their outputs [N, K], and those of patches at `places` [N, H], [N H, K]."""
    encoder = transformer(model)
    last = encoder.pool.norm(encoder.blocks(tokens))
    features, chosen = last.mean(1), last.gather(1, places.unsqueeze(2).expand(-1, -1, last.shape[2]))
    outputs = model.projector(torch.cat([features, chosen.flatten(0, 1)]))
    return features, outputs[: len(features)], outputs[len(features) :]


@dataclass(frozen=True, kw_only=True)
class IBOT(DINO):
    """Self-distillation of views and of hidden patches."""

    needs_patches: ClassVar[bool] = True
    parts: ClassVar[Mapping[str, Rule]] = {**DINO.parts, "mask_token": "averaged"}
    mask_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """r (code)."""
    patch_weight: NonNegativeFloat = 1.0
    """Of the term of hidden patches (code)."""

    @property
    def head(self) -> Head:
        """DINO's head with 8,192 directions, for views and for patches (section 3.2)."""
        return Head("dino", 8192, self.hidden)

    def heads(self, context: Context, feature_dim: int, projection_dim: int) -> dict[str, nn.Module]:
        """The mask token, 0 at first (code)."""
        return {"mask_token": MaskToken(feature_dim)}

    def start(self, context: Context, model: Model, data: Shard, generator: torch.Generator) -> DINOState:
        """Start the teacher as the student, and both centers, of views and of patches, at 0."""
        center = Center(mean=torch.zeros(2, model.projection_dim, device=context.device))
        return DINOState(target=context.twin(model), center=center)

    def loss(
        self, context: Context, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator
    ) -> StepOutput:
        """The teacher sees both views whole; the student sees them with hidden patches, and small crops whole."""
        views, small = context.stacked_views(batch.images, generator), context.small_views(batch.images, generator)
        total = num_patches(context.size)
        order = shuffled(draw(torch.rand, len(views), total, generator=generator, device=views.device))
        places = order[:, : max(1, int(total * self.mask_ratio))]
        hidden = torch.zeros_like(order, dtype=torch.bool).scatter_(1, places, True)
        memory = state_as(DINOState, state)
        with context.autocast():
            embed = transformer(model).patches
            masked = model.part("mask_token")(embed(views), embed.positions, hidden)
            features, students, patches = encoded(model, masked, places)
            crops = model(*small)[1] if small else students[:0]
            with torch.no_grad():
                _, outputs, tokens = encoded(memory.target, transformer(memory.target).patches(views), places)
        loss = self.between_views(torch.cat([students, crops]), outputs, memory.center.mean[0], features)
        tokenized = teacher_distribution(tokens, memory.center.mean[1], self.teacher_temperature)
        loss = loss + self.patch_weight * predicted(patches, tokenized, self.student_temperature)
        updates = {"mean": torch.stack([outputs.mean(0), tokens.mean(0)])}
        return StepOutput(loss, students[: len(batch.images)], updates)
