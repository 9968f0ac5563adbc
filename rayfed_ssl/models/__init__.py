"""Encoders by name, one explicit registry, and the models made of them."""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from torch import nn

from rayfed_ssl import plugins
from rayfed_ssl.models import encoders
from rayfed_ssl.models.encoders import Encoder, Stem
from rayfed_ssl.models.heads import HEADS, HeadSpec, Model, build_head, head_width
from rayfed_ssl.models.resnet import Depth


@dataclass(frozen=True)
class EncoderInfo:
    """An encoder that can be named.

    Attributes:
        name: Name in `ENCODERS`.
        description: One line for listings.
        source: Where its layers are defined.
        feature_dim: Width d of the features, whatever the image; None for one from outside, until it is built.
        build: Takes the keywords channels and size, and stem where `has_stem`.
        has_stem: Whether its first layers come in a variant for small and one for large images.
    """

    name: str
    description: str
    source: str
    feature_dim: int | None
    build: Callable[..., Encoder]
    has_stem: bool = False


def _resnet(depth: Depth, feature_dim: int) -> EncoderInfo:
    return EncoderInfo(
        f"resnet{depth}",
        f"ResNet-{depth}, first layers for small images up to 64 pixels",
        "He et al. 2016, as in torchvision, edited as in FLESD's code",
        feature_dim,
        partial(encoders.resnet, depth),
        has_stem=True,
    )


ENCODERS: Mapping[str, EncoderInfo] = MappingProxyType(
    {
        info.name: info
        for info in (
            EncoderInfo("cnn", "four convolutions, made for CPUs", "this project", 256, encoders.cnn),
            _resnet(18, 512),
            _resnet(34, 512),
            _resnet(50, 2048),
            EncoderInfo(
                "cnn5", "FedCA's 5-layer CNN; its layers are our guess", "Zhang et al. 2020", 2048, encoders.cnn5
            ),
            EncoderInfo("vgg9", "VGG-9 without batch-norm", "FedMA and NIID-Bench (code)", 512, encoders.vgg9),
            EncoderInfo(
                "alexnet",
                "AlexNet for small images, without batch-norm",
                "bearpaw/pytorch-classification (code)",
                256,
                encoders.alexnet,
            ),
        )
    }
)


def encoder_info(name: str) -> EncoderInfo:
    """Find an encoder by name, also one from outside: a function or class that gives an `nn.Module`.

    Raises:
        ConfigError: There is none.
    """
    target = plugins.find("encoder", name, ENCODERS)
    if isinstance(target, EncoderInfo):
        return target
    return EncoderInfo(name, plugins.summary(target), name, None, partial(_outside, name, target))


def _outside(name: str, factory: Callable[..., nn.Module], *, channels: int, size: int) -> Encoder:
    """Build an encoder from outside; a forward pass of two blank images gives its width.

    Args:
        name: As in the configuration.
        factory: Gets those of the keywords channels and size that it has.
        channels: C.
        size: S.

    Raises:
        ValueError: It gives no module, or no features [N, d].
    """
    keywords = {"channels": channels, "size": size}.items()
    parameters = inspect.signature(factory).parameters
    module = factory(**{key: value for key, value in keywords if key in parameters})
    if not isinstance(module, nn.Module):
        raise ValueError(f"encoder {name} must give a torch.nn.Module, got {type(module).__name__}")
    module.eval()
    try:
        with torch.no_grad():
            features = module(torch.zeros(2, channels, size, size))
    except (RuntimeError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"encoder {name} does not take images [N, {channels}, {size}, {size}]: {reason}") from error
    shape = list(getattr(features, "shape", ()))
    if len(shape) != 2 or shape[0] != 2:
        raise ValueError(
            f"encoder {name} must give features [N, d], got {shape or type(features).__name__} of 2 images"
        )
    return Encoder(shape[1], OrderedDict(body=module.train()))


def build_encoder(name: str, *, channels: int, size: int, stem: Stem = "auto") -> Encoder:
    """Build an encoder, freshly initialized by torch's global generator.

    Args:
        name: A key of `ENCODERS`.
        channels: C of the images.
        size: Their side in pixels, at least 8.
        stem: First layers of a ResNet; "auto" takes "cifar" up to 64 pixels and "imagenet" above.

    Raises:
        ValueError: The name is unknown, the image is too small, or the encoder has no such stem.
    """
    info = encoder_info(name)
    if channels < 1 or size < encoders.MIN_SIZE:
        raise ValueError(
            f"encoder {name} needs at least 1 channel and {encoders.MIN_SIZE} pixels a side, got {channels} and {size}: "
            "enlarge the images with data.size"
        )
    if stem not in ("auto", "cifar", "imagenet"):
        raise ValueError(f"unknown stem {stem!r}: take auto, cifar or imagenet")
    if info.has_stem:
        return info.build(channels=channels, size=size, stem=stem)
    if stem != "auto":
        raise ValueError(f"encoder {name} has one set of first layers, got stem={stem}: only ResNets have two")
    return info.build(channels=channels, size=size)


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

    Args:
        encoder: A key of `ENCODERS`.
        head: A key of `HEADS`.
        projection_dim: Width of the projections; None takes the head's own.
        hidden: Width of the head's hidden layer; None takes the head's own.
        more_heads: Makes an objective's other trained parts by name from the widths of features and projections.
        channels: C of the images.
        size: Their side in pixels.
        stem: First layers of a ResNet.

    Raises:
        ValueError: As in `build_encoder` and `build_head`.
    """
    body = build_encoder(encoder, channels=channels, size=size, stem=stem)
    projector = build_head(head, body.feature_dim, out=projection_dim, hidden=hidden)
    width = head_width(HEADS[head], body.feature_dim, projection_dim)
    return Model(body, projector, width, more_heads(body.feature_dim, width), encoder)


__all__ = [
    "ENCODERS",
    "HEADS",
    "Encoder",
    "EncoderInfo",
    "HeadSpec",
    "Model",
    "build_encoder",
    "build_head",
    "build_model",
    "encoder_info",
]
