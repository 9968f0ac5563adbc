"""Encoders of torchvision and timm by name, `torchvision:resnet18` or `timm:vit_tiny_patch16_224`, without classifiers."""

from collections.abc import Callable
from typing import Any

from torch import nn

from rayfed_ssl.errors import ConfigError, nearest, reason

LIBRARIES = ("torchvision", "timm")


def is_library(encoder: str) -> bool:
    """Whether an encoder's name is that of a library's model."""
    return encoder.partition(":")[0] in LIBRARIES and ":" in encoder


def check(encoder: str) -> None:
    """Refuse a name that its library does not know, and a library that is not installed."""
    library, _, name = encoder.partition(":")
    if library == "torchvision":
        from torchvision import models

        names = models.list_models(module=models)
        if name not in names:
            raise ConfigError(f"torchvision has no model {name!r}{nearest(name, names)}")
    elif not (timm := _timm()).is_model(name):
        near = nearest(name, timm.list_models()) if len(name) > 2 else ""
        raise ConfigError(f"timm has no model {name!r}{near if 'mean' in near else ': see timm.list_models()'}")


def build(encoder: str, *, channels: int, size: int, pretrained: bool = False) -> nn.Module:
    """Build a model without its classifier, with its library's published weights or initialized at random.

    Channels and size go to the library where it takes them: timm's models take both, torchvision's ViTs the size.

    Raises:
        ConfigError: torchvision's model and images without 3 channels, a model whose last layer is not linear, or weights
            that cannot be fetched.
    """
    library, _, name = encoder.partition(":")
    return (_torchvision if library == "torchvision" else _of_timm)(name, channels, size, pretrained)


def _torchvision(name: str, channels: int, size: int, pretrained: bool) -> nn.Module:
    from torchvision import models

    if channels != 3:
        raise ConfigError(
            f"model.encoder=torchvision:{name} takes images with 3 channels, got {channels}: set data.channels=3, or take "
            "timm, which adapts the first layer"
        )
    sized: dict[str, Any] = {"image_size": size} if name.startswith("vit_") else {}
    weights = "DEFAULT" if pretrained else None
    model: nn.Module = _fetched(f"torchvision:{name}", lambda: models.get_model(name, weights=weights, **sized))
    for auxiliary in ("aux_logits", "aux1", "aux2", "AuxLogits"):  # of GoogLeNet and Inception, which train with tuples
        if hasattr(model, auxiliary):
            setattr(model, auxiliary, None)
    linear = [path for path, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise ConfigError(f"model.encoder=torchvision:{name} has no linear classifier to leave out: take another")
    parent, _, last = linear[-1].rpartition(".")
    setattr(model.get_submodule(parent), last, nn.Identity())
    return model


def _of_timm(name: str, channels: int, size: int, pretrained: bool) -> nn.Module:
    timm = _timm()
    published = timm.get_pretrained_cfg(name)
    sized = {"img_size": size} if published is not None and published.fixed_input_size else {}
    model: nn.Module = _fetched(
        f"timm:{name}",
        lambda: timm.create_model(name, pretrained=pretrained, num_classes=0, in_chans=channels, **sized),
    )
    return model


def _fetched(encoder: str, make: Callable[[], Any]) -> Any:
    """Make a model; libraries raise whatever their connections do where weights are not there."""
    try:
        return make()
    except ValueError as error:  # ViTs of torchvision, whose weights belong to one size
        raise ConfigError(
            f"the weights of model.encoder={encoder} do not fit these images ({error}): set data.size as they need it"
        ) from error
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"the weights of model.encoder={encoder} cannot be fetched ({reason(error)}): connect this machine once, or "
            "download them as a safetensors file elsewhere and set model.start=FILE in place of model.pretrained"
        ) from error


def _timm() -> Any:
    try:
        import timm
    except ModuleNotFoundError:
        raise ConfigError(
            "encoders of timm need timm, which is not installed: pip install 'rayfed-ssl[timm]'"
        ) from None
    return timm
