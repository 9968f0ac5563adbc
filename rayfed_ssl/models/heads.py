"""Heads: what stands between an encoder's features and a loss, and the model that joins the two.

Sources: FLESD's code; SimCLR (Chen et al. 2020); EasyFL's code for BYOL, FedU and FedEMA; FCL's text, which names no
hidden width: d as in MoCo v2; FedFoA's calibration layer; Orchestra's code; SimSiam as in lightly and solo-learn for CIFAR;
DINO's code; Barlow Twins and VICReg as in their codes, at solo-learn's width for CIFAR.

Symbols: N samples, d the encoder's feature width, p the width of the projections.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.models.batch_norm import BatchNorm1d
from rayfed_ssl.models.precision import Precision, autocast
from rayfed_ssl.models.vit import draw_linear


@dataclass(frozen=True, kw_only=True)
class HeadSpec:
    """A multi-layer perceptron on features.

    Attributes:
        num_layers: Linear layers; 0 is the identity.
        hidden: Width of the hidden layers; None is the input's.
        out: Default width of the output; None is the input's.
        batch_norm: Whether batch-norm stands between a hidden layer and its ReLU.
        hidden_bias: Whether hidden layers have a bias; batch-norm makes it redundant.
        out_norm: Whether batch-norm without scale and shift follows the last layer.
        bottleneck: Width that is brought to unit length before `Prototypes`: DINO's head, with GELU.
        base: The head whose output the only layer sees, or None for the features.
        unit: Whether that output is brought to unit length.
    """

    num_layers: int = 2
    hidden: int | None = None
    out: int | None = 128
    batch_norm: bool = False
    hidden_bias: bool = True
    out_norm: bool = False
    bottleneck: int | None = None
    base: str | None = None
    unit: bool = False


HEADS: Mapping[str, HeadSpec] = {
    "flesd": HeadSpec(),
    "simclr-bn": HeadSpec(batch_norm=True, hidden_bias=False),
    "byol": HeadSpec(hidden=4096, out=2048, batch_norm=True),
    "byol-predictor": HeadSpec(hidden=4096, out=2048, batch_norm=True),
    "fcl": HeadSpec(),
    "linear": HeadSpec(num_layers=1, out=256),
    "orchestra": HeadSpec(hidden=512, out=512, batch_norm=True, out_norm=True),
    "orchestra-rotation": HeadSpec(num_layers=1, out=4, base="orchestra"),
    "orchestra-spectral": HeadSpec(num_layers=1, out=128, base="orchestra", unit=True),
    "simsiam": HeadSpec(hidden=2048, out=2048, batch_norm=True, out_norm=True),
    "dino": HeadSpec(num_layers=3, hidden=2048, out=65536, bottleneck=256),
    "expander": HeadSpec(num_layers=3, hidden=2048, out=2048, batch_norm=True, hidden_bias=False),
    "none": HeadSpec(num_layers=0, out=None),
}


SHORTEST = 1e-12
"""Length below which a vector is not scaled up to 1, as torch's `normalize` has it."""


class UnitLength(nn.Module):
    """Bring rows [N, p] to length 1, in float32."""

    def forward(self, rows: Tensor) -> Tensor:
        """Normalize rows."""
        return F.normalize(rows.float(), dim=1)


class Prototypes(nn.Linear):
    """Cosines of rows [N, p] with K directions, [N, K]; in float32, as softmaxes at a low temperature want them.

    Products are divided by the directions' lengths, which takes fewer passes over memory than directions of length 1.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Compare directions."""
        with autocast(Precision("fp32"), rows.device):
            lengths: Tensor = self.weight.norm(dim=1)
            return F.linear(F.normalize(rows.float(), dim=1), self.weight) * lengths.clamp_min(SHORTEST).reciprocal()


def head_width(spec: HeadSpec, in_features: int, out: int | None = None) -> int:
    """Compute the width of a head's output; without `out` it is the head's default."""
    if spec.num_layers == 0 and out not in (None, in_features):
        raise ValueError(
            f"head none passes {in_features} features through, got projection_dim={out}: leave it out or take head linear"
        )
    return out or spec.out or in_features


def build_head(name: str, in_features: int, *, out: int | None = None, hidden: int | None = None) -> nn.Module:
    """Build a head, initialized by torch's global generator; widths that are None are the head's defaults."""
    spec = HEADS[name]
    width = head_width(spec, in_features, out)
    if spec.num_layers == 0:
        return nn.Identity()
    if spec.base is not None:
        layers = [build_head(spec.base, in_features), UnitLength() if spec.unit else nn.Identity()]
        return nn.Sequential(*layers, nn.Linear(head_width(HEADS[spec.base], in_features), width))
    if spec.num_layers == 1:
        return nn.Linear(in_features, width)
    inner = hidden or spec.hidden or in_features
    if spec.bottleneck is not None:
        layers = [nn.Linear(in_features, inner), nn.GELU(), nn.Linear(inner, inner), nn.GELU()]
        return nn.Sequential(*layers, nn.Linear(inner, spec.bottleneck), Prototypes(spec.bottleneck, width)).apply(
            draw_linear
        )
    layers = []
    for before in (in_features, *[inner] * (spec.num_layers - 2)):
        norm = [BatchNorm1d(inner)] if spec.batch_norm else []
        layers += [nn.Linear(before, inner, bias=spec.hidden_bias), *norm, nn.ReLU(inplace=True)]
    last = [BatchNorm1d(width, affine=False)] if spec.out_norm else []
    return nn.Sequential(*layers, nn.Linear(inner, width), *last)


class Model(nn.Module):
    """An encoder, its projector and an objective's other heads: what clients train.

    Attributes:
        encoder: Images [N, C, S, S] to features [N, d]. The part that evaluation sees.
        projector: Features to projections [N, p]; the identity for head "none".
        projection_dim: p.
        architecture: Name of the encoder.
    """

    def __init__(
        self,
        encoder: nn.Module,
        projector: nn.Module,
        projection_dim: int,
        heads: Mapping[str, nn.Module] | None = None,
        architecture: str = "",
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.projector = projector
        for name, head in (heads or {}).items():
            self.add_module(name, head)
        self.projection_dim = projection_dim
        self.architecture = architecture

    def part(self, name: str) -> nn.Module:
        """Find a head that the objective put here, such as the predictor."""
        return self.get_submodule(name)

    def forward(self, *images: Tensor) -> tuple[Tensor, Tensor]:
        """Compute features [N, d] and projections [N, p], not normalized, as float32 even under autocast.

        A softmax at a low temperature does not survive 8 bits of mantissa, so losses belong outside the autocast block.

        Args:
            images: Of one size each; batches of several sizes pass the encoder one by one and the projector together.
        """
        parts = [self.encoder(part) for part in images]
        features = parts[0] if len(parts) == 1 else torch.cat(parts)
        projections = self.projector(features)
        return features.float(), projections.float()
