"""Rotation prediction and the autoencoder against naive loops."""

import pytest
import torch
from torch import nn

from rayfed_ssl.models import Model
from rayfed_ssl.models.decoder import reconstruction_error
from rayfed_ssl.objectives import AutoEncoder, Rotation
from rayfed_ssl.objectives.rotation import four_rotations, shifted_and_mirrored
from rayfed_ssl.training.task import Task
from tests import naive
from tests.objectives.linear_model import IMAGES, batch_of, linear, linear_model
from tests.objectives.local_rounds import Open
from tests.tensors import EXACT, rows, seeded


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


@pytest.mark.parametrize("augmentation", ["rotnet", "views"])
def test_rotation_is_cross_entropy_over_four_copies_of_one_view(task: Task, augmentation: str):
    model = linear_model(4)
    output = Rotation(augmentation=augmentation).loss(task, model, nn.Module(), batch_of(), seeded(2))
    recipe = task.views.first if augmentation == "views" else shifted_and_mirrored(task.views.first, 8)
    scores, labels = [], []
    for picture in task.augment(IMAGES, recipe, seeded(2)).double()[:, 0].tolist():
        for quarter in range(4):
            scores.append(linear(torch.tensor(picture, dtype=torch.float64).flatten(), model.projector).tolist())
            labels.append(quarter)
            picture = turned(picture)
    # The forward pass is float32: 7 digits, of which sums over 64 pixels take one.
    assert float(output.loss.detach()) == pytest.approx(naive.cross_entropy(scores, labels), rel=1e-6)
    upright = torch.tensor(scores[::4], dtype=torch.float32)
    torch.testing.assert_close(output.projections.detach(), upright, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("augmentation", ["rotnet", "none"])
def test_a_single_turn_is_drawn_for_each_image_after_its_view(task: Task, augmentation: str):
    model = linear_model(4)
    output = Rotation(turns="one", augmentation=augmentation).loss(task, model, nn.Module(), batch_of(), seeded(2))
    generator = seeded(2)
    view = task.plain(IMAGES)
    if augmentation == "rotnet":
        view = task.augment(IMAGES, shifted_and_mirrored(task.views.first, 8), generator)
    pictures = view.double()[:, 0].tolist()
    labels = torch.randint(4, (6,), generator=generator).tolist()
    assert len(set(labels)) > 2
    for position, quarters in enumerate(labels):
        for _ in range(quarters):
            pictures[position] = turned(pictures[position])
    scores = linear(torch.tensor(pictures, dtype=torch.float64).flatten(1), model.projector)
    # The forward pass is float32: 7 digits, of which sums over 64 pixels take one.
    assert float(output.loss.detach()) == pytest.approx(naive.cross_entropy(scores.tolist(), labels), rel=1e-6)
    torch.testing.assert_close(output.projections.detach(), scores.float(), rtol=1e-5, atol=1e-5)


def test_rotnets_views_are_shifted_and_as_often_mirrored_as_the_runs(task: Task, open_tiny: Open):
    first = task.views.first
    recipe = shifted_and_mirrored(first, 32)
    assert (recipe.crop_padding, recipe.flip, recipe.mean, recipe.std) == (4, 0.5, first.mean, first.std)
    assert (recipe.jitter, recipe.grayscale, recipe.blur, recipe.crop_scale, recipe.rotation) == (None, 0, 0, None, 0)
    assert shifted_and_mirrored(open_tiny("fedavg").task.views.first, 8).flip == 0


def test_reconstruction_error_is_a_mean_over_pixels_channels_and_samples():
    ours, target = (rows(2, 60, seed) for seed in (4, 5))
    total = sum((a - b) ** 2 for a, b in zip(ours.flatten().tolist(), target.flatten().tolist(), strict=True))
    error = reconstruction_error(ours.view(2, 3, 4, 5), target.view(2, 3, 4, 5))
    assert float(error) == pytest.approx(total / 120, rel=EXACT)


def test_the_autoencoder_rebuilds_plain_normalized_images_from_features(task: Task):
    torch.manual_seed(3)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 6))
    decoder = nn.Sequential(nn.Linear(6, 64), nn.Unflatten(1, (1, 8, 8)))
    model = Model(encoder, nn.Identity(), 6, {"decoder": decoder})
    generator, first = seeded(2), task.views.first
    output = AutoEncoder().loss(task, model, nn.Module(), batch_of(), generator)
    assert generator.get_state().equal(seeded(2).get_state()), "a plain autoencoder draws nothing"
    pixels = ((IMAGES.double() / 255 - first.mean[0]) / first.std[0]).flatten(1)
    features = linear(pixels, encoder[1])
    expected = float((linear(features, decoder[0]) - pixels).square().mean())
    assert float(output.loss.detach()) == pytest.approx(expected, rel=1e-6)  # the forward pass is float32
    torch.testing.assert_close(output.projections.double(), features, rtol=1e-5, atol=1e-6)
