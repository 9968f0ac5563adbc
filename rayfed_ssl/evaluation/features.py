"""Features of a frozen encoder, and the checks that every evaluation on them makes.

Symbols: N samples, C channels, H x W pixels, d feature width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from rayfed_ssl.models.precision import Precision, autocast
from rayfed_ssl.trees import to_torch


def extract_features(
    encoder: nn.Module,
    images: np.ndarray | Tensor,
    transform: Callable[[Tensor], Tensor],
    *,
    batch: int = 512,
    device: torch.device | str,
    precision: Precision,
) -> Tensor:
    """Compute float32 features [N, d] on the CPU, in evaluation mode; the encoder's modes and buffers are left as they were.

    Args:
        encoder: Images to features [B, d], on the device.
        images: uint8 [N, C, H, W], N at least 1.
        transform: One uint8 batch on the device to what the encoder takes.
        batch: Images at a time; another one may change the last bits.
        device: Where the encoder is.
        precision: Number format of the encoder.
    """
    if not len(images):
        raise ValueError("there are no images to compute features of: check the split and its limits")
    rows = []
    with evaluating(encoder), torch.inference_mode(), autocast(precision, device):
        for start in range(0, len(images), batch):
            part = images[start : start + batch]
            part = part if isinstance(part, Tensor) else to_torch(np.ascontiguousarray(part))
            rows.append(encoder(transform(part.to(device))).float().cpu())
    return torch.cat(rows)  # outside inference_mode, so that autograd can use it


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Switch a module to evaluation mode and each of its parts back to its own mode afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def check_labeled(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, *, num_classes: int) -> None:
    """Raise ValueError for features [N, d] that are not finite and int labels [N] that are no classes."""
    for split, features, labels in (("train", train, train_labels), ("test", test, test_labels)):
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= num_classes:
            raise ValueError(
                f"{split} labels must lie in 0..{num_classes - 1}, got {low}..{high}: drop unlabeled samples"
            )
        if not features.isfinite().all():
            raise ValueError(f"{split} features are not finite: the encoder diverged, lower its learning rate")
