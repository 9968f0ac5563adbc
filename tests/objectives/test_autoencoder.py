"""The autoencoder in local training, and its decoder for all sizes."""

import pytest
import torch

from rayfed_ssl.models.decoder import Decoder
from tests.objectives.local_rounds import Open, digits, train


@pytest.mark.slow
def test_the_loss_falls_below_that_of_the_mean_image(open_objective: Open):
    federation = open_objective("autoencoder", "training.epochs=12")
    data = digits(federation, 150)
    _, metrics = train(federation.task, data)
    mean, std = federation.task.views.first.mean[0], federation.task.views.first.std[0]
    pixels = (data.batch(torch.arange(len(data))).double() / 255 - mean) / std
    assert metrics["loss"] < float((pixels - pixels.mean(0)).square().mean()) < metrics["loss_first"]


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize(("size", "first"), [(8, 4), (9, 5), (14, 7), (15, 4), (28, 7), (32, 4), (33, 5), (84, 6)])
def test_the_decoder_draws_images_of_any_size(size: int, first: int, channels: int):
    decoder = Decoder(10, channels=channels, size=size, width=16)
    assert decoder.side == first
    assert decoder(torch.randn(2, 10)).shape == (2, channels, size, size)
