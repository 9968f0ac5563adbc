"""What a view does to an image, and the views of each paper's public code."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as pydantic_dataclass

from rayfed_ssl.errors import ConfigError, nearest
from rayfed_ssl.validation import UnitInterval, Validated


@pydantic_dataclass(frozen=True, kw_only=True)
class ViewRecipe(Validated):
    """One random view, its operations in the order in which they happen; a default switches one off or is torchvision's.

    Attributes:
        crop_scale: Share of the area that a random box covers before it is resized (RandomResizedCrop), or None.
        crop_ratio: Range of the box's width over height, log-uniform; torchvision's.
        interpolation: Filter of the resizing, antialiased like PIL's. Orchestra and solo-learn: bicubic.
        crop_padding: Pixels added on every side before a view is cut out unresized (RandomCrop); FedX: 4.
        crop_fill: What the padding shows. FedX mirrors CIFAR; black is torchvision's default.
        flip: Probability of mirroring left and right.
        jitter: Strengths of brightness, contrast, saturation and hue in random order (ColorJitter), or None.
        jitter_probability: Probability of these four together; SimCLR's.
        grayscale: Probability of dropping the colors.
        blur: Probability of a Gaussian blur.
        blur_sigma: Range of its standard deviation in pixels; SimCLR's.
        blur_kernel: Its odd width in pixels, or None for SimCLR's tenth of the side: 3 at 32, 7 at 64, 23 at 224.
        solarize: Probability of inverting bright pixels; BYOL's.
        solarize_threshold: From which value in [0, 1] pixels are bright; PIL's 128 of 255.
        rotation: Largest angle in degrees to either side; bilinear (torchvision: nearest), black corners.
        mean: What is subtracted from each channel at the end, in units of white. If C is not its length: the average.
        std: What each channel is then divided by, likewise.
    """

    crop_scale: tuple[float, float] | None = None
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    crop_padding: int = 0
    crop_fill: Literal["reflect", "constant"] = "reflect"
    flip: UnitInterval = 0.0
    jitter: tuple[float, float, float, float] | None = None
    jitter_probability: UnitInterval = 0.8
    grayscale: UnitInterval = 0.0
    blur: UnitInterval = 0.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    blur_kernel: int | None = None
    solarize: UnitInterval = 0.0
    solarize_threshold: float = 0.5
    rotation: float = 0.0
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        low, high = self.crop_scale or (1, 1)
        if not 0 < low <= high <= 1 or (self.crop_scale and self.crop_padding):
            raise ValueError(f"crop_scale must lie in (0, 1] and excludes crop_padding, got {self}")
        if self.blur_kernel is not None and self.blur_kernel % 2 == 0:
            raise ValueError(f"blur_kernel must be odd, got {self.blur_kernel}")
        if len(self.mean) != len(self.std):
            raise ValueError(f"mean and std need one value a channel, got {self.mean} and {self.std}")


@pydantic_dataclass(frozen=True, kw_only=True)
class OwnView(ViewRecipe):
    """A random view that a user's function draws; of the other fields mean and std count alone.

    Attributes:
        function: `module:function`.
    """

    function: str


@dataclass(frozen=True)
class Views:
    """The recipes of a sample's two views."""

    first: ViewRecipe
    second: ViewRecipe


SMALLEST = 4
"""Pixels of a side of a small crop, at least."""


@pydantic_dataclass(frozen=True, kw_only=True)
class SmallCrops(Validated):
    """Views of small parts of a sample at a lower resolution, beside its two views: SwAV's multi-crop."""

    number: PositiveInt
    """n of each sample (SwAV: 6, DINO: 8), which `training.small_crops=6` sets as well; without it there are none."""
    size: Annotated[int, Field(ge=SMALLEST)] | None = None
    """Side in pixels; None takes 3/7 of the views' (SwAV, DINO: 96 of 224), rounded to our vision transformers' patches."""
    scale: tuple[float, float] = (0.05, 0.4)
    """Share of the area that a small crop covers (DINO; SwAV: 0.05 to 0.14)."""
    large_scale: tuple[float, float] | None = None
    """Share that the two views cover (DINO: 0.4 to 1; SwAV: 0.14 to 1); None keeps their own."""

    def __post_init__(self) -> None:
        for scale in (self.scale, self.large_scale):
            if scale is not None and not 0 < scale[0] <= scale[1] <= 1:
                raise ValueError(f"shares of the area must lie in (0, 1], the smaller one first, got {list(scale)}")

    def enlarged(self, views: Views) -> Views:
        """Give the two views their share of the area."""
        if self.large_scale is None:
            return views
        return Views(
            *(replace(view, crop_scale=self.large_scale, crop_padding=0) for view in (views.first, views.second))
        )

    def recipe(self, views: Views) -> ViewRecipe:
        """Make the recipe of a small crop: all that the first view does, in a smaller box."""
        return replace(views.first, crop_scale=self.scale, crop_padding=0)


_SIMCLR = ViewRecipe(crop_scale=(0.08, 1), flip=0.5, jitter=(0.8, 0.8, 0.8, 0.2), grayscale=0.2, mean=(0,), std=(1,))
_MOCO = replace(_SIMCLR, jitter=(0.4, 0.4, 0.4, 0.1))
_FLESD = replace(_SIMCLR, crop_scale=(0.2, 1), mean=(0.5,), std=(0.5,))
_FLESD_LARGE = replace(_FLESD, jitter=(0.8, 0.8, 0.8, 0.4), grayscale=0.5, blur=0.5, blur_kernel=13)
_SOLO = replace(_SIMCLR, interpolation="bicubic", blur=0.5, blur_kernel=13)
_SUPERVISED = ViewRecipe(crop_padding=4, crop_fill="constant", flip=0.5)
_ORCHESTRA = replace(_FLESD, crop_scale=(0.5, 1), interpolation="bicubic", jitter=(0.4, 0.4, 0.2, 0.1), blur_kernel=3)
_FEDX = ViewRecipe(crop_padding=4, flip=0.5, mean=(0.4914, 0.4824, 0.4467), std=(0.2471, 0.2435, 0.2616))
_DIGITS = ViewRecipe(crop_scale=(0.5, 1), jitter=(0.4, 0.4, 0, 0), rotation=10, mean=(0.305,), std=(0.376,))
_CIFAR = (0.4914, 0.4822, 0.4465)

VIEWS: dict[str, Views] = {
    "orchestra": Views(replace(_ORCHESTRA, blur=0.5), replace(_ORCHESTRA, blur=0.1, solarize=0.2)),
    **{
        name: Views(recipe, recipe)
        for name, recipe in {
            "flesd-cifar": _FLESD,
            "flesd-supervised": _SUPERVISED,
            "flesd-imagenet": replace(_FLESD_LARGE, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
            "easyfl": _SIMCLR,
            "moco-v1": _MOCO,
            "fedsc": replace(_MOCO, crop_scale=(0.2, 1), mean=_CIFAR, std=(0.2470, 0.2434, 0.2615)),
            "moco-cifar": replace(_MOCO, mean=_CIFAR, std=(0.2023, 0.1994, 0.2010)),
            "simclr-cifar": replace(_SOLO, mean=_CIFAR, std=(0.2470, 0.2435, 0.2616)),
            "fedca": replace(_SIMCLR, blur=0.5),
            "fedx-cifar": _FEDX,
            "digits": _DIGITS,
        }.items()
    },
}
"""The two views of each paper's public code: FLESD, EasyFL (easyfl, moco-v1), MoCo's demo, Orchestra, solo-learn, FedX,
FedSC.

Blur is 13 pixels wide where the code blurs with PIL, which does not cut the kernel off. Two recipes are assumptions:
fedca, whose paper names SimCLR's operations but no strength, and digits, for 8 x 8 digits, which mirroring would spoil.
"""


def views_named(name: str) -> Views:
    """Find views by name, or make both of a user's `module:function`, which is imported when it first draws one.

    Raises:
        ConfigError: There is no such name.
    """
    if ":" in name:
        return Views(OwnView(function=name), OwnView(function=name))
    if name not in VIEWS:
        raise ConfigError(f"training.views: unknown name {name!r}, and no module:function{nearest(name, VIEWS)}")
    return VIEWS[name]


PROBE_VIEW = ViewRecipe(crop_scale=(0.08, 1), flip=0.5)
"""Views that train a linear probe: give it the mean and std of the recipe that trained the encoder."""
