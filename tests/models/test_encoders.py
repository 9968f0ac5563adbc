import math
from typing import Any

import pytest
import torch
from torch import nn

from rayfed_ssl.models import ENCODERS, Encoder, build_encoder
from rayfed_ssl.models.skip_init import Undrawn
from rayfed_ssl.models.vit import Block, patch_size, positions
from rayfed_ssl.trees import digest

SIZES = (8, 28, 32, 64, 84, 224)


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ENCODERS)
def test_every_encoder_gives_its_feature_dim_at_every_size(name: str, size: int, channels: int) -> None:
    with torch.device("meta"):  # shapes without arithmetic
        encoder = build_encoder(name, channels=channels, size=size)
        features = encoder(torch.empty(3, channels, size, size))
    assert isinstance(encoder, Encoder)
    assert features.shape == (3, encoder.feature_dim)


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 32)])
@pytest.mark.parametrize("name", ENCODERS)
def test_every_encoder_learns_from_small_images(name: str, channels: int, size: int) -> None:
    torch.manual_seed(0)
    encoder = build_encoder(name, channels=channels, size=size)
    features = encoder(torch.randn(4, channels, size, size))
    features.square().sum().backward()
    assert features.isfinite().all()
    assert features.var(0).max() > 0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


# torchvision documents 11,689,512, 21,797,672 and 25,557,032 parameters; its classifier of 1,000 classes has 513,000 or
# 2,049,000 of them, and a 3x3 stem has 7,680 fewer than a 7x7 one. FedMA's VGG-9 has 3,491,530 and bearpaw's AlexNet
# 2,472,266 with their classifiers of 10 classes (5,130 and 2,570).
@pytest.mark.parametrize(
    ("name", "size", "count"),
    [
        ("resnet18", 32, 11_689_512 - 513_000 - 7_680),
        ("resnet34", 32, 21_797_672 - 513_000 - 7_680),
        ("resnet50", 32, 25_557_032 - 2_049_000 - 7_680),
        ("resnet18", 224, 11_689_512 - 513_000),
        ("vgg9", 32, 3_491_530 - 5_130),
        ("alexnet", 32, 2_472_266 - 2_570),
        # timm's ViTs for 32 pixels in patches of 4 have a class token and its position besides, of one width each.
        ("vit-tiny", 32, 5_360_832 - 2 * 192),
        ("vit-small", 32, 21_338_496 - 2 * 384),
        ("cnn", 32, 4 * 4 * 3 * 32 + 9 * (32 * 64 + 64 * 128 + 128 * 256) + 2 * (32 + 64 + 128 + 256)),
        (
            "resnet8",
            32,
            4 * 4 * 3 * 32 + 2 * 32 + sum(9 * (w * w // 2 + w * w) + w * w // 2 + 6 * w for w in (64, 128, 256)),
        ),
    ],
)
def test_parameters_are_as_many_as_the_source_has(name: str, size: int, count: int) -> None:
    with torch.device("meta"):
        assert parameters(build_encoder(name, channels=3, size=size)) == count


@pytest.mark.parametrize(
    ("size", "stem", "kernel"), [(64, "auto", 3), (65, "auto", 7), (32, "imagenet", 7), (84, "cifar", 3)]
)
def test_resnet_stem_follows_size_and_wish(size: int, stem: str, kernel: int) -> None:
    with torch.device("meta"):
        encoder = build_encoder("resnet18", channels=3, size=size, stem=stem)  # type: ignore[arg-type]
    conv, pool = encoder.get_submodule("conv1"), encoder.get_submodule("maxpool")
    assert isinstance(conv, nn.Conv2d)
    assert conv.kernel_size == (kernel, kernel)
    assert conv.stride == ((1, 1) if kernel == 3 else (2, 2))
    assert conv.padding == (kernel // 2, kernel // 2)
    assert conv.bias is None
    assert isinstance(pool, nn.Identity if kernel == 3 else nn.MaxPool2d)


@pytest.mark.parametrize(("depth", "stem"), [(18, "cifar"), (34, "imagenet"), (50, "cifar")])
def test_resnets_draw_and_compute_what_torchvisions_edited_ones_do(depth: int, stem: str) -> None:
    import torchvision

    torch.manual_seed(0)
    reference = getattr(torchvision.models, f"resnet{depth}")(num_classes=1)
    if stem == "cifar":
        reference.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        reference.maxpool = nn.Identity()
    reference.fc = nn.Identity()
    drawn = torch.get_rng_state()
    torch.manual_seed(0)
    encoder = build_encoder(f"resnet{depth}", channels=3, size=16, stem=stem)  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), drawn)
    images, gradients = torch.randn(2, 3, 16, 16), []
    for network in (encoder, reference):
        network(images).square().sum().backward()
        gradients.append({name: parameter.grad for name, parameter in network.named_parameters()})
    assert digest(gradients[0]) == digest(gradients[1])
    assert digest(dict(encoder.state_dict())) == digest(dict(reference.state_dict()))  # the running statistics too


def load(target: nn.Sequential, source: nn.Module) -> nn.Sequential:
    target.load_state_dict(dict(zip(target.state_dict(), source.state_dict().values(), strict=True)))
    return target.eval()


def conv(before: int, width: int, kernel: int = 3, stride: int = 1, padding: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(before, width, kernel, stride, padding), nn.ReLU()]


POOL = nn.MaxPool2d(2)
SOURCES = {
    "vgg9": nn.Sequential(
        *(*conv(3, 32), *conv(32, 64), POOL, *conv(64, 128), *conv(128, 128), POOL),
        *(*conv(128, 256), *conv(256, 256), POOL, nn.Flatten()),
        *(nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()),
    ),
    "alexnet": nn.Sequential(
        *(*conv(3, 64, 11, 4, 5), POOL, *conv(64, 192, 5, 1, 2), POOL),
        *(*conv(192, 384), *conv(384, 256), *conv(256, 256), POOL, nn.Flatten()),
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_an_encoder_is_its_source_at_32_pixels(name: str) -> None:
    encoder = build_encoder(name, channels=3, size=32).eval()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(encoder(images), load(SOURCES[name], encoder)(images))


@pytest.mark.parametrize(
    ("size", "patch"), [(8, 2), (15, 3), (24, 3), (28, 4), (32, 4), (64, 8), (84, 12), (96, 12), (224, 16)]
)
def test_the_patch_of_a_vit_follows_the_image(size: int, patch: int) -> None:
    assert patch_size(size) == patch
    encoder = build_encoder("vit-micro", channels=1, size=size)
    assert encoder.get_submodule("patches")(torch.zeros(2, 1, size, size)).shape == (2, (size // patch) ** 2, 128)


@pytest.mark.parametrize("size", [11, 37])
def test_a_side_that_no_patch_divides_is_refused(size: int) -> None:
    with pytest.raises(
        ValueError, match=f"no patch of 2 to 16 pixels divides images of {size} pixels a side: set data"
    ):
        build_encoder("vit-tiny", channels=3, size=size)


def test_positions_are_maes() -> None:
    """Entry by entry, from the definition: the column's waves, then the row's; sines, then cosines."""
    side, width = 3, 8
    ours = positions(side, width)[0]
    for row in range(side):
        for column in range(side):
            expected = [
                wave(place / 10000 ** (i / 2))
                for place in (column, row)
                for wave in (math.sin, math.cos)
                for i in (0, 1)
            ]
            assert ours[row * side + column].tolist() == pytest.approx(expected, rel=1e-6)


def test_a_vits_blocks_are_torchs() -> None:
    """Against nn.TransformerEncoderLayer with the same weights, in float64."""
    torch.manual_seed(0)
    block = Block(12, 3).double()
    layer = nn.TransformerEncoderLayer(
        12, 3, 48, dropout=0, activation="gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True
    ).double()
    names = {
        "norm1": "norm1",
        "norm2": "norm2",
        "attention.qkv": "self_attn.in_proj_",
        "attention.project": "self_attn.out_proj",
        "mlp.0": "linear1",
        "mlp.2": "linear2",
    }
    state = {
        f"{theirs}{'' if theirs.endswith('_') else '.'}{kind}": block.get_submodule(ours).get_parameter(kind)
        for ours, theirs in names.items()
        for kind in ("weight", "bias")
    }
    layer.load_state_dict(state)
    tokens = torch.randn(2, 5, 12, dtype=torch.float64)
    torch.testing.assert_close(block(tokens), layer(tokens), rtol=1e-12, atol=1e-12)


def test_vgg9_keeps_its_dropout() -> None:
    encoder = build_encoder("vgg9", channels=3, size=32)
    rates = [(type(m), m.p) for m in encoder if isinstance(m, nn.Dropout | nn.Dropout2d)]
    assert rates == [(nn.Dropout2d, 0.05), (nn.Dropout, 0.1)]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("resnet19", {}, "unknown encoder 'resnet19': did you mean 'resnet18'"),
        ("transformer-xl", {}, "choose from alexnet, cnn, cnn-group, cnn5, resnet18"),
        ("cnn", {"stem": "cifar"}, "only ResNets have two"),
        *((name, {"size": 7}, f"encoder {name} needs 8 pixels a side, got 7: enlarge") for name in ENCODERS),
    ],
)
def test_what_cannot_be_built_is_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_encoder(name, **{"channels": 3, "size": 32, **settings})


@pytest.mark.parametrize("name", ENCODERS)
def test_undrawn_encoders_move_no_generator_and_differ_in_nothing_else(name: str) -> None:
    drawn, before = build_encoder(name, channels=3, size=32), torch.get_rng_state()
    with Undrawn():
        undrawn = build_encoder(name, channels=3, size=32)
    assert torch.equal(torch.get_rng_state(), before)
    assert repr(undrawn) == repr(drawn)
    undrawn.load_state_dict(drawn.state_dict())
    assert digest(dict(undrawn.state_dict())) == digest(dict(drawn.state_dict()))
