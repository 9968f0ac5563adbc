import pytest
import torch
from torch import nn

from rayfed_ssl.models import HEADS, build_head, build_model


def layers(name: str, in_features: int) -> list[str]:
    head = build_head(name, in_features)
    parts = list(head) if isinstance(head, nn.Sequential) else [head]
    return [
        f"{m.in_features}-{m.out_features}{'' if m.bias is not None else ' no bias'}"
        if isinstance(m, nn.Linear)
        else type(m).__name__
        for m in parts
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("flesd", ["24-24", "ReLU", "24-128"]),
        ("simclr-bn", ["24-24 no bias", "BatchNorm1d", "ReLU", "24-128"]),
        ("byol", ["24-4096", "BatchNorm1d", "ReLU", "4096-2048"]),
        ("byol-predictor", ["24-4096", "BatchNorm1d", "ReLU", "4096-2048"]),
        ("fcl", ["24-24", "ReLU", "24-128"]),
        ("linear", ["24-256"]),
        ("orchestra-spectral", ["Sequential", "UnitLength", "512-128"]),
        ("none", ["Identity"]),
    ],
)
def test_head_has_its_papers_layers(name: str, expected: list[str]) -> None:
    assert layers(name, 24) == expected


@pytest.mark.parametrize(("name", "chosen"), [*((name, None) for name in HEADS), ("flesd", 17), ("none", 256)])
def test_projections_have_the_stated_width(name: str, chosen: int | None) -> None:
    model = build_model("cnn", head=name, projection_dim=chosen, channels=1, size=8)
    features, projections = model(torch.randn(3, 1, 8, 8))
    assert features.shape == (3, 256)
    assert projections.shape == (3, model.projection_dim)
    assert model.projection_dim == (chosen or HEADS[name].out or 256)


def test_an_impossible_width_is_refused() -> None:
    with pytest.raises(ValueError, match="passes 256 features through, got projection_dim=128"):
        build_model("cnn", head="none", projection_dim=128, channels=1, size=8)


def test_outputs_are_the_encoders_and_the_projectors_and_float32_under_autocast() -> None:
    model = build_model("cnn", channels=1, size=8).eval()
    images = torch.randn(3, 1, 8, 8)
    features, projections = model(images)
    assert torch.equal(features, model.encoder(images))
    assert torch.equal(projections, model.projector(features))
    with torch.autocast("cpu", torch.bfloat16):
        assert {output.dtype for output in model(images)} == {torch.float32}
