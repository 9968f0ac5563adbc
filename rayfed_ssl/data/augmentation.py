"""Random views of image batches: crop, flip, color, blur, solarize and rotate, every sample by its own draw.

The semantics are torchvision's on PIL images with antialiasing, but in float32 throughout: nothing is rounded to 8 bits
between two operations. Padding, cropping, flipping and resizing are linear and separable, so together they are a pair of
small matrices per sample, rows @ image @ columns^T, and two batched products do the work of a whole batch.

Symbols: N samples, C channels, H x W pixels, S side of a view.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.data.color import blur, grayscale, jitter, plan_jitter, solarize, standardize, unit
from rayfed_ssl.data.view_recipes import OwnView, ViewRecipe
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.foreign import plugins
from rayfed_ssl.randomness.draws import draw
from rayfed_ssl.randomness.seeds import seeded_globally

CHUNK = 1 << 18
"""Values that one pass handles on a CPU: few enough for the allocator to reuse the temporaries."""

UNIFORMS = {"area": 10, "ratio": 10, "place": 2, "factors": 4, "order": 4, "rest": 7}
"""What a view draws, whatever its recipe does with it; 10 is how often RandomResizedCrop tries to fit a box."""


def augment(images: Tensor, recipe: ViewRecipe, generator: torch.Generator, *, size: int | None = None) -> Tensor:
    """Draw one random view of every image: uint8 [N, C, H, W] to normalized float32 [N, C, S, S].

    Saturation, hue and grayscale happen only if C = 3. S is `size`, or the shorter side. The CPU generator
    advances equally for every recipe: runs that differ in a probability or a strength see the same boxes.
    """
    _check(images)
    num, channels, height, width = images.shape
    side, padding = min(height, width) if size is None else size, recipe.crop_padding
    if isinstance(recipe, OwnView):
        drawn = _own_views(images, recipe.function, generator, side)
        return standardize(drawn, recipe.mean, recipe.std, torch.empty_like(drawn))
    if side < 1 or (padding and not side - 2 * padding <= min(height, width) > padding):
        raise ValueError(f"no {side} x {side} view can be cut out of {height} x {width} padded by {padding}")
    if recipe.blur and _blur_kernel(recipe, side) // 2 >= side:
        raise ValueError(f"a blur of {recipe.blur_kernel} pixels does not fit a {side} x {side} view: set blur_kernel")
    plan = draw(draw_views, recipe, num, (channels, height, width), side, generator=generator, device=images.device)
    views = torch.empty(num, channels, side, side, device=images.device)
    step = CHUNK // (channels * max(side, height) * max(side, width)) if images.device.type == "cpu" else num
    for start in range(0, num, max(1, step)):
        part = slice(start, start + max(1, step))
        standardize(_render(unit(images[part]), recipe, plan[part], side), recipe.mean, recipe.std, views[part])
    return views


def augment_pixels(pixels: Tensor, recipe: ViewRecipe, generator: torch.Generator, *, size: int) -> Tensor:
    """Draw the views that `augment` draws of these pictures, float32 [N, C, H, W] in [0, 1], with gradients to them.

    Raises:
        ValueError: The views are a user's function.
    """
    if isinstance(recipe, OwnView):
        raise ValueError(f"views of {recipe.function} give no gradients to their pictures")
    shape = tuple(pixels.shape[1:])
    plan = draw(draw_views, recipe, len(pixels), shape, size, generator=generator, device=pixels.device)
    return standardize(_render(pixels, recipe, plan, size), recipe.mean, recipe.std)


@cache
def own_function(name: str) -> tuple[Callable[..., Tensor], frozenset[str]]:
    """Import a user's function that draws views, and name its parameters; a ConfigError if it is none."""
    function, given = plugins.find("view", name, {}), ("images", "generator", "size")
    parameters = plugins.parameters("view", name, function, ["images"])
    for parameter in parameters.values():
        if parameter.name not in given and parameter.default is parameter.empty:
            raise ConfigError(f"view={name} is given {', '.join(given)}, and its {parameter.name!r} needs a default")
    return function, frozenset(parameters)


def _own_views(images: Tensor, name: str, generator: torch.Generator, side: int) -> Tensor:
    """Let a user's function draw a view of each image, float [N, C, S, S] in [0, 1].

    It may draw from torch's global generators, as transforms of torchvision do: they are seeded by the given one meanwhile.
    """
    function, parameters = own_function(name)
    given = {"images": images.clone(), "generator": generator, "size": side}
    seed = int(torch.randint(1 << 62, (), generator=generator))
    with seeded_globally(seed, images.device), plugins.named_errors("training.views", name):
        views = function(**{key: value for key, value in given.items() if key in parameters})
    shape = [*images.shape[:2], side, side]
    if not isinstance(views, Tensor) or list(views.shape) != shape or views.dtype not in (torch.uint8, torch.float32):
        got = f"{views.dtype} {list(views.shape)}" if isinstance(views, Tensor) else type(views).__name__
        raise ValueError(
            f"training.views={name} must give a tensor {shape} of bytes or of float32 in [0, 1], got {got}"
        )
    if views.dtype == torch.uint8:
        return unit(views)
    if not images.is_cuda and not -0.5 <= views.min() <= views.max() <= 1.5:
        if bool(views.isnan().any()):
            raise ValueError(
                f"training.views={name} gave NaN: look for a division by 0, or a root or logarithm below 0"
            )
        raise ValueError(
            f"training.views={name} must give values in [0, 1], got {views.min():.2f} to {views.max():.2f}: leave Normalize "
            "out, as the engine normalizes training and test images alike"
        )
    return views


def normalize(images: Tensor, recipe: ViewRecipe, *, size: int | None = None) -> Tensor:
    """Normalize images without augmenting or resizing them: uint8 [N, C, H, W] to float32 of the same shape.

    With a size, at most H and W, it is the central square of that side (CenterCrop): [N, C, size, size].
    """
    _check(images)
    pixels = unit(images if size is None else center_crop(images, size))
    return standardize(pixels, recipe.mean, recipe.std, pixels)


def center_crop(images: Tensor, size: int) -> Tensor:
    """Cut out the central square of a side, at most H and W: [N, C, H, W] to [N, C, size, size]."""
    top, left = (round((extent - size) / 2) for extent in images.shape[2:])
    return images[:, :, top : top + size, left : left + size]


def rotate_quarter_turns(images: Tensor, turns: Tensor) -> Tensor:
    """Rotate images [N, C, S, S] anticlockwise, exactly, each by its own quarter turns in 0..3, [N]."""
    for quarter in (1, 2, 3):
        images = torch.where((turns >= quarter).view(-1, 1, 1, 1), images.rot90(1, (2, 3)), images)
    return images


def crop_boxes(
    area: Tensor, ratio: Tensor, place: Tensor, recipe: ViewRecipe, height: int, width: int, size: int
) -> Tensor:
    """Choose each view's top, left, height and width in its padded image, [N, 4], as RandomResizedCrop does.

    Draws are uniform in [0, 1): of area and ratio one per try, [N, 10], of place the top and the left, [N, 2].
    """
    outer = place.new_tensor([height, width]) + 2 * recipe.crop_padding
    if recipe.crop_scale is None:
        inner = (place.new_tensor([size, size]) if recipe.crop_padding else outer).expand_as(place)
        return torch.cat([(place * (outer - inner + 1)).floor_(), inner], 1)
    (smallest, largest), (low, high) = recipe.crop_scale, recipe.crop_ratio
    areas = height * width * (smallest + (largest - smallest) * area)
    aspects = (math.log(low) + math.log(high / low) * ratio).exp_()
    # The last column is the fallback: the largest central box whose aspect ratio is allowed.
    heights = F.pad((areas / aspects).sqrt_().round_(), (0, 1), value=min(height, round(width / low)))
    widths = F.pad((areas * aspects).sqrt_().round_(), (0, 1), value=min(width, round(height * high)))
    fits = (heights > 0) & (heights <= height) & (widths > 0) & (widths <= width)
    chosen = fits.to(torch.uint8).argmax(1, keepdim=True)
    inner = torch.cat([heights.gather(1, chosen), widths.gather(1, chosen)], 1)
    corner = torch.where(chosen < area.shape[1], place * (outer - inner + 1), (outer - inner) / 2)
    return torch.cat([corner.floor_(), inner], 1)


def resize_weights(start: Tensor, length: Tensor, positions: Tensor, extent: int, interpolation: str) -> Tensor:
    """Weigh the pixels along one axis for each pixel of a view, as antialiased resizing does: [N, S, extent].

    The filter is a triangle, or Keys' cubic with a = -1/2 as in PIL; it widens where a box shrinks.

    Args:
        start: First pixel of each box, [N].
        length: Its number of pixels, [N].
        positions: Which pixel of the resized box each pixel of the view shows, [1, S] or [N, S].
        extent: Pixels of the image.
        interpolation: "bilinear" or "bicubic".
    """
    start, length = start.view(-1, 1, 1), length.view(-1, 1, 1)
    scale = length / positions.shape[1]
    source = torch.arange(extent, device=start.device) + 0.5 - start
    inside = ((source > 0) & (source < length)).to(torch.float32)
    width = scale.clamp(min=1)
    distance = (source / width - (positions.unsqueeze(2) + 0.5) * (scale / width)).abs_()
    if interpolation == "bilinear":
        weights = distance.neg_().add_(1).clamp_(min=0)
    else:  # the two pieces of the cubic as truncated powers: no torch.where
        near, far = (1 - distance).clamp_(min=0), (2 - distance).clamp_(min=0)
        weights = near.square() * (1 - 2 * near) - far.square() * (1 - far) / 2
    weights = weights.mul_(inside)
    return weights.div_(weights.sum(2, keepdim=True))


def resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Multiply every channel from both sides: rows [N, S, H], images [N, C, H, W], columns [N, S, W]."""
    return rows.unsqueeze(1) @ (images.flatten(1, 2) @ columns.mT).view(*images.shape[:3], -1)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate each square view anticlockwise about its center, bilinear, with black corners."""
    cos, sin, zero = degrees.deg2rad().cos(), degrees.deg2rad().sin(), torch.zeros_like(degrees)
    matrix = torch.stack([cos, -sin, zero, sin, cos, zero], 1).view(-1, 2, 3)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    rotated: Tensor = F.grid_sample(images, grid, align_corners=False)
    return rotated


class _Plan(NamedTuple):
    """What happens to each sample, one column each, [N]; chances that came true are 1, else 0."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    mirrored: Tensor
    jittered: Tensor
    gray: Tensor
    blurred: Tensor
    sigma: Tensor
    solarized: Tensor
    degrees: Tensor


def draw_views(
    recipe: ViewRecipe, num: int, shape: tuple[int, int, int], size: int, *, generator: torch.Generator
) -> Tensor:
    """Draw what happens to each of `num` samples, on the CPU: the columns of a `_Plan` and, if any, of `plan_jitter`.

    Args:
        recipe: Probabilities and ranges.
        num: N.
        shape: C, H and W of the images.
        size: S.
        generator: Gives the same numbers whatever the recipe.

    Returns:
        float32 [N, 11], or [N, 22] with color jitter.
    """
    uniforms = torch.rand(num, sum(UNIFORMS.values()), generator=generator)
    area, ratio, place, factors, order, rest = uniforms.split(list(UNIFORMS.values()), 1)
    flip, jittered, gray, blurred, sigma, bright, angle = rest.unbind(1)
    low, high = recipe.blur_sigma
    plan = [
        crop_boxes(area, ratio, place, recipe, *shape[1:], size),
        flip < recipe.flip,
        jittered < recipe.jitter_probability,
        gray < recipe.grayscale,
        blurred < recipe.blur,
        low + (high - low) * sigma,
        bright < recipe.solarize,
        recipe.rotation * (2 * angle - 1),
    ]
    if recipe.jitter is not None:
        plan.append(plan_jitter(factors, order.argsort(1), recipe.jitter, colored=shape[0] == 3))
    return torch.cat([values if values.ndim == 2 else values.unsqueeze(1).to(torch.float32) for values in plan], 1)


def _render(pixels: Tensor, recipe: ViewRecipe, plan: Tensor, size: int) -> Tensor:
    """Run the operations in their order: float32 [N, C, H, W] to [N, C, S, S], both in [0, 1]."""
    now = _Plan(*plan[:, : len(_Plan._fields)].unbind(1))
    height, width = pixels.shape[2:]
    upright = torch.arange(size, device=pixels.device).expand(len(pixels), size)
    mirrored = torch.where(now.mirrored.unsqueeze(1) > 0, size - 1 - upright, upright)
    if height == width:  # both sides at once
        starts, lengths = torch.cat([now.top, now.left]), torch.cat([now.height, now.width])
        rows, columns = _axis_weights(starts, lengths, torch.cat([upright, mirrored]), height, recipe).chunk(2)
    else:
        rows = _axis_weights(now.top, now.height, upright, height, recipe)
        columns = _axis_weights(now.left, now.width, mirrored, width, recipe)
    view = resample(pixels, rows, columns)
    view.clamp_(0, 1)  # the cubic overshoots, and rounding may; 8-bit pipelines clip it too
    if recipe.jitter is not None:
        view = _some(view, now.jittered, jitter, plan[:, len(_Plan._fields) :])
    if recipe.grayscale:
        view = _some(view, now.gray, grayscale)
    if recipe.blur:
        view = _some(view, now.blurred, partial(blur, kernel=_blur_kernel(recipe, size)), now.sigma)
    if recipe.solarize:
        view = _some(view, now.solarized, partial(solarize, threshold=recipe.solarize_threshold))
    return rotate(view, now.degrees) if recipe.rotation else view


def _axis_weights(start: Tensor, length: Tensor, positions: Tensor, extent: int, recipe: ViewRecipe) -> Tensor:
    """Compose padding and resizing along one axis, [N, S, extent]; positions as in `resize_weights`."""
    if not (padding := recipe.crop_padding):
        return resize_weights(start, length, positions, extent, recipe.interpolation)
    pixels = F.pad(torch.eye(extent, device=start.device)[None], (padding, padding), mode=recipe.crop_fill)
    return resize_weights(start, length, positions, extent + 2 * padding, recipe.interpolation) @ pixels.mT


def _blur_kernel(recipe: ViewRecipe, size: int) -> int:
    return recipe.blur_kernel or 2 * (size // 20) + 1


def _some(view: Tensor, chosen: Tensor, transform: Callable[..., Tensor], *settings: Tensor) -> Tensor:
    """Put the chosen samples' transforms in their places; `settings` have a row for each sample, [N] or [N, K].

    A CPU transforms the chosen samples alone. On a GPU all are transformed, so that no shape waits for a draw.
    """
    if view.device.type != "cpu":
        return torch.where(chosen.view(-1, 1, 1, 1) > 0, transform(view, *settings), view)
    rows = chosen.nonzero().squeeze(1)
    return (
        view.index_copy_(0, rows, transform(view[rows], *(values[rows] for values in settings))) if len(rows) else view
    )


def _check(images: Tensor) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or 0 in images.shape[1:]:
        raise ValueError(f"views are made of uint8 images [N, C, H, W], got {images.dtype} {list(images.shape)}")
