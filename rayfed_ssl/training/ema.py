"""Slow copies of a model: the momentum encoders of MoCo, BYOL and FLESD."""

import torch
from torch import Tensor

from rayfed_ssl.models import Model


@torch.no_grad()
def update_momentum(slow: Model, fast: Model, zeta: float) -> None:
    """Move a slow copy's encoder and projector towards a model's, in place: mu <- zeta mu + (1 - zeta) theta."""
    ours, theirs = _parameters(slow), _parameters(fast)
    torch._foreach_lerp_(ours, theirs, 1 - zeta)


def _parameters(model: Model) -> list[Tensor]:
    return [*model.encoder.parameters(), *model.projector.parameters()]
