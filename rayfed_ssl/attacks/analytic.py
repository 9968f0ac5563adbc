"""Analytic: the input of a linear layer, read off the changes of its weight and its bias.

Geiping, Bauermeister, Droege, Moeller: Inverting Gradients - How easy is it to break privacy in federated learning?,
NeurIPS 2020 (arXiv 2003.14053), section 4 and Proposition 3.1. Symbols: h features of a picture, the projector's input;
W [p, d] and b [p] of its first layer, y = W h + b; i its rows.

dL/dW_i = dL/dy_i h and dL/db_i = dL/dy_i, so their quotient is h. Over a batch it is a mean of the h of its views, weighted
by dL/dy_i of either sign: exact after one plain step of SGD in rows that a single view activates.

Deviations:
- Changes of the whole local training stand for gradients: after several steps, or after Adam's, rows are blurred further.
- Rows are compared with features of plain pictures under the received model, where the client had those of random views.
  Batch-norm takes the statistics of batches of the task's size, as in training; the client's own are not known.
- Features after a ReLU all point one way, so the mean feature of auxiliary pictures is subtracted from rows and features.
- From features on to pictures is another attack's part (`decoder`).
"""

from collections.abc import Iterator
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from rayfed_ssl.attacks.attack import Finding, Seen, Truth, received_model, uploaded_model
from rayfed_ssl.attacks.measures import mean_with_interval
from rayfed_ssl.attacks.membership import Membership
from rayfed_ssl.attacks.reconstruction import split_auxiliary
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.models import Model

SMALLEST = 1e-3
"""Change of a row's bias, over that of the largest, below which rounding is what is divided."""


def first_layer(seen: Seen) -> str:
    """Name the projector's first layer; raises ValueError where it is no linear one whose bias tells something."""
    projector = seen.task.blank(seen.architecture).projector
    layers: list[tuple[str, nn.Module]] = [
        (name, layer) for name, layer in projector.named_modules(prefix="projector") if not [*layer.children()]
    ]
    (name, first), *others = layers
    if not isinstance(first, nn.Linear) or first.bias is None:
        raise ValueError("the projector does not begin with a linear layer that has a bias")
    if others and isinstance(others[0][1], _BatchNorm):
        raise ValueError("batch-norm after the projector's first layer keeps its bias from changing")
    if f"{name}.bias" not in seen.received.keys() & seen.sent.keys():
        raise ValueError("the upload holds no weights of the projector, or the client received none")
    return name


def inputs(seen: Seen) -> Tensor:
    """Divide the change of each W_i by that of b_i, [R, d], where b_i changed."""
    name = first_layer(seen)
    weight, bias = (seen.received[f"{name}.{part}"] - seen.sent[f"{name}.{part}"] for part in ("weight", "bias"))
    changed = bias.abs() >= SMALLEST * bias.abs().max()
    return (weight[changed] / bias[changed].unsqueeze(1)).nan_to_num(0, 0, 0).to(seen.task.device)


@torch.no_grad()
def features(seen: Seen, samples: Shard) -> Tensor:
    """Compute h of plain samples under the received model, [N, d]."""
    model, images = received_model(seen), seen.task.plain(samples.batch(torch.arange(len(samples))))
    parts = images.tensor_split(max(1, len(images) // seen.task.batch))
    return torch.cat([model.encoder(part).float() for part in parts])


def cosines(seen: Seen, samples: Shard) -> Tensor:
    """Compare each row with the features of each of N samples, [R, N]."""
    center = features(seen, split_auxiliary(seen)[0]).mean(0)
    rows, others = (F.normalize(values - center, dim=1) for values in (inputs(seen), features(seen, samples)))
    return rows @ others.T


@dataclass(frozen=True, kw_only=True)
class Analytic(Membership):
    """Features that the projector's first layer gives away."""

    knows: ClassVar = ("auxiliary pictures",)

    def target(self, seen: Seen) -> str:
        """Weights of the projector."""
        uploaded_model(seen)
        first_layer(seen)
        return "weights"

    def scores(self, seen: Seen, model: Model, samples: Shard) -> Tensor:
        """Largest cosine with a row."""
        return cosines(seen, samples).amax(0)

    def run(self, seen: Seen, truth: Truth) -> Iterator[Finding]:
        """Tell members from others by their nearest row; `cosine` is that of each row with its nearest member."""
        yield from super().run(seen, truth)
        yield mean_with_interval("cosine", cosines(seen, truth.members).amax(1))
