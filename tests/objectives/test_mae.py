"""MAE against loops written from the paper and its code."""

import math
import statistics

import pytest
import torch

from rayfed_ssl.data.view_recipes import ViewRecipe
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.models.vit import VisionTransformer
from rayfed_ssl.objectives.mae import MaskedDecoder, cropped, masked_error, patchify, shuffled, standardized
from tests.objectives.local_rounds import Open, digits, first_batch, started
from tests.tensors import EXACT, rows, seeded


def naive_patches(image: list[list[list[float]]], side: int) -> list[list[float]]:
    """Patches of one image [C][S][S], row by row; in each, pixels row by row with their channels side by side."""
    size = len(image[0])
    return [
        [channel[top + y][left + x] for y in range(side) for x in range(side) for channel in image]
        for top in range(0, size, side)
        for left in range(0, size, side)
    ]


def test_patches_are_cut_row_by_row_with_channels_last():
    images = torch.arange(2 * 3 * 36, dtype=torch.float64).view(2, 3, 6, 6)
    ours = patchify(images, 2)
    assert ours.shape == (2, 9, 12)
    assert ours.tolist() == [naive_patches(image, 2) for image in images.tolist()]


def test_each_patch_is_brought_to_mean_0_and_deviation_1():
    patches = rows(3, 20, 1).view(3, 4, 5)
    for image, ours in zip(patches.tolist(), standardized(patches).tolist(), strict=True):
        for patch, own in zip(image, ours, strict=True):
            mean, variance = statistics.fmean(patch), statistics.variance(patch)
            assert own == pytest.approx([(value - mean) / math.sqrt(variance + 1e-6) for value in patch], rel=1e-10)
    assert standardized(torch.ones(1, 2, 4)).abs().max() == 0  # a blank patch, as digits have many


def test_the_error_is_over_hidden_patches_alone():
    rebuilt, targets = rows(2, 15, 1).view(2, 5, 3), rows(2, 15, 2).view(2, 5, 3)
    hidden = torch.tensor([[1, 0, 1, 1, 0], [0, 1, 1, 0, 1]], dtype=torch.float64)
    errors = [
        (rebuilt[i, j, n] - targets[i, j, n]).item() ** 2
        for i in range(2)
        for j in range(5)
        for n in range(3)
        if hidden[i, j]
    ]
    assert float(masked_error(rebuilt, targets, hidden)) == pytest.approx(statistics.fmean(errors), rel=EXACT)


def test_views_are_cropped_and_mirrored_and_keep_their_colors():
    recipe = ViewRecipe(
        crop_scale=(0.2, 1), flip=0.5, jitter=(0.4, 0.4, 0.4, 0.1), grayscale=0.2, blur=0.5, solarize=0.1
    )
    assert cropped(recipe) == ViewRecipe(crop_scale=(0.2, 1), flip=0.5)


def test_the_decoder_puts_tokens_back_in_their_places():
    """Token by token: visible ones embedded, others the mask token, each with the position that it came from."""
    torch.manual_seed(1)
    decoder = MaskedDecoder(6, patches=9, pixels=4, width=32, depth=1)
    order, latents = shuffled(torch.rand(2, 9, generator=seeded(3))), torch.randn(2, 3, 6, generator=seeded(4))
    expected = []
    for image in range(2):
        tokens = [decoder.mask_token[0, 0]] * 9
        for number, place in enumerate(order[image, :3].tolist()):
            tokens[place] = decoder.embed(latents[image, number])
        placed = torch.stack(tokens) + decoder.positions[0]
        expected.append(decoder.pixels(decoder.norm(decoder.blocks(placed.unsqueeze(0)))))
    torch.testing.assert_close(decoder(latents, order), torch.cat(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("ratio", "visible"), [(0.75, 4), (0.5, 8), (0.99, 1)])
def test_the_loss_is_that_of_one_image_after_the_other(open_objective: Open, ratio: float, visible: int):
    federation = open_objective("mae", f"objective.mask_ratio={ratio}")
    task, data = federation.task, digits(federation, 5)
    model, state = started(task, data)
    output = task.objective.loss(task, model, state, first_batch(data, 5), seeded(2))
    generator, encoder = seeded(2), model.encoder
    assert isinstance(encoder, VisionTransformer)
    images = task.augment(first_batch(data, 5).images, cropped(task.views.first), generator)
    noise = torch.rand(5, 16, generator=generator)
    errors, means = [], []
    for image, values in zip(images, noise.tolist(), strict=True):
        order = sorted(range(16), key=values.__getitem__)
        seen = order[:visible]
        latents = encoder.pool.norm(encoder.blocks(encoder.patches(image.unsqueeze(0))[:, seen]))
        rebuilt = model.part("decoder")(latents, torch.tensor([order]))[0]
        target = standardized(torch.tensor(naive_patches(image.tolist(), 2)))
        errors += [float((rebuilt[j] - target[j]).square().mean()) for j in order[visible:]]
        means.append(latents[0].mean(0))
    assert float(output.loss.detach()) == pytest.approx(statistics.fmean(errors), rel=1e-5)  # float32
    torch.testing.assert_close(output.projections, torch.stack(means), rtol=1e-4, atol=1e-5)


def test_an_encoder_without_patches_is_refused(open_objective: Open):
    with pytest.raises(
        ConfigError, match=r"objective=mae hides patches from a vision transformer, got encoder cnn: take"
    ):
        open_objective("mae", "model.encoder=cnn")
