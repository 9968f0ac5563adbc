"""What a client may send: an upload that would spoil a round is refused in the step that makes it."""

from typing import Any

import torch
from torch import Tensor

from rayfed_ssl.trees import groups, join, leaves


def check_upload(upload: Any, download: Any) -> None:
    """Raise ValueError for an upload with numbers that are not finite, or weights that do not fit those received."""
    _check_finite({f"{name}{path}": leaf for name, value in vars(upload).items() for path, leaf in leaves(value)})
    for name, value in vars(upload).items():
        received = getattr(download, name, None)
        if isinstance(value, dict) and isinstance(received, dict):
            for key, sent in value.items():
                shape, expected = getattr(sent, "shape", ()), getattr(received.get(key, sent), "shape", ())
                if shape != expected:
                    raise ValueError(
                        f"its upload does not fit the model: {name}/{key} has shape {list(shape)}, got "
                        f"{list(expected)} from the server"
                    )


def _check_finite(upload: dict[str, Any]) -> None:
    tensors = {name: leaf for name, leaf in upload.items() if isinstance(leaf, Tensor) and leaf.is_floating_point()}
    # Sums are finite in almost every case. All are looked at together: one by one takes three times as long.
    listed = list(tensors.values())
    sums = [join([listed[index] for index in group]).sum() for group in groups(listed)]
    if not sums or torch.stack([total.to(sums[0].device) for total in sums]).isfinite().all():
        return
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise ValueError(f"its upload holds numbers that are not finite, in {name}: lower the learning rate")
