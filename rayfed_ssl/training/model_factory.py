"""How the models of a run are made: architectures, heads, and the weights that everybody starts from."""

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from rayfed_ssl.errors import CheckpointError, reason
from rayfed_ssl.models import Model, build_model
from rayfed_ssl.models.adapters import Adapters, Lora, frozen_tensors
from rayfed_ssl.models.precision import prepare
from rayfed_ssl.models.pretrained import Start
from rayfed_ssl.models.skip_init import Undrawn
from rayfed_ssl.randomness.seeds import Purpose, derive_seed
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import Objective
from rayfed_ssl.training.state_parts import Rule, model_weights
from rayfed_ssl.trees import Weights, frozen


@dataclass(frozen=True, kw_only=True)
class ModelFactory(Context):
    """Makes the models of all participants.

    Attributes:
        encoder: Architecture of the global model.
        client_encoders: Architectures by client id, cyclically, or () when all have the global one.
        stem: First layers of a ResNet: for small or for large images.
        projection_dim: Width of the projections, or None for the head's own.
        objective: What clients minimize locally; it has heads of its own.
        seed: The run's seed, for the initial weights only.
        read_start: Gives the encoder that everybody starts from in place of random weights, which heads have all the same.
        adapters: What is trained of the encoder, or None for all of it.
        base: What adapters leave frozen of it, or None where it follows from the seed or the start.
        idle: Models that are lent by `borrowed` and are not in use, with what they were made of.
    """

    encoder: str
    client_encoders: tuple[str, ...] = ()
    stem: Literal["auto", "cifar", "imagenet"] = "auto"
    projection_dim: int | None = None
    objective: Objective
    seed: int
    read_start: Callable[[], Start] | None = None
    adapters: Adapters | None = None
    base: Weights | None = field(default=None, compare=False, repr=False)
    idle: list[tuple[Hashable, Model]] = field(default_factory=list, compare=False, repr=False)

    @property
    def start(self) -> Start | None:
        """The encoder that weights start from, read where weights are drawn and nowhere else.

        Raises:
            ConfigError: It is not there, or does not fit.
        """
        return None if self.read_start is None else self.read_start()

    @property
    def parts(self) -> Mapping[str, Rule]:
        """Rules of the parts beside encoder, projector and batch-norm: the objective's, and that of LoRA's B."""
        return {**self.objective.parts, **({"lora_b": "averaged"} if isinstance(self.adapters, Lora) else {})}

    @property
    def heterogeneous(self) -> bool:
        """Whether some client's architecture differs from the global one."""
        return any(name != self.encoder for name in self.client_encoders)

    def architecture(self, client_id: int) -> str:
        """Name the encoder of a client."""
        return self.client_encoders[client_id % len(self.client_encoders)] if self.client_encoders else self.encoder

    def initial_weights(self, architecture: str | None = None) -> Weights:
        """Draw the weights that everybody starts from, one architecture, one draw; an encoder to start from is laid over.

        What adapters leave frozen is not among them.
        """
        return self._divided(architecture or self.encoder)[0]

    def frozen_weights(self) -> Weights:
        """Draw, or take from the start, what adapters leave frozen of the encoder."""
        return self._divided(self.encoder)[1]

    def _divided(self, architecture: str) -> tuple[Weights, Weights]:
        whole = self._whole_start(architecture)
        if self.adapters is None:
            return whole, {}
        blank = self.blank(architecture)
        trained = self._without_frozen(blank, blank.state_dict(keep_vars=True)).keys()
        return {k: v for k, v in whole.items() if k in trained}, {k: v for k, v in whole.items() if k not in trained}

    def _whole_start(self, architecture: str) -> Weights:
        drawn, start = self._random_weights(architecture), self.start
        return drawn if start is None else drawn | start.weights

    def _random_weights(self, architecture: str) -> Weights:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.seed, Purpose.INITIAL_MODEL))
            return frozen(self._build(architecture).state_dict())

    def model(self, weights: Weights, architecture: str | None = None) -> Model:
        """Make a model in training mode, on the device, that holds a copy of the weights.

        An objective's state among the weights is not looked at; trained parts that are missing start as everybody's do.
        """
        name = architecture or self.encoder
        model = self._load(self.blank(name), weights, name)
        return prepare(model, self.precision, self.device).train()

    @contextmanager
    def borrowed(self, weights: Weights, architecture: str) -> Iterator[Model]:
        """Lend a model as `model` makes it, which is lent again after the block: making one takes as long as a few steps."""
        made_of = (architecture, self.device, self.precision, self.objective, self.projection_dim, self.adapters)
        place = next((i for i, (other, _) in enumerate(self.idle) if other == made_of), None)
        if place is None:
            model = self.model(weights, architecture)
        else:
            model = self._load(self.idle.pop(place)[1], weights, architecture).train()
        yield model
        self.idle.append((made_of, model))

    def _load(self, model: Model, weights: Weights, name: str) -> Model:
        held = (self.base or {}) | model_weights(weights)
        if len(held) < len(model.state_dict()):
            encoder = {key for key in model.state_dict() if key.startswith("encoder.")}
            fresh = self._random_weights if encoder <= held.keys() else self._whole_start
            held = fresh(name) | held  # heads alone need no start, which may be gone by now
        try:
            model.load_state_dict(held)
        except RuntimeError as error:
            raise CheckpointError(f"these weights are not a {name}'s ({reason(error)}): take other ones") from None
        return model

    def twin(self, model: Model) -> Model:
        """Copy a model's encoder and projector, in training mode and without gradients; what adapters freeze is shared."""
        shared = {id(tensor): tensor for tensor in self.frozen(model)}
        encoder, projector = copy.deepcopy((model.encoder, model.projector), shared)
        twin = Model(encoder, projector, model.projection_dim, architecture=model.architecture)
        return prepare(twin, self.precision, self.device).train().requires_grad_(False)

    def weights_of(self, model: Model, state: nn.Module | None = None) -> Weights:
        """Copy to the CPU what is exchanged and remembered of a model and an objective's state: all but what is frozen."""
        held = model.state_dict(keep_vars=True)
        if state is not None:
            held |= state.state_dict(keep_vars=True)
        return frozen(self._without_frozen(model, held))

    def _without_frozen(self, model: Model, weights: Weights) -> Weights:
        left_out = {id(tensor) for tensor in self.frozen(model)}
        return {name: value for name, value in weights.items() if id(value) not in left_out}

    def frozen(self, model: Model) -> list[Tensor]:
        """List what adapters leave frozen of a model's encoder."""
        return [] if self.adapters is None else frozen_tensors(model.encoder)

    def shared_width(self, method: str) -> int:
        """Find the width that projections of all clients' architectures have in common.

        Args:
            method: The method that needs it, for the message.

        Raises:
            ValueError: Widths differ.
        """
        widths = {name: self.blank(name).projection_dim for name in self.client_encoders or (self.encoder,)}
        if len(set(widths.values())) > 1:
            listed = ", ".join(f"{name} has {width}" for name, width in widths.items())
            advice = "take another objective" if self.objective.fixed_head else "set model.projection_dim"
            raise ValueError(f"{method} compares clients' projections, so they need one width, but {listed}: {advice}")
        return max(widths.values())

    def blank(self, architecture: str) -> Model:
        """Make a model whose weights hold nothing yet: none are drawn that would be thrown away."""
        with Undrawn():
            return self._build(architecture)

    def _build(self, encoder: str) -> Model:
        head = self.objective.head
        model = build_model(
            encoder,
            head=head.name,
            projection_dim=self.projection_dim or head.dim,
            hidden=head.hidden,
            more_heads=partial(self.objective.heads, self),
            channels=self.channels,
            size=self.size,
            stem=self.stem,
        )
        if self.adapters is not None:
            self.adapters.put_on(model.encoder, encoder)
        return model
