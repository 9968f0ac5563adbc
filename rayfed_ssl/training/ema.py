"""Slow copies of a model: the momentum encoders of MoCo, BYOL and FLESD."""

import torch
from torch import Tensor

from rayfed_ssl.models import Model


@torch.no_grad()
def update_momentum(slow: Model, fast: Model, zeta: float) -> None:
    """Move a slow copy towards a model: mu <- zeta mu + (1 - zeta) theta, in place.

    Args:
        slow: Its encoder and projector change; its batch-norm statistics are its own.
        fast: The model in training; heads beyond the projector are not looked at.
        zeta: Momentum in [0, 1].
    """
    ours, theirs = _parameters(slow), _parameters(fast)
    torch._foreach_lerp_(ours, theirs, 1 - zeta)


def _parameters(model: Model) -> list[Tensor]:
    return [*model.encoder.parameters(), *model.projector.parameters()]
