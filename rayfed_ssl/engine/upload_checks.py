"""What a client may send: an upload that would spoil the round is refused where it was made."""

import math
from typing import Any

import torch

from rayfed_ssl.trees import leaves


def check_upload(upload: Any, download: Any) -> None:
    """Raise ValueError for an upload with numbers that are not finite, or weights that do not fit those received."""
    for name, value in vars(upload).items():
        for path, leaf in leaves(value):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and not _finite(leaf):
                raise ValueError(
                    f"its upload holds numbers that are not finite, in {name}{path}: lower the learning rate"
                )
        received = getattr(download, name, None)
        if isinstance(value, dict) and isinstance(received, dict):
            for key in value:
                if key in received and _shape(value[key]) != _shape(received[key]):
                    raise ValueError(
                        f"its upload does not fit the model: {name}/{key} has shape {_shape(value[key])}, got "
                        f"{_shape(received[key])} from the server"
                    )


def _finite(values: torch.Tensor) -> bool:
    # A sum is finite in almost every case, and costs a third of looking at each number.
    return math.isfinite(values.sum().item()) or bool(values.isfinite().all())


def _shape(value: Any) -> list[int] | None:
    return list(value.shape) if isinstance(value, torch.Tensor) else None
