"""Encoders: images [N, C, S, S] to features [N, d], for any C and any S from 8 pixels on.

The last feature maps are pooled adaptively, so the width d never depends on the image. Layers carry torchvision's names
where it has them: a torchvision checkpoint without its `fc.*` entries loads as it is.

Weights are initialized as PyTorch and torchvision do, from torch's global generator.
"""

from collections import OrderedDict
from typing import Literal

from torch import nn

from rayfed_ssl.models.batch_norm import BatchNorm2d
from rayfed_ssl.models.pooling import AdaptiveAvgPool2d
from rayfed_ssl.models.resnet import BasicBlock, Depth, resnet_layers

Stem = Literal["auto", "cifar", "imagenet"]

MIN_SIZE = 8
"""Smallest image side in pixels: below it VGG-9's three halvings leave nothing; one rule for all encoders."""

CIFAR_STEM_MAX_SIZE = 64
"""Largest side that gets the small-image stem: FLESD's code uses it for Tiny-ImageNet's 64 pixels too."""


class Encoder(nn.Sequential):
    """A chain of layers that ends in features [N, feature_dim]."""

    def __init__(self, feature_dim: int, layers: "OrderedDict[str, nn.Module]") -> None:
        super().__init__(layers)
        self.feature_dim = feature_dim


def stem_for(size: int, stem: Stem) -> Literal["cifar", "imagenet"]:
    """Choose a ResNet's first layers: by the image's size where nothing else is asked for."""
    if stem == "auto":
        return "cifar" if size <= CIFAR_STEM_MAX_SIZE else "imagenet"
    return stem


def resnet(depth: Depth, *, channels: int, size: int, stem: Stem) -> Encoder:
    """Build a ResNet without its classifier; for the "cifar" stem it is edited as in FLESD's code."""
    layers = resnet_layers(depth)
    feature_dim = 2048 if depth == 50 else 512
    if stem_for(size, stem) == "cifar":
        layers["conv1"] = nn.Conv2d(channels, 64, 3, stride=1, padding=1, bias=False)
        layers["maxpool"] = nn.Identity()
    elif channels != 3:
        layers["conv1"] = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    layers["flatten"] = nn.Flatten()
    return Encoder(feature_dim, layers)


def resnet8(*, channels: int, size: int) -> Encoder:
    """Build a ResNet of three basic blocks for CPUs: 64, 128 and 256 channels, each of stride 2, 256 features.

    It learns more slowly than `cnn`, but its random weights give features that tell less: after 30 epochs of SimCLR on
    20,000 CIFAR-10 photographs it lies further above its start (docs/LOG.md).
    """
    kernel, stride = (4, 2) if size >= 16 else (3, 1)
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, 32, kernel, stride, padding=1, bias=False),
        bn1=BatchNorm2d(32),
        relu=nn.ReLU(inplace=True),
    )
    for number, before, width in ((1, 32, 64), (2, 64, 128), (3, 128, 256)):
        layers[f"layer{number}"] = BasicBlock(before, width, stride=2)
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    return Encoder(256, layers)


def cnn(*, channels: int, size: int) -> Encoder:
    """Build a small network for runs on CPUs: four convolutions with batch-norm, 256 features.

    From 16 pixels on the first convolution halves the resolution: larger maps cost more than they add. Max-pools stand
    before batch-norm, which then sees a quarter of the pixels; average pools and strides are faster and worse by 3 and 4
    points of linear accuracy after SimCLR on CIFAR-10.
    """
    kernel, stride = (4, 2) if size >= 16 else (3, 1)
    stem = nn.Conv2d(channels, 32, kernel, stride, padding=1, bias=False)
    layers: OrderedDict[str, nn.Module] = OrderedDict(conv1=stem, bn1=BatchNorm2d(32), relu1=nn.ReLU(inplace=True))
    for number, before, width in ((2, 32, 64), (3, 64, 128), (4, 128, 256)):
        layers[f"conv{number}"] = nn.Conv2d(before, width, 3, padding=1, bias=False)
        if number < 4:
            layers[f"pool{number}"] = nn.MaxPool2d(2)
        layers[f"bn{number}"] = BatchNorm2d(width)
        layers[f"relu{number}"] = nn.ReLU(inplace=True)
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    return Encoder(256, layers)


def cnn5(*, channels: int, size: int) -> Encoder:
    """Build FedCA's "5-layer CNN" with 2048 features; the paper names the layers nowhere, so this is our guess.

    Assumed: AlexNet's five convolutions as 3x3 kernels for small images, pooled after the first, second and fifth, with
    batch-norm as in DeepCluster (2018), and the last maps averaged to 2x2 x 512 = 2048. No linear layer.
    """
    widths, pooled = (64, 192, 384, 256, 512), (1, 2, 5)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (before, width) in enumerate(zip((channels, *widths), widths, strict=False), start=1):
        layers[f"conv{number}"] = nn.Conv2d(before, width, 3, padding=1, bias=False)
        layers[f"bn{number}"] = BatchNorm2d(width)
        layers[f"relu{number}"] = nn.ReLU(inplace=True)
        if number in pooled:
            layers[f"pool{number}"] = nn.MaxPool2d(2)
    layers["avgpool"] = AdaptiveAvgPool2d(2)
    layers["flatten"] = nn.Flatten()
    return Encoder(2048, layers)


def vgg9(*, channels: int, size: int) -> Encoder:
    """Build VGG-9 as FedMA's code and NIID-Bench do ("ModerateCNN"), without its last linear layer, 512 features.

    Deviations: the last maps are averaged to 4x4, which changes nothing at 32 pixels and makes other sizes possible; the
    dropout before the classifier is left out.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    widths = (32, 64, 128, 128, 256, 256)
    for number, (before, width) in enumerate(zip((channels, *widths), widths, strict=False), start=1):
        layers[f"conv{number}"] = nn.Conv2d(before, width, 3, padding=1)
        layers[f"relu{number}"] = nn.ReLU(inplace=True)
        if number % 2 == 0:
            layers[f"pool{number}"] = nn.MaxPool2d(2)
        if number == 4:
            layers["dropout4"] = nn.Dropout2d(0.05)
    layers["avgpool"] = AdaptiveAvgPool2d(4)
    layers["flatten"] = nn.Flatten()
    layers["dropout6"] = nn.Dropout(0.1)
    layers |= {"fc1": nn.Linear(256 * 16, 512), "relu7": nn.ReLU(inplace=True)}
    layers |= {"fc2": nn.Linear(512, 512), "relu8": nn.ReLU(inplace=True)}
    return Encoder(512, layers)


def alexnet(*, channels: int, size: int) -> Encoder:
    """Build AlexNet for 32x32 images as bearpaw/pytorch-classification does, 256 features, no batch-norm.

    Deviations, none of which matters at 32 pixels: later max-pools round up, so that maps of 3 or 1 pixels pass, and the
    last maps are averaged.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, 64, 11, stride=4, padding=5),
        relu1=nn.ReLU(inplace=True),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(64, 192, 5, padding=2),
        relu2=nn.ReLU(inplace=True),
        pool2=nn.MaxPool2d(2, ceil_mode=True),
    )
    for number, before, width in ((3, 192, 384), (4, 384, 256), (5, 256, 256)):
        layers[f"conv{number}"] = nn.Conv2d(before, width, 3, padding=1)
        layers[f"relu{number}"] = nn.ReLU(inplace=True)
    layers["pool5"] = nn.MaxPool2d(2, ceil_mode=True)
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    return Encoder(256, layers)
