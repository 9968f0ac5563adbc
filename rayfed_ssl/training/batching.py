"""Around a training step: which samples it takes, and whether its numbers are still sound."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.training.optimizers import Descent


def batches(
    num_samples: int, wanted: int, generator: torch.Generator, *, drop_last: bool
) -> Callable[[], list[Tensor]]:
    """Shuffle samples anew for each epoch.

    Args:
        num_samples: Samples of the client.
        wanted: Samples a step.
        generator: Orders them.
        drop_last: Whether a last batch that is smaller is left out.

    Returns:
        Gives an epoch's batches, each as int64 positions [B] on the CPU.

    Raises:
        ValueError: There are too few samples.
    """
    batch, num = min(wanted, num_samples), num_batches(num_samples, wanted, drop_last=drop_last)
    return lambda: list(torch.randperm(num_samples, generator=generator).split(batch)[:num])


def num_batches(num_samples: int, wanted: int, *, drop_last: bool) -> int:
    """Count the batches of an epoch as `batches` makes them.

    One sample has no negatives and no batch statistics, so a last batch of one is left out.

    Raises:
        ValueError: There are too few samples.
    """
    if num_samples < 2:
        raise ValueError(
            f"a client needs at least 2 samples to train, got {num_samples}: lower clients.number, raise "
            "partition.alpha, take another partition or another seed"
        )
    full, rest = divmod(num_samples, min(wanted, num_samples))
    return full + (rest > 1 and not drop_last)


def finite(loss: float, where: str, descent: Descent, what: str = "the loss") -> float:
    """Pass a finite loss through.

    Raises:
        ValueError: The loss is NaN or infinite.
    """
    if not math.isfinite(loss):
        also = "" if what == "the loss" else " or its strength"
        raise ValueError(f"{what} is {loss} in {where} at learning rate {descent.lr}: lower the learning rate{also}")
    return loss


@torch.no_grad()
def norm(parameters: Iterable[Tensor]) -> Tensor:
    """Compute the Euclidean norm of all values together, a scalar on their device."""
    total: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(values) for values in parameters]))
    return total


def spread(features: Tensor) -> Tensor:
    """Mean standard deviation of unit-length features [N, d] over 1 / sqrt(d), on their device (Chen & He 2021, 4.1).

    In [0, 1]: 0 if all point in one direction. It is `evaluation.representation_metrics.feature_std` without a wait.
    """
    units = F.normalize(features, dim=1)
    return units.std(dim=0, correction=0).mean() * math.sqrt(units.shape[1])
