"""FedU's and FedEMA's divergence, share and mixing against naive loops."""

import pytest
import torch
from torch import Tensor

from rayfed_ssl.methods.fedema import autoscale, mix, own_share
from rayfed_ssl.methods.fedu import convolutions, encoder_divergence
from rayfed_ssl.models import build_model
from rayfed_ssl.trees import Weights, digest
from tests.methods.fedu import naive
from tests.tensors import EXACT

SHAPES = {
    "encoder.conv1.weight": (3, 2, 3, 3),
    "encoder.conv1.bias": (3,),
    "encoder.bn1.weight": (3,),
    "encoder.bn1.running_mean": (3,),
    "encoder.layer1.0.conv2.weight": (4, 3, 1, 1),
    "encoder.layer1.0.downsample.0.weight": (4, 2, 1, 1),
    "encoder.fc1.weight": (5, 4),
    "projector.0.weight": (6, 5),
    "projector.1.running_var": (6,),
    "predictor.0.weight": (2, 6),
    "predictor.1.running_mean": (2,),
    "predictor.conv.weight": (2, 2, 1, 1),
}
NAMED = ["encoder.conv1.weight", "encoder.layer1.0.conv2.weight"]


def weights(seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    drawn = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()}
    return drawn | {"encoder.bn1.num_batches_tracked": torch.tensor(seed)}


def flat(tree: Weights) -> dict[str, list[float]]:
    return {name: value.flatten().tolist() for name, value in tree.items()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_divergence_is_the_mean_distance_of_the_encoders_convolutions(dtype: torch.dtype):
    """Distances of single-precision weights are summed in double."""
    before, after = ({name: value.to(dtype) for name, value in weights(seed).items()} for seed in (1, 2))
    expected = naive.divergence(flat(before), flat(after), NAMED)
    assert encoder_divergence(before, after) == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize(
    ("encoder", "number"), [("cnn", 4), ("cnn5", 5), ("vgg9", 6), ("alexnet", 5), ("resnet18", 17), ("resnet8", 7)]
)
def test_convolutions_of_an_encoder_are_found_without_shortcuts(encoder: str, number: int):
    with torch.device("meta"):
        model = build_model(encoder, channels=3, size=32)
    assert len(convolutions(model.state_dict())) == number


@pytest.mark.parametrize("moved", [0.3, 1.7, 40.0])
def test_first_measured_share_is_tau(moved: float):
    assert naive.share(naive.scale(0.7, moved), moved) == pytest.approx(0.7, rel=EXACT)
    assert own_share(autoscale(0.7, moved), moved) == pytest.approx(0.7, rel=EXACT)


@pytest.mark.parametrize("moved", [0.1, 0.5, 0.7, 0.72, 3.0])
def test_later_shares_follow_the_divergence_up_to_one(moved: float):
    scale = naive.scale(0.7, 0.5)
    assert own_share(autoscale(0.7, 0.5), moved) == pytest.approx(naive.share(scale, moved), rel=EXACT)


def test_a_client_that_has_not_moved_has_no_scale_and_no_share():
    assert autoscale(0.7, 0.0) is None
    assert own_share(None, 0.0) == 0
    assert own_share(None, 2.0) == 0


def parameters() -> list[str]:
    return [name for name in SHAPES if "running" not in name]


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.7, 1.0])
def test_parameters_are_mixed_by_share(share: float):
    own, received = weights(1), weights(2)
    mixture = mix(own, received, share)
    assert set(mixture) == set(received)
    for name in parameters():
        expected = naive.mixed(flat(own)[name], flat(received)[name], share)
        torch.testing.assert_close(
            mixture[name].flatten(), torch.tensor(expected, dtype=torch.float64), rtol=EXACT, atol=EXACT
        )


@pytest.mark.parametrize(("share", "predictors"), [(0.2, 2), (0.5, 2), (0.51, 1), (1.0, 1)])
def test_statistics_are_global_but_the_predictors_come_from_the_larger_share(share: float, predictors: int):
    mixture = mix(weights(1), weights(2), share)
    for name in ("encoder.bn1.running_mean", "projector.1.running_var", "encoder.bn1.num_batches_tracked"):
        assert torch.equal(mixture[name], weights(2)[name])
    assert torch.equal(mixture["predictor.1.running_mean"], weights(predictors)["predictor.1.running_mean"])


def test_an_averaged_target_is_not_mixed():
    own, received = ({"encoder.conv1.weight": torch.ones(1) * n, "target.encoder.w": torch.ones(2) * n} for n in (1, 2))
    assert torch.equal(mix(own, received, 0.9)["target.encoder.w"], received["target.encoder.w"])


def test_a_share_of_nothing_gives_the_global_bits_and_of_all_the_own():
    own, received = weights(1), weights(2)
    zeros: dict[str, Tensor] = {name: -torch.zeros_like(value) for name, value in received.items()}
    assert digest(mix(own, zeros, 0.0)) == digest(zeros)
    whole = mix(own, received, 1.0)
    for name in parameters():
        assert torch.equal(whole[name], own[name])
