"""AutoEncoder: rebuild an image from its features.

Hinton, Salakhutdinov: Reducing the Dimensionality of Data with Neural Networks, Science 2006. FedCA's FedAE is FedAvg with
this objective; the paper describes neither decoder nor loss.

Symbols: x normalized images [B, C, S, S]; h features [B, d]; x^ reconstructions.

Deviations:
- Squared error per pixel of plain, normalized images; no noise and no augmentation, which an autoencoder as cited has not.
- The decoder is ours (`rayfed_ssl/models/decoder.py`). It is averaged like the encoder.
- d is the encoder's: a bottleneck only where d is below C S S (cnn on CIFAR: 256 of 3072, on 8x8 digits 256 of 64).
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from rayfed_ssl.models import Model
from rayfed_ssl.models.decoder import Decoder, reconstruction_error
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import Batch, Head, PerSample, StepOutput
from rayfed_ssl.training.state_parts import Rule


@dataclass(frozen=True, kw_only=True)
class AutoEncoder(PerSample):
    """Reconstruction of images from features."""

    parts: ClassVar[Mapping[str, Rule]] = {"decoder": "averaged"}
    fixed_head: ClassVar[bool] = True
    compares_views: ClassVar[bool] = False
    head: ClassVar = Head("none")
    """None: projections are the features."""
    num_views: ClassVar = 1
    width: PositiveInt = 128
    """Channels of the decoder's first map; every doubling halves them, down to 16."""

    def heads(self, context: Context, feature_dim: int, projection_dim: int) -> dict[str, nn.Module]:
        """The decoder."""
        return {"decoder": Decoder(feature_dim, channels=context.channels, size=context.size, width=self.width)}

    def inputs(self, context: Context, batch: Batch, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Take plain images; draws nothing."""
        return (context.plain(batch.images),)

    def loss_of(self, context: Context, model: Model, *inputs: Tensor) -> StepOutput:
        """Rebuild images."""
        (images,) = inputs
        with context.autocast():
            features, projections = model(images)
            rebuilt = model.part("decoder")(features)
        return StepOutput(reconstruction_error(rebuilt, images), projections)
