"""Adapters: what is trained of an encoder whose other weights are frozen.

Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen: LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022. Names,
equations and defaults are those of Hugging Face's peft.

Symbols: W0 frozen weights of a linear layer [d_out, d_in]; r rank; A [r, d_in]; B [d_out, r]; alpha scale of their product.

Running statistics move without gradients, so an encoder with batch-norm has no frozen half and is refused.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

from rayfed_ssl.trees import Weights
from rayfed_ssl.validation import Validated

LAYERS = {
    "qkv": ("attention.qkv", "attn.qkv"),
    "projection": ("attention.project", "attn.proj"),
    "mlp": ("mlp.0", "mlp.2", "mlp.fc1", "mlp.fc2"),
}
"""Ends of the names of linear layers, in our vision transformers and in timm's."""

A, B = ".lora_A.weight", ".lora_B.weight"
"""Ends of the names of A and B (peft)."""

NORMS = (nn.LayerNorm, nn.GroupNorm)


class LoraLinear(nn.Linear):
    """A linear layer with W0 + (alpha / r) B A in the place of W0; B = 0 at first, and A drawn as torch draws a layer's."""

    def __init__(self, layer: nn.Linear, rank: int, scale: float) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.scale = layer.in_features, layer.out_features, scale
        self.weight, self.bias = layer.weight, layer.bias
        self.lora_A = nn.Linear(layer.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, input: Tensor) -> Tensor:
        """Map rows [..., d_in] to [..., d_out]."""
        low_rank: Tensor = self.lora_B(self.lora_A(input) * self.scale)  # of few numbers, before there are many
        return super().forward(input) + low_rank


class Adapters(Validated, ABC):
    """What of an encoder is trained."""

    def put_on(self, encoder: nn.Module, name: str) -> None:
        """Freeze an encoder in place but for what these adapters train, and add what they add.

        Raises:
            ValueError: The encoder has running statistics, or none of the layers.
        """
        if any(isinstance(layer, _NormBase) and layer.track_running_stats for layer in encoder.modules()):
            raise ValueError(
                f"model.adapters freezes weights, and batch-norm of encoder {name} moves without gradients: take a vision "
                "transformer (vit-micro, vit-tiny, timm:vit_...) or group norm (cnn-group)"
            )
        encoder.requires_grad_(False)
        self.release(encoder, name)

    @abstractmethod
    def release(self, encoder: nn.Module, name: str) -> None:
        """Let those weights of a frozen encoder be trained that these adapters train; errors as in `put_on`."""

    def merged(self, weights: Weights) -> Weights:
        """Give a model's weights the names and values of a model without adapters."""
        return weights

    def of_client(self, client_id: int) -> "Adapters":
        """What a client trains; by default what all do."""
        return self


@dataclass(frozen=True, kw_only=True)
class Lora(Adapters):
    """A low-rank matrix beside each of some linear layers."""

    rank: PositiveInt = 8
    """r (peft)."""
    alpha: PositiveFloat = 8
    """alpha, which divided by r scales BA (peft)."""
    where: Annotated[
        tuple[str, ...], Field(min_length=1), BeforeValidator(lambda one: (one,) if isinstance(one, str) else one)
    ] = ("qkv", "projection", "mlp")
    """Linear layers of the encoder: "qkv", "projection" and "mlp" of a vision transformer's blocks, or ends of layers'
    names, as blocks.0.mlp.2.
    """
    aggregation: Literal["mean", "ffa", "exact", "svd"] = "mean"
    """What the server makes of clients' A and B: the mean of each ("mean", FedIT); that of B, with A frozen as the run's
    seed draws it ("ffa", FFA-LoRA); the mean of each, with what it lacks of the mean of BA added to W0 ("exact",
    FedEx-LoRA); or the mean of BA brought to rank r ("svd", FlexLoRA).
    """
    ranks: Annotated[tuple[PositiveInt, ...] | None, Field(min_length=1, exclude_if=lambda ranks: ranks is None)] = None
    """With "svd", ranks of clients by id, cyclically, of which none is above r: a client has the first columns of B and
    rows of A, which are those of the largest singular values (FlexLoRA). None gives all clients r.
    """

    def __post_init__(self) -> None:
        if self.ranks is None:
            return
        if self.aggregation != "svd":
            raise ValueError(f"ranks need aggregation=svd, got {self.aggregation}: A and B of two ranks have no mean")
        if (most := max(self.ranks)) > self.rank:
            raise ValueError(f"ranks are those of clients, none above rank={self.rank}, got {most}: set rank={most}")

    def of_client(self, client_id: int) -> "Lora":
        """Give a client its rank, and the same scale of BA."""
        if self.ranks is None:
            return self
        rank = self.ranks[client_id % len(self.ranks)]
        return replace(self, rank=rank, alpha=self.scale * rank, ranks=None)

    @property
    def scale(self) -> float:
        """Factor of BA."""
        return self.alpha / self.rank

    def release(self, encoder: nn.Module, name: str) -> None:
        """Put A and B beside the layers."""
        for path in self._layers(encoder, name):
            parent, _, last = path.rpartition(".")
            layer = encoder.get_submodule(path)
            assert isinstance(layer, nn.Linear), "these are linear layers"
            if self.rank > (most := min(layer.in_features, layer.out_features)):
                raise ValueError(
                    f"model.adapters.rank={self.rank} is more than the {most} of layer {path} of encoder {name} "
                    f"({layer.in_features} to {layer.out_features}): take at most {most}"
                )
            adapted = LoraLinear(layer, self.rank, self.scale)
            adapted.lora_A.requires_grad_(self.aggregation != "ffa")
            setattr(encoder.get_submodule(parent), last, adapted)

    def _layers(self, encoder: nn.Module, name: str) -> list[str]:
        # Subclasses, as in torch's own attention, have their weights read by others and their `forward` never called.
        linear = [path for path, layer in encoder.named_modules() if type(layer) is nn.Linear]
        chosen = set[str]()
        for entry in self.where:
            ends = tuple(f".{end}" for end in LAYERS.get(entry, (entry,)))
            if not (matching := [path for path in linear if f".{path}".endswith(ends)]):
                listed = ", ".join(dict.fromkeys(".".join(path.split(".")[-2:]) for path in linear)) or "none"
                raise ValueError(
                    f"model.adapters.where={entry} is no linear layer of encoder {name}; it has {listed}: name ends of these"
                )
            chosen |= {*matching}
        return [path for path in linear if path in chosen]

    def merged(self, weights: Weights) -> Weights:
        """Add (alpha / r) B A to W0, which rounds once to float32, and leave A and B out."""
        plain = {name: value for name, value in weights.items() if not name.endswith((A, B))}
        for layer, product in products(weights):
            weight = weights[f"{layer}.weight"]
            plain[f"{layer}.weight"] = (weight.double() + self.scale * product).to(weight.dtype)
        return plain


def of_rank(weights: Weights, rank: int) -> Weights:
    """Cut A and B among some weights to a rank, or fill them up with zeros, which leaves BA as it is."""

    def fit(name: str, value: Tensor) -> Tensor:
        more = rank - value.shape[name.endswith(B)] if name.endswith((A, B)) else 0
        return functional.pad(value, (0, more) if name.endswith(B) else (0, 0, 0, more)) if more else value

    return {name: fit(name, value) for name, value in weights.items()}


def products(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Compute B A of each layer that has both among some weights, by the layer's name, float64 [d_out, d_in]."""
    for name, value in weights.items():
        if name.endswith(B) and (other := weights.get(name.removesuffix(B) + A)) is not None:
            yield name.removesuffix(B), value.double() @ other.double()


@dataclass(frozen=True, kw_only=True)
class Norms(Adapters):
    """Scales and shifts of layer and group norm."""

    def release(self, encoder: nn.Module, name: str) -> None:
        """Train the norms."""
        norms = [layer for layer in encoder.modules() if isinstance(layer, NORMS)]
        _train([value for layer in norms for value in layer.parameters()], "norms", "layer or group norm", name)


@dataclass(frozen=True, kw_only=True)
class Bias(Adapters):
    """All biases (BitFit; Ben Zaken, Goldberg, Ravfogel, ACL 2022)."""

    def release(self, encoder: nn.Module, name: str) -> None:
        """Train the biases."""
        named = encoder.named_parameters()
        _train([value for path, value in named if path.rpartition(".")[2] == "bias"], "bias", "bias", name)


@dataclass(frozen=True, kw_only=True)
class HeadAlone(Adapters):
    """Nothing of the encoder: projector and other heads alone are trained."""

    def release(self, encoder: nn.Module, name: str) -> None:
        """Leave the encoder frozen."""


def _train(parameters: list[nn.Parameter], adapters: str, kind: str, encoder: str) -> None:
    if not parameters:
        raise ValueError(f"model.adapters={adapters} trains what encoder {encoder} lacks, a {kind}: take lora or head")
    for parameter in parameters:
        parameter.requires_grad_(True)


def frozen_tensors(encoder: nn.Module) -> list[Tensor]:
    """List what stays as it is of an encoder under adapters: parameters without gradients, and buffers."""
    return [*(value for value in encoder.parameters() if not value.requires_grad), *encoder.buffers()]


ADAPTERS: Mapping[str, type[Adapters]] = {"lora": Lora, "norms": Norms, "bias": Bias, "head": HeadAlone}
"""Adapters by name."""
