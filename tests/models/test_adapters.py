"""Adapters by themselves: equations and names of peft, which layers they find, what of an encoder trains."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from rayfed_ssl.models import build_encoder
from rayfed_ssl.models.adapters import Adapters, Bias, HeadAlone, Lora, Norms
from rayfed_ssl.models.vit import blocks

PEFT = load_file(Path(__file__).parent / "peft.safetensors")
"""What peft 0.21.2 makes of `blocks(8, 1, 2)` with r=3, lora_alpha=6 and random B: plain weights, the adapters' file that
`save_pretrained` writes, an input and its output, gradients of the output's summed squares, and merged weights.
"""


def of_peft(kind: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{kind}."): value for name, value in PEFT.items() if name.startswith(f"{kind}.")}


def adapters_of_peft() -> dict[str, Tensor]:
    return {name.removeprefix("base_model.model."): value for name, value in of_peft("adapter").items()}


def as_in_peft() -> nn.Module:
    model = blocks(8, 1, 2)
    Lora(rank=3, alpha=6).put_on(model, "blocks")
    model.load_state_dict(of_peft("plain") | adapters_of_peft())
    return model


def trained(encoder: nn.Module) -> set[str]:
    return {name for name, value in encoder.named_parameters() if value.requires_grad}


def vit(adapters: Adapters, name: str = "vit-micro") -> nn.Module:
    encoder = build_encoder(name, channels=3, size=32)
    adapters.put_on(encoder, name)
    return encoder


def test_outputs_and_gradients_are_those_of_peft():
    model = as_in_peft()
    output = model(PEFT["input"])
    output.square().sum().backward()
    torch.testing.assert_close(output, PEFT["output"], rtol=1e-6, atol=1e-6)  # kernels of other processors
    gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    assert gradients.keys() == of_peft("gradient").keys()
    for name, gradient in of_peft("gradient").items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-5, atol=1e-5)


def test_trained_weights_have_the_names_of_pefts_file():
    assert trained(as_in_peft()) == adapters_of_peft().keys()


def test_merged_weights_are_those_of_peft_and_a_plain_models():
    model, plain = as_in_peft(), blocks(8, 1, 2)
    merged = Lora(rank=3, alpha=6).merged(model.state_dict())
    plain.load_state_dict(merged)
    for name, value in of_peft("merged").items():
        torch.testing.assert_close(merged[name], value, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(plain(PEFT["input"]), model(PEFT["input"]), rtol=1e-5, atol=1e-5)  # one rounding of W


def test_an_adapted_encoder_starts_as_the_plain_one():
    plain = build_encoder("vit-micro", channels=3, size=32)
    images, expected = torch.randn(2, 3, 32, 32), plain.state_dict()
    before = plain(images)
    Lora().put_on(plain, "vit-micro")
    assert torch.equal(plain(images), before)
    assert all(torch.equal(plain.state_dict()[name], value) for name, value in expected.items())


@pytest.mark.parametrize(
    ("where", "layers"),
    [
        (("qkv",), {"attention.qkv"}),
        (("projection",), {"attention.project"}),
        (("qkv", "projection", "mlp"), {"attention.qkv", "attention.project", "mlp.0", "mlp.2"}),
        (("mlp.2",), {"mlp.2"}),
    ],
)
def test_layers_of_every_block_are_found_by_their_names(where: tuple[str, ...], layers: set[str]):
    expected = {f"blocks.{i}.{layer}.lora_{f}.weight" for i in range(4) for layer in layers for f in "AB"}
    assert trained(vit(Lora(where=where))) == expected


def test_one_layer_is_found_by_its_whole_name():
    assert trained(vit(Lora(where=("blocks.0.mlp.2",)))) == {f"blocks.0.mlp.2.lora_{f}.weight" for f in "AB"}


def test_layers_of_timm_are_found_by_their_names():
    layers = {name.rpartition(".lora_")[0] for name in trained(vit(Lora(), "timm:test_vit"))}
    assert {".".join(layer.split(".")[-2:]) for layer in layers} == {"attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"}


def test_ffa_trains_no_a():
    assert trained(vit(Lora(aggregation="ffa", where=("qkv",)))) == {
        f"blocks.{i}.attention.qkv.lora_B.weight" for i in range(4)
    }


@pytest.mark.parametrize(
    ("adapters", "number"),
    [(Norms(), 4 * 4 * 128 + 2 * 128), (Bias(), 4 * (3 + 1 + 4 + 1 + 2) * 128 + 128 + 128), (HeadAlone(), 0)],
    ids=lambda value: type(value).__name__,
)
def test_norms_biases_or_nothing_are_trained(adapters: Adapters, number: int):
    assert sum(value.numel() for value in vit(adapters).parameters() if value.requires_grad) == number


@pytest.mark.parametrize(
    ("adapters", "encoder", "message"),
    [
        (Lora(), "cnn", "batch-norm of encoder cnn moves without gradients: take a vision transformer"),
        (HeadAlone(), "resnet18", "batch-norm of encoder resnet18"),
        (
            Lora(rank=129),
            "vit-micro",
            "rank=129 is more than the 128 of layer blocks.0.attention.qkv .*take at most 128",
        ),
        (
            Lora(where=("query",)),
            "vit-micro",
            "where=query is no linear layer .* has attention.qkv, .*, mlp.2: name ends",
        ),
        (Lora(), "vgg9", "where=qkv is no linear layer of encoder vgg9; it has fc1, fc2: name ends"),
        (Lora(), "cnn-group", "where=qkv is no linear layer of encoder cnn-group; it has none"),
        (
            Norms(),
            "vgg9",
            "model.adapters=norms trains what encoder vgg9 lacks, a layer or group norm: take lora or head",
        ),
    ],
)
def test_encoders_that_adapters_do_not_fit_are_refused_in_one_line(adapters: Adapters, encoder: str, message: str):
    with pytest.raises(ValueError, match=message) as refused:
        vit(adapters, encoder)
    assert "\n" not in str(refused.value)
