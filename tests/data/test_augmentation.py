import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from PIL import Image, ImageFilter
from torch import Tensor
from torchvision import transforms as pil
from torchvision.transforms.v2 import functional as tv

from rayfed_ssl.data import augmentation as views
from rayfed_ssl.data.augmentation import augment, augment_pixels, normalize, rotate_quarter_turns
from rayfed_ssl.data.color import blend_, blur, jitter, plan_jitter, shift_hue_, solarize
from rayfed_ssl.data.view_recipes import PROBE_VIEW, VIEWS, ViewRecipe
from tests.tensors import seeded

ROUNDING = {"rtol": 0, "atol": 2e-6}  # a handful of float32 roundings of values up to 1
CHAINED = {"rtol": 0, "atol": 2e-5}  # the same through several steps, or through positions of up to 60 pixels
KS_BOUND = 2.23  # times sqrt(1/n + 1/m): a two-sample Kolmogorov-Smirnov distance exceeds it once in 10^4
Z_BOUND = 6.0  # standard errors: exceeded once in 5e8 comparisons, of which there are some 10^4
RAW = ViewRecipe(mean=(0.0,), std=(1.0,))


def pixels(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=seeded())


def photographs(num: int, size: int) -> Tensor:
    shapes = torch.nn.functional.interpolate(torch.rand(num, 3, 8, 8, generator=seeded()), size=size, mode="bicubic")
    return ((2 * shapes - 0.5).clamp(0, 1) * 255).round().to(torch.uint8)


def hard_colors() -> Tensor:
    levels = torch.tensor([0.0, 0.2, 0.2000001, 0.2003, 0.5, 1.0])  # ties, near ties, grays, black and white
    colors = torch.cat([torch.cartesian_prod(levels, levels, levels), torch.rand(84, 3, generator=seeded())])
    return colors.T.reshape(1, 3, 20, 15).contiguous()


def distance(first: Tensor, second: Tensor) -> float:
    both, nums = torch.cat([first, second], 1), (first.shape[1], second.shape[1])
    shares = [torch.searchsorted(x.sort().values, both, right=True) / x.shape[1] for x in (first, second)]
    return float((shares[0] - shares[1]).abs().max() / (1 / nums[0] + 1 / nums[1]) ** 0.5)


def boxes_of(recipe: ViewRecipe, num: int, height: int, width: int) -> Tensor:
    return views.crop_boxes(*torch.rand(num, 22, generator=seeded()).split([10, 10, 2], 1), recipe, height, width, 8)


def box_statistics(boxes: Tensor) -> Tensor:
    top, left, height, width = boxes.float().unbind(1)
    return torch.stack([height * width, width / height, top, left])


@pytest.mark.parametrize("case", [(0.08, 0.7, [32, 32]), (0.2, 0.8, [40, 64]), (0.7, 0.5, [64, 30])])
def test_boxes_are_whole_pixels_distributed_as_torchvisions(case: tuple[float, float, list[int]]) -> None:
    area, ratio, sides = case  # in the last case most boxes do not fit: several tries, often the central box
    ours = boxes_of(ViewRecipe(crop_scale=(area, 1.0), crop_ratio=(ratio, 4 / 3)), 20000, *sides)
    assert torch.equal(ours, ours.round())
    assert (ours[:, :2] >= 0).all()
    assert ((ours[:, :2] + ours[:, 2:]).amax(0)).tolist() == sides
    torch.manual_seed(0)
    draw, image = pil.RandomResizedCrop.get_params, torch.empty(3, *sides)
    theirs = torch.tensor([draw(image, [area, 1.0], [ratio, 4 / 3]) for _ in range(8000)])
    assert distance(box_statistics(ours), box_statistics(theirs)) < KS_BOUND


@pytest.mark.parametrize(("height", "width"), [(90, 20), (20, 90)])
def test_a_box_that_never_fits_becomes_torchvisions_central_box(height: int, width: int) -> None:
    ours = boxes_of(ViewRecipe(crop_scale=(1.0, 1.0)), 50, height, width)
    theirs = pil.RandomResizedCrop.get_params(torch.empty(3, height, width), [1.0, 1.0], [3 / 4, 4 / 3])
    assert ours.unique(dim=0).tolist() == [list(theirs)]


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("box", [(0, 0, 41, 53), (3, 7, 9, 5), (40, 52, 1, 1), (5, 11, 32, 20), (2, 1, 37, 50)])
@pytest.mark.parametrize("size", [7, 32, 60])
def test_resizing_a_box_is_torchvisions_antialiased_resized_crop(mode: str, box, size: int) -> None:
    image = torch.rand(1, 3, 41, 53, generator=seeded())
    (top, left, height, width), positions = torch.tensor(box).view(4, 1), torch.arange(size)[None]
    rows = views.resize_weights(top, height, positions, 41, mode)
    ours = views.resample(image, rows, views.resize_weights(left, width, positions, 53, mode))
    interpolation, smaller = pil.InterpolationMode(mode), mode == "bilinear" and max(box[2:]) <= size
    for antialias in (True, False) if smaller else (True,):
        theirs = tv.resized_crop(image, *box, [size, size], interpolation, antialias=antialias)
        torch.testing.assert_close(ours, theirs, **CHAINED)


@pytest.mark.parametrize(("height", "width", "size"), [(224, 224, 16), (24, 40, 24), (40, 24, 30)])
def test_without_a_crop_the_whole_image_is_resized_and_antialiased(height: int, width: int, size: int) -> None:
    theirs = tv.resize((images := pixels(2, 3, height, width)) / 255, [size, size], antialias=True)
    torch.testing.assert_close(augment(images, RAW, seeded(), size=size), theirs, rtol=0, atol=5e-5)  # up to 28 weights


@pytest.mark.parametrize("fill", ["reflect", "constant"])
@pytest.mark.parametrize("size", [6, 4])
def test_a_padded_crop_shows_every_window_equally_often(fill: str, size: int) -> None:
    image = pixels(1, 3, 6, 8)
    padded = tv.pad(image / 255, [2, 2, 2, 2], padding_mode=fill)
    windows = padded[0].unfold(1, size, 1).unfold(2, size, 1).flatten(1, 2).transpose(0, 1)
    seen = augment(image.expand(9000, -1, -1, -1), replace(RAW, crop_padding=2, crop_fill=fill), seeded(), size=size)
    matches = (seen[:, None] == windows).flatten(2).all(2)
    assert (matches.sum(1) == 1).all()
    assert (matches.sum(0) - 9000 / len(windows)).abs().max() < Z_BOUND * (9000 / len(windows)) ** 0.5


@pytest.mark.parametrize("angle", [-90.0, -12.5, 0.0, 7.0, 45.0, 180.0])
def test_rotation_is_torchvisions_bilinear_rotation(angle: float) -> None:
    images = torch.rand(2, 3, 11, 11, generator=seeded())
    theirs = tv.rotate(images, angle, interpolation=pil.InterpolationMode.BILINEAR)
    torch.testing.assert_close(views.rotate(images, torch.full((2,), angle)), theirs, **CHAINED)


def test_quarter_turns_are_exact_and_anticlockwise() -> None:
    images, turns = pixels(9, 2, 5, 5), torch.tensor([0, 1, 2, 3, 3, 2, 1, 0, 1])
    rotated = rotate_quarter_turns(images, turns)
    assert torch.equal(images, pixels(9, 2, 5, 5))
    assert torch.equal(rotated, torch.stack([x.rot90(k, (1, 2)) for x, k in zip(images, turns.tolist(), strict=True)]))


TORCHVISION = [tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue]
TWO_OPS = [lambda x, f: (x * f).clamp(0, 1), lambda x, f: (x * f + (1 - f) * x.mean()).clamp(0, 1)]


@pytest.mark.parametrize("factor", [0.0, 0.2, 0.9, 1.0, 1.3, 1.8])
@pytest.mark.parametrize("channels", [3, 1])
def test_blends_are_torchvisions_with_one_operation_and_factor_per_sample(factor: float, channels: int) -> None:
    images = torch.cat([hard_colors(), hard_colors() ** 2, hard_colors() ** 3])[:, :channels]
    factors = torch.tensor([factor, 0.5, 1.5])
    for ops in itertools.permutations(range(3)) if channels == 3 else ((0, 1, 1), (1, 0, 0)):
        contrast, saturation = ((1 - factors) * (torch.tensor(ops) == op) for op in (1, 2))
        ours = blend_(images.clone(), *(values.view(-1, 1, 1, 1) for values in (factors, contrast, saturation)))
        theirs = [TORCHVISION[op](image, f) for op, image, f in zip(ops, images, (factor, 0.5, 1.5), strict=True)]
        torch.testing.assert_close(ours, torch.stack(theirs), **ROUNDING)


@pytest.mark.parametrize("shift", [-0.5, -0.2, -1 / 6, -0.01, 0.0, 0.05, 0.2, 1 / 3, 0.5])
def test_hue_is_torchvisions_on_hard_colors(shift: float) -> None:
    ours = shift_hue_(hard_colors(), torch.tensor(shift).view(1, 1, 1))
    # Hue is a quotient by the chroma: its rounding, up to 6 * 2^-24 turns, is multiplied by the chroma again.
    torch.testing.assert_close(ours, tv.adjust_hue(hard_colors(), shift), rtol=0, atol=5e-6)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_jitter_applies_the_operations_in_each_samples_own_order(channels: int) -> None:
    orders = torch.tensor([*itertools.permutations(range(4))])
    images = torch.rand(24, channels, 6, 7, generator=seeded())
    uniforms = torch.rand(24, 4, generator=seeded(1))
    ours = jitter(images, plan_jitter(uniforms, orders, (0.8, 0.8, 0.8, 0.2), colored=channels == 3))
    factors = torch.stack([*(0.2 + 1.6 * uniforms[:, :3].T), 0.4 * uniforms[:, 3] - 0.2], 1)
    ops = TORCHVISION if channels == 3 else [*TWO_OPS, *[lambda x, f: x] * 2]
    theirs = images.clone()
    for row, op in itertools.product(range(24), range(4)):
        theirs[row] = ops[orders[row, op]](theirs[row], float(factors[row, orders[row, op]]))
    torch.testing.assert_close(ours, theirs, **CHAINED)


def test_jitter_has_torchvisions_ranges_and_random_order() -> None:
    torch.manual_seed(0)
    image = torch.tensor([[255, 255], [255, 0], [255, 0]], dtype=torch.uint8).view(1, 3, 1, 2).expand(2000, -1, 2, -1)
    strengths = (0.8, 2.0, 0.8, 0.2)  # what is clamped of white and red depends on the order
    theirs = torch.stack([pil.ColorJitter(*strengths)(one) for one in image / 255])
    ours = augment(image, replace(RAW, jitter=strengths, jitter_probability=1.0), seeded(2))
    assert distance(ours.flatten(1).T.contiguous(), theirs.flatten(1).T.contiguous()) < KS_BOUND


@pytest.mark.parametrize("kernel", [1, 3, 7, 13])
def test_blur_is_torchvisions_with_one_sigma_per_sample(kernel: int) -> None:
    images, sigmas = torch.rand(4, 3, 16, 16, generator=seeded()), [0.1, 0.5, 1.2, 2.0]
    theirs = [tv.gaussian_blur(image, [kernel] * 2, [sigma] * 2) for image, sigma in zip(images, sigmas, strict=True)]
    torch.testing.assert_close(blur(images, torch.tensor(sigmas), kernel), torch.stack(theirs), **ROUNDING)


def statistics(seen: Tensor) -> Tensor:
    mean, half, spread = seen.mean((2, 3)).T, seen.shape[3] // 2, seen.std((1, 2, 3)) + 0.02
    chroma, lean = (seen.amax(1) - seen.amin(1)).mean((1, 2)), (seen[..., :half] - seen[..., half:]).mean((1, 2, 3))
    edges = [seen.diff(n, axis).abs().mean((1, 2, 3)) / by for by in (1, spread) for n in (1, 2) for axis in (2, 3)]
    return torch.cat([mean, seen.std((2, 3)).T, mean[:2] - mean[1:], torch.stack([chroma, lean, *edges])])


PIL_BLUR = pil.Lambda(lambda image: image.filter(ImageFilter.GaussianBlur(float(torch.empty(1).uniform_(0.1, 2.0)))))
SOFT = pil.RandomApply([pil.GaussianBlur(3, (0.1, 2.0))], 0.1)
AUTHORS = {
    "flesd-cifar": ((0.2, 1.0), "bilinear", (0.8, 0.8, 0.8, 0.2), 0.0, 0.0, []),
    "simclr-cifar": ((0.08, 1.0), "bicubic", (0.8, 0.8, 0.8, 0.2), 0.5, 0.0, [pil.RandomApply([PIL_BLUR], 0.5)]),
    "orchestra": ((0.5, 1.0), "bicubic", (0.4, 0.4, 0.2, 0.1), 0.1, 0.2, [SOFT, pil.RandomSolarize(128, 0.2)]),
}


@pytest.mark.parametrize(
    ("name", "num"),
    [
        ("orchestra", 1000),
        *(pytest.param(name, 2000, marks=pytest.mark.slow) for name in ("flesd-cifar", "simclr-cifar")),
    ],
)
def test_views_are_distributed_as_those_of_the_authors_pil_pipeline(name: str, num: int) -> None:
    *numbers, rest = (scale, interpolation, strengths, *_) = AUTHORS[name]
    recipe = replace(VIEWS[name].second, mean=(0.0,), std=(1.0,))
    assert [recipe.crop_scale, recipe.interpolation, recipe.jitter, recipe.blur, recipe.solarize] == numbers
    torch.manual_seed(0)
    crop = pil.RandomResizedCrop(32, scale, interpolation=pil.InterpolationMode(interpolation))
    colors = [pil.RandomApply([pil.ColorJitter(*strengths)], 0.8), pil.RandomGrayscale(0.2)]
    author = pil.Compose([crop, pil.RandomHorizontalFlip(), *colors, *rest, pil.PILToTensor()])
    images = photographs(20, 32)
    originals = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images] * (num // 20)
    theirs = torch.stack([author(image) for image in originals]) / 255
    ours = augment(images.repeat(num // 20, 1, 1, 1), recipe, seeded(2))
    assert distance(statistics(ours), statistics(theirs)) < KS_BOUND
    for first, second in ((ours, theirs), (ours**2, theirs**2)):
        error = ((first.var(0) + second.var(0)) / num).sqrt()
        assert ((first.mean(0) - second.mean(0)).abs() / error).max() < Z_BOUND


def test_the_generator_decides_every_bit_of_every_sample_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    images, recipe = photographs(3, 190), replace(VIEWS["orchestra"].second, rotation=5.0)
    first = augment(images, recipe, seeded(7))
    assert len(augment(images[:1, :, :9, :9].expand(50, -1, -1, -1), recipe, seeded()).unique(dim=0)) == 50
    before = torch.manual_seed(99).get_state()
    assert torch.equal(augment(images.contiguous(memory_format=torch.channels_last), recipe, seeded(7)), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(images, photographs(3, 190))
    for values, threads in ((1, 2), (2 * 3 * 190 * 190, 2), (1 << 30, 1)):
        monkeypatch.setattr(views, "CHUNK", values)
        torch.set_num_threads(threads)
        assert torch.equal(augment(images, recipe, seeded(7)), first)


def test_recipes_that_differ_in_one_operation_see_the_same_boxes_and_leave_the_same_state() -> None:
    plain, generators = replace(RAW, crop_scale=(0.2, 1.0)), (seeded(5), seeded(5))
    first = augment(photographs(30, 32), plain, generators[0])
    assert torch.equal(solarize(first, 0.5), augment(photographs(30, 32), replace(plain, solarize=1.0), generators[1]))
    assert torch.equal(generators[0].get_state(), generators[1].get_state())


OPERATIONS: dict[str, tuple[ViewRecipe, Callable[[Tensor], Tensor], float]] = {
    "flip": (RAW, lambda x: x.flip(3), 0),
    "grayscale": (RAW, lambda x: tv.rgb_to_grayscale(x, 3), 2e-6),
    "solarize": (replace(RAW, solarize_threshold=0.6), lambda x: tv.solarize(x, 0.6), 0),
    "blur": (replace(RAW, blur_sigma=(1.5, 1.5)), lambda x: tv.gaussian_blur(x, [3, 3], [1.5]), 2e-6),
    "jitter_probability": (replace(RAW, jitter=(0.4, 0.4, 0.4, 0.1)), lambda x: x, 1),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_happens_to_its_share_of_the_samples_to_none_or_to_all(name: str) -> None:
    (recipe, theirs, tolerance), images = OPERATIONS[name], photographs(4, 32).repeat(250, 1, 1, 1)
    never, seldom, always = (augment(images, replace(recipe, **{name: p}), seeded()) for p in (0.0, 0.3, 1.0))
    assert torch.equal(never, images / 255)
    torch.testing.assert_close(always, theirs(images / 255), rtol=0, atol=tolerance)
    assert (always != images / 255).flatten(1).any(1).all()
    changed = (seldom != images / 255).flatten(1).any(1)
    assert torch.equal(seldom[changed], always[changed])
    assert abs(changed.float().mean() - 0.3) < Z_BOUND * (0.3 * 0.7 / 1000) ** 0.5


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize(("num", "channels"), [(0, 3), (1, 3), (50, 3), (1, 1), (5, 1), (5, 4)])
def test_every_recipe_makes_views_between_black_and_white_of_any_batch(name: str, num: int, channels: int) -> None:
    for recipe, size in itertools.product((VIEWS[name].first, VIEWS[name].second, PROBE_VIEW), (None, 24)):
        seen = augment(pixels(num, channels, 30, 41), replace(recipe, mean=(0.0,), std=(1.0,)), seeded(), size=size)
        assert seen.shape == (num, channels, size or 30, size or 30)
        assert ((seen >= -2e-6) & (seen <= 1 + 2e-6)).all()


def test_views_are_normalized_by_channel_or_by_the_average_of_the_channels() -> None:
    recipe = ViewRecipe(mean=(0.2, 0.3, 0.7), std=(0.1, 0.2, 0.6))
    for images, mean, std in ((pixels(2, 3, 6, 6), recipe.mean, recipe.std), (pixels(2, 1, 6, 6), (0.4,), (0.3,))):
        theirs = (images / 255 - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
        torch.testing.assert_close(normalize(images, recipe), theirs, rtol=1e-6, atol=2e-6)
        assert torch.equal(augment(images, recipe, seeded()), normalize(images, recipe))


def test_a_center_is_taken_where_torchvision_takes_it() -> None:
    images = pixels(2, 3, 9, 12)
    for size in (9, 8, 4):
        assert torch.equal(normalize(images, RAW, size=size), tv.center_crop(images, [size, size]) / 255)


WIDE_BLUR = replace(RAW, blur=1.0, blur_kernel=13)
MISTAKES: list[tuple[str, Callable[[], object]]] = [
    (r"got torch.float32 \[2, 3, 8, 8\]", lambda: augment(torch.rand(2, 3, 8, 8), RAW, seeded())),
    (r"got torch.uint8 \[3, 8, 8\]", lambda: normalize(pixels(3, 8, 8), RAW)),
    (r"got torch.uint8 \[2, 3, 0, 8\]", lambda: augment(pixels(2, 3, 0, 8), RAW, seeded())),
    ("no 13 x 13 view", lambda: augment(pixels(2, 3, 8, 10), replace(RAW, crop_padding=2), seeded(), size=13)),
    ("8 x 10 padded by 8", lambda: augment(pixels(2, 3, 8, 10), replace(RAW, crop_padding=8), seeded())),
    ("no 0 x 0 view", lambda: augment(pixels(2, 3, 8, 10), RAW, seeded(), size=0)),
    ("13 pixels does not fit a 6 x 6", lambda: augment(pixels(1, 3, 6, 6), WIDE_BLUR, seeded())),
    ("flip", lambda: ViewRecipe(flip=1.5)),
    ("excludes crop_padding", lambda: ViewRecipe(crop_scale=(0.2, 1.0), crop_padding=4)),
    ("crop_scale must lie in", lambda: ViewRecipe(crop_scale=(0.9, 0.2))),
    ("blur_kernel must be odd, got 4", lambda: ViewRecipe(blur_kernel=4)),
]


@pytest.mark.parametrize(("message", "mistake"), MISTAKES)
def test_mistakes_are_named(message: str, mistake: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=message):
        mistake()


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_pixels_have_the_bits_of_views_of_bytes_and_a_gradient(name: str) -> None:
    recipe, images = VIEWS[name].first, photographs(6, 12) // 2 + 64  # inside of [0, 1], where views clamp
    inputs = (images.float() / 255).requires_grad_()
    ours = augment_pixels(inputs, recipe, seeded(), size=12)
    torch.testing.assert_close(ours, augment(images, recipe, seeded()), rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(ours.sum(), inputs)
    step = 1e-3 * torch.rand(images.shape, generator=seeded(1))
    ahead, behind = (augment_pixels(inputs.detach() + sign * step, recipe, seeded(), size=12) for sign in (1, -1))
    change = float((ahead.double() - behind.double()).sum() / 2)
    assert float((gradient * step).sum()) == pytest.approx(change, rel=0.1)  # clamping and hue have corners
