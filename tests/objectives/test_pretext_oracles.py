"""Rotation prediction and the autoencoder against naive loops."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from rayfed_ssl.data.augmentation import rotate_quarter_turns
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.models import Model
from rayfed_ssl.models.decoder import reconstruction_error
from rayfed_ssl.objectives import AutoEncoder, Rotation
from rayfed_ssl.objectives.rotation import four_rotations, shifted_and_mirrored
from rayfed_ssl.training.objective import Batch
from tests import naive


def images(num: int = 5) -> Tensor:
    return torch.randint(0, 256, (num, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def turned(rows: list[list[float]]) -> list[list[float]]:
    """One quarter turn anticlockwise: the last column becomes the first row."""
    size = len(rows)
    return [[rows[i][size - 1 - j] for i in range(size)] for j in range(size)]


def test_every_image_appears_in_all_four_rotations():
    pictures = torch.arange(2 * 3 * 16).view(2, 3, 4, 4)
    rotated, turns = four_rotations(pictures)
    assert turns.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    for sample in range(2):
        for channel in range(3):
            expected = pictures[sample, channel].tolist()
            for quarter in range(4):
                assert rotated[2 * quarter + sample, channel].tolist() == expected
                expected = turned(expected)


def test_turns_are_those_of_the_views_module():
    rotated, turns = four_rotations(images())
    assert rotated.equal(rotate_quarter_turns(images().repeat(4, 1, 1, 1), turns))


@pytest.mark.parametrize("augmentation", ["rotnet", "views"])
def test_rotation_is_cross_entropy_over_four_copies_of_one_view(
    open_tiny: Callable[..., Federation], augmentation: str
):
    task = open_tiny("fedavg", "training.views=orchestra").task
    torch.manual_seed(3)
    model = Model(nn.Flatten(), nn.Linear(64, 4), 4)
    generator = torch.Generator().manual_seed(2)
    batch = Batch(images(), torch.arange(5), None, 0)
    terms = Rotation(augmentation=augmentation).loss(task, model, nn.Module(), batch, generator)
    recipe = task.views.first if augmentation == "views" else shifted_and_mirrored(task.views.first, 8)
    view = task.augment(images(), recipe, torch.Generator().manual_seed(2)).double()
    scores, labels = [], []
    for picture in view[:, 0].tolist():
        for quarter in range(4):
            pixels = torch.tensor(picture, dtype=torch.float64).flatten()
            scores.append((model.projector.weight.double() @ pixels + model.projector.bias.double()).tolist())
            labels.append(quarter)
            picture = turned(picture)
    # The forward pass is float32: 7 digits, of which sums over 64 pixels take one.
    assert float(terms.loss.detach()) == pytest.approx(naive.cross_entropy(scores, labels), rel=1e-6)
    upright = torch.tensor(scores[::4], dtype=torch.float32)
    torch.testing.assert_close(terms.projections.detach(), upright, rtol=1e-5, atol=1e-5)


def test_rotnets_views_are_shifted_and_as_often_mirrored_as_the_runs(open_tiny: Callable[..., Federation]):
    first = open_tiny("fedavg", "training.views=orchestra").task.views.first
    recipe = shifted_and_mirrored(first, 32)
    assert (recipe.crop_padding, recipe.flip, recipe.mean, recipe.std) == (4, 0.5, first.mean, first.std)
    assert (recipe.jitter, recipe.grayscale, recipe.blur, recipe.crop_scale, recipe.rotation) == (None, 0, 0, None, 0)
    assert shifted_and_mirrored(open_tiny("fedavg").task.views.first, 8).flip == 0


def test_reconstruction_error_is_a_mean_over_pixels_channels_and_samples():
    generator = torch.Generator().manual_seed(4)
    ours, target = (torch.randn(2, 3, 4, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    total = sum((a - b) ** 2 for a, b in zip(ours.flatten().tolist(), target.flatten().tolist(), strict=True))
    assert float(reconstruction_error(ours, target)) == pytest.approx(total / 120, rel=1e-12)


def test_the_autoencoder_rebuilds_plain_normalized_images_from_features(open_tiny: Callable[..., Federation]):
    task = open_tiny("fedavg").task
    torch.manual_seed(3)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 6))
    decoder = nn.Sequential(nn.Linear(6, 64), nn.Unflatten(1, (1, 8, 8)))
    model = Model(encoder, nn.Identity(), 6, {"decoder": decoder})
    batch, generator = Batch(images(), torch.arange(5), None, 0), torch.Generator().manual_seed(2)
    before = generator.get_state()
    terms = AutoEncoder().loss(task, model, nn.Module(), batch, generator)
    assert generator.get_state().equal(before), "a plain autoencoder draws nothing"
    first = task.views.first
    pixels = ((images().double() / 255 - first.mean[0]) / first.std[0]).flatten(1)
    features = pixels @ encoder[1].weight.double().T + encoder[1].bias.double()
    rebuilt = features @ decoder[0].weight.double().T + decoder[0].bias.double()
    expected = float((rebuilt - pixels).square().detach().mean())
    assert float(terms.loss.detach()) == pytest.approx(expected, rel=1e-6)  # the forward pass is float32
    torch.testing.assert_close(terms.projections.double(), features, rtol=1e-5, atol=1e-6)
