"""Encoders by name, one explicit registry, and the models made of them."""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from rayfed_ssl.errors import ConfigError, reason
from rayfed_ssl.foreign import plugins
from rayfed_ssl.models import encoders, libraries
from rayfed_ssl.models.encoders import MIN_SIZE, Encoder, Stem
from rayfed_ssl.models.group_norm import Module, grouped
from rayfed_ssl.models.heads import HEADS, Model, build_head, head_width
from rayfed_ssl.models.resnet import Depth
from rayfed_ssl.models.vit import vit


@dataclass(frozen=True)
class EncoderInfo:
    """An encoder that can be named.

    Attributes:
        description: One line for listings.
        build: Takes the keywords channels and size, and stem where `has_stem`.
        has_stem: Whether its first layers come in a variant for small and one for large images.
    """

    description: str
    build: Callable[..., Encoder]
    has_stem: bool = False


GROUPED = "-group"
"""Ending of the names of encoders whose models have group norm in the place of batch-norm."""


def _resnet(depth: Depth) -> EncoderInfo:
    description = f"ResNet-{depth}, first layers for small images up to 64 pixels"
    return EncoderInfo(description, partial(encoders.resnet, depth), has_stem=True)


ENCODERS: Mapping[str, EncoderInfo] = {
    "cnn": EncoderInfo("four convolutions, made for CPUs", encoders.cnn),
    "resnet8": EncoderInfo("ResNet of three blocks, made for CPUs", encoders.resnet8),
    "resnet18": _resnet(18),
    "resnet34": _resnet(34),
    "resnet50": _resnet(50),
    f"cnn{GROUPED}": EncoderInfo("cnn with group norm, for DP-SGD", encoders.cnn),
    f"resnet18{GROUPED}": EncoderInfo(
        "ResNet-18 with group norm, for DP-SGD", partial(encoders.resnet, 18), has_stem=True
    ),
    "cnn5": EncoderInfo("FedCA's 5-layer CNN; its layers are our guess", encoders.cnn5),
    "vgg9": EncoderInfo("VGG-9 without batch-norm", encoders.vgg9),
    "alexnet": EncoderInfo("AlexNet for small images, without batch-norm", encoders.alexnet),
    "vit-micro": EncoderInfo("vision transformer of four blocks, made for CPUs", partial(vit, "micro")),
    "vit-tiny": EncoderInfo("ViT-Tiny; patches of 4 pixels at 32, 16 at 224", partial(vit, "tiny")),
    "vit-small": EncoderInfo("ViT-Small; patches of 4 pixels at 32, 16 at 224", partial(vit, "small")),
}
"""Encoders by name."""


def encoder_info(name: str) -> EncoderInfo:
    """Find an encoder by name, also one from outside: a function or class that gives an `nn.Module`."""
    if libraries.is_library(name):
        libraries.check(name)
        return EncoderInfo(f"of {name.partition(':')[0]}", partial(_outside, name, partial(libraries.build, name)))
    target = plugins.find("encoder", name, ENCODERS)
    if isinstance(target, EncoderInfo):
        return target
    if not (inspect.isclass(target) and issubclass(target, nn.Module)):
        plugins.parameters("encoder", name, target, ["channels", "size"], "a subclass of torch.nn.Module or ")
    return EncoderInfo(plugins.summary(target), partial(_outside, name, target))


def _outside(name: str, factory: Callable[..., nn.Module], *, channels: int, size: int) -> Encoder:
    """Build an encoder from outside with those keywords that it has; a pass of two blank images gives its width."""
    parameters, keywords = inspect.signature(factory).parameters, {"channels": channels, "size": size}
    try:
        module = factory(**{key: value for key, value in keywords.items() if key in parameters})
        with torch.no_grad():
            features = module.eval()(torch.zeros(2, channels, size, size))
    except ConfigError:
        raise
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        images = f"images [N, {channels}, {size}, {size}]"
        raise ValueError(f"encoder {name} does not take {images}: {reason(error)}") from error
    shape = list(getattr(features, "shape", ()))
    if len(shape) != 2 or shape[0] != 2:
        raise ValueError(
            f"encoder {name} must give features [N, d], got {shape or type(features).__name__} of 2 images"
        )
    return Encoder(shape[1], OrderedDict(body=module.train()))


def build_encoder(name: str, *, channels: int, size: int, stem: Stem = "auto") -> Encoder:
    """Build an encoder for images of C channels and `size` pixels a side, initialized by torch's global generator."""
    info = encoder_info(name)
    if size < MIN_SIZE:
        raise ValueError(
            f"encoder {name} needs {MIN_SIZE} pixels a side, got {size}: enlarge the images with data.size"
        )
    if info.has_stem:
        return _normed(info.build(channels=channels, size=size, stem=stem), name)
    if stem != "auto":
        raise ValueError(f"encoder {name} has one set of first layers, got stem={stem}: only ResNets have two")
    return _normed(info.build(channels=channels, size=size), name)


def _normed(model: Module, encoder: str) -> Module:
    return grouped(model) if encoder in ENCODERS and encoder.endswith(GROUPED) else model


def build_model(
    encoder: str,
    *,
    head: str = "flesd",
    projection_dim: int | None = None,
    hidden: int | None = None,
    more_heads: Callable[[int, int], Mapping[str, nn.Module]] = lambda feature_dim, projection_dim: {},
    channels: int,
    size: int,
    stem: Stem = "auto",
) -> Model:
    """Build an encoder with a head; state-dict keys start with "encoder.", "projector." or the name of another head.

    `more_heads` makes an objective's other trained parts by name from the widths of features and projections. Widths that
    are None are the head's defaults.
    """
    body = build_encoder(encoder, channels=channels, size=size, stem=stem)
    projector = build_head(head, body.feature_dim, out=projection_dim, hidden=hidden)
    width = head_width(HEADS[head], body.feature_dim, projection_dim)
    return _normed(Model(body, projector, width, more_heads(body.feature_dim, width), encoder), encoder)


__all__ = [
    "ENCODERS",
    "HEADS",
    "Encoder",
    "EncoderInfo",
    "Model",
    "build_encoder",
    "build_head",
    "build_model",
    "encoder_info",
]
