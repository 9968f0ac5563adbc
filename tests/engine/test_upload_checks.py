"""Uploads that would spoil a round."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from rayfed_ssl.engine.upload_checks import check_upload


@dataclass(frozen=True)
class Weights:
    weights: dict[str, Tensor]


def test_the_first_tensor_that_does_not_fit_is_named_in_every_process():
    names = [f"layer{i}.weight" for i in range(50)]
    received = Weights({name: torch.zeros(2, 3) for name in reversed(names)})
    upload = Weights({name: torch.zeros(7) for name in names})
    # A set's order depends on the process's hash seed: of 50 names it begins with the first in one process of 50.
    with pytest.raises(ValueError, match=r"weights/layer0\.weight has shape \[7\], got \[2, 3\]"):
        check_upload(upload, received)
