"""What a client may send: an upload that would spoil a round is refused in the step that makes it."""

from typing import Any

import torch

from rayfed_ssl.trees import leaves


def check_upload(upload: Any, download: Any) -> None:
    """Raise ValueError for an upload with numbers that are not finite, or weights that do not fit those received."""
    for name, value in vars(upload).items():
        for path, leaf in leaves(value):
            is_float = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
            # A sum is finite in almost every case, and costs a third of looking at each number.
            if is_float and not (leaf.sum().isfinite() or leaf.isfinite().all()):
                raise ValueError(
                    f"its upload holds numbers that are not finite, in {name}{path}: lower the learning rate"
                )
        received = getattr(download, name, None)
        if isinstance(value, dict) and isinstance(received, dict):
            for key in value:
                shapes = [list(getattr(tensor, "shape", ())) for tensor in (value[key], received.get(key, value[key]))]
                if shapes[0] != shapes[1]:
                    raise ValueError(
                        f"its upload does not fit the model: {name}/{key} has shape {shapes[0]}, got {shapes[1]} from the "
                        "server"
                    )
