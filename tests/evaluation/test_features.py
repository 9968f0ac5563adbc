import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rayfed_ssl.evaluation.features import check_labeled, extract_features
from rayfed_ssl.models import build_encoder
from rayfed_ssl.models.precision import Precision

torch.set_num_threads(1)

FP32 = Precision()


def unit(images: Tensor) -> Tensor:
    return images.float() / 255


def encoder() -> nn.Module:
    torch.manual_seed(0)
    built = build_encoder("cnn", channels=2, size=16)
    built(torch.randn(8, 2, 16, 20))  # running statistics other than their initial ones
    return built


def images(num: int = 7) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (num, 2, 16, 20), dtype=np.uint8)


def test_features_equal_a_plain_loop() -> None:
    body = encoder()
    features = extract_features(body, images(), unit, batch=3, device="cpu", precision=FP32)
    body.eval()
    with torch.no_grad():
        expected = torch.cat([body(torch.from_numpy(part) / 255) for part in np.split(images(), [3, 6])])
    assert features.shape == (7, 256)
    assert torch.equal(features, expected)


def extract(body: nn.Module, pixels: np.ndarray | Tensor, precision: Precision = FP32) -> Tensor:
    return extract_features(body, pixels, unit, device="cpu", precision=precision)


def test_encoder_is_left_as_it_was() -> None:
    body = encoder().train()
    body.get_submodule("bn2").eval()
    modes = {name: part.training for name, part in body.named_modules()}
    buffers = {name: buffer.clone() for name, buffer in body.named_buffers()}
    extract(body, images())
    assert {name: part.training for name, part in body.named_modules()} == modes
    assert not modes["bn2"]
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in body.named_buffers())


def test_no_images_are_refused() -> None:
    with pytest.raises(ValueError, match="there are no images"):
        extract(encoder(), images(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_labels": torch.tensor([0, 1, 3, 0])}, r"train labels must lie in 0\.\.2, got 0\.\.3"),
        ({"test_labels": torch.tensor([-1, 0])}, r"test labels must lie in 0\.\.2, got -1\.\.0"),
        ({"test": torch.full((2, 3), float("nan"))}, "test features are not finite: the encoder diverged"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(change: dict[str, Tensor], message: str) -> None:
    good = {
        "train": torch.randn(4, 3),
        "train_labels": torch.tensor([0, 1, 2, 0]),
        "test": torch.randn(2, 3),
        "test_labels": torch.tensor([1, 1]),
    }
    check_labeled(**good, num_classes=3)
    with pytest.raises(ValueError, match=message):
        check_labeled(**good | change, num_classes=3)
