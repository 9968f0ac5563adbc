"""The protocol of a local objective: what a client minimizes on its own shard, and what it remembers for that."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.models import Model
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.state_parts import Rule
from rayfed_ssl.validation import Validated


@dataclass(frozen=True)
class Head:
    """The projector that an objective puts on an encoder.

    Attributes:
        name: Its name in `rayfed_ssl.models.heads`.
        dim: Width of the projections, unless the run asks for another; None takes the head's own.
        hidden: Width of the hidden layers; None takes the head's own.
    """

    name: str
    dim: int | None = None
    hidden: int | None = None


@dataclass(frozen=True)
class Batch:
    """Samples of one step.

    Attributes:
        images: uint8 [B, C, H, W], not augmented.
        index: Positions in the shard, int64 [B].
        labels: int64 [B] where the objective needs them.
        epoch: Local epochs that a client which never missed a round has done before this one, from 0.
        phase: What the step does, as `Objective.phase` or the training names it.
    """

    images: Tensor
    index: Tensor
    labels: Tensor | None
    epoch: int
    phase: Hashable = None


@dataclass(frozen=True)
class StepOutput:
    """What a step's forward pass gives.

    Attributes:
        loss: Mean loss of the batch, a float32 scalar that can be differentiated.
        projections: Projections of the first view, float32 [B, p], not normalized, for methods that add a term on them.
        updates: Detached tensors that `finish_step` puts into the state.
    """

    loss: Tensor
    projections: Tensor
    updates: Mapping[str, Tensor] = field(default_factory=dict)


class Objective(Validated, ABC):
    """A local objective: hyperparameters as fields, the loss as a pure function.

    What it trains beside encoder and projector are `heads`; what it remembers without training it (a slow target, a queue
    of keys) is a state that `start` makes and `finish_step` changes. Both end in the participant's flat state, where
    `parts` says what a federation does with them.

    Class attributes:
        needs_labels: Whether clients must show it their labels, as only the papers' supervised comparisons do.
        classifies: Whether the projections are scores of the dataset's classes, so that they have an accuracy.
        parts: Rules of its heads and memories by part; encoder, projector and batch-norm are averaged.
        fixed_head: Whether the head's width follows from the objective, so that `model.projection_dim` means nothing.
        needs_patches: Whether it hides patches from the encoder, which only our vision transformers allow.
        follows_rounds: Whether a step depends on the number of rounds, `context.rounds`: such a run cannot be made longer.
        compares_views: Whether it compares a view of each sample with a second one.
        takes_small_crops: Whether its loss is defined for small crops beside the two views (`training.small_crops`).
        joins: What of its loss joins samples, so that a single one has no loss of its own (docs/privacy-budget.md).
        belongs_to: The only method that can train on it, or None.
        enough_steps: Steps of a client until an encoder is above its random start (docs/which-first.md).

    `loss` and `finish_step` read and write tensors, in place, and nothing else, and `phase` names what depends on the epoch:
    a GPU captures a step and replays it (docs/gpu.md).
    """

    needs_labels: ClassVar[bool] = False
    classifies: ClassVar[bool] = False
    parts: ClassVar[Mapping[str, Rule]] = {}
    fixed_head: ClassVar[bool] = False
    needs_patches: ClassVar[bool] = False
    follows_rounds: ClassVar[bool] = False
    compares_views: ClassVar[bool] = True
    takes_small_crops: ClassVar[bool] = False
    joins: ClassVar[str] = "its loss is not written as a sum over samples"
    belongs_to: ClassVar[str | None] = None
    enough_steps: ClassVar[int] = 500

    @property
    @abstractmethod
    def head(self) -> Head:
        """The projector that this objective trains on top of the encoder."""

    @property
    def num_views(self) -> int:
        """Views of a sample that pass the model before gradients are taken; memory is estimated from it."""
        return 2

    def heads(self, context: Context, feature_dim: int, projection_dim: int) -> dict[str, nn.Module]:
        """Make the other trained parts by name, freshly initialized by torch's global generator."""
        return {}

    def check(self, context: Context, shard_sizes: Sequence[int]) -> tuple[str, ...]:
        """Look at the run before it starts.

        Returns:
            Sentences about what the objective will do otherwise than asked.

        Raises:
            ValueError: The objective cannot work with these settings or with clients of these sizes.
        """
        return ()

    def chance_loss(self, batch: int) -> float | None:
        """Compute the loss of representations that tell no sample from another; None where that is no fixed number."""
        return None

    @property
    def num_to_fill(self) -> int:
        """Samples that fill what a client remembers: losses before that do not compare with later ones."""
        return 0

    def start(self, context: Context, model: Model, data: Shard, generator: torch.Generator) -> nn.Module:
        """Make a fresh state at the start of a local training.

        Its submodules and buffers are named for their parts and need no gradients. What the client kept or received is
        loaded over them afterwards.
        """
        return nn.Module()

    def start_epoch(
        self, context: Context, model: Model, state: nn.Module, data: Shard, epoch: int, generator: torch.Generator
    ) -> None:
        """Change the state, or untrained heads, at the start of each local epoch."""

    def phase(self, epoch: int) -> Hashable:
        """Name what the loss of a local epoch, counted as in `Batch.epoch`, does; all epochs of a phase do the same."""
        return None

    @abstractmethod
    def loss(
        self, context: Context, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator
    ) -> StepOutput:
        """Compute the loss of a batch; writes nothing but running statistics of batch-norm.

        Args:
            context: Views and number format.
            model: Model in training mode.
            state: What `start` made.
            batch: The step's samples.
            generator: Draws the views.
        """

    def finish_step(self, context: Context, model: Model, state: nn.Module, output: StepOutput) -> None:
        """Change state and heads after the optimizer's step, in place: move a target, enqueue keys."""


class PerSample(Objective):
    """An objective whose loss is the mean of losses of single samples: what is drawn apart from what is computed."""

    @abstractmethod
    def inputs(self, context: Context, batch: Batch, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw what the loss sees of each sample, each tensor [B, ...]."""

    @abstractmethod
    def loss_of(self, context: Context, model: Model, *inputs: Tensor) -> StepOutput:
        """Compute the mean loss of some samples, or that of one."""

    def loss(
        self, context: Context, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator
    ) -> StepOutput:
        """Compute the loss of what is drawn."""
        return self.loss_of(context, model, *self.inputs(context, batch, generator))


class Memory(nn.Module):
    """An objective's state: submodules and, from tensors, buffers, each named for its part."""

    def __init__(self, **parts: nn.Module | Tensor | None) -> None:
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, Tensor):
                self.register_buffer(name, part)
            else:
                self.add_module(name, part)


State = TypeVar("State", bound=Memory)


def state_as(kind: type[State], state: nn.Module) -> State:
    """Give an objective its state back under the type that its `start` made."""
    assert isinstance(state, kind), "the engine gives back what start made"
    return state


Kind = TypeVar("Kind", bound=Objective)


def objective_as(kind: type[Kind], objective: Objective, extends: str, name: str) -> Kind:
    """Give the objective that a method needs, under its type; `extends` says which, and `name` is how it is set.

    Raises:
        ValueError: It is another.
    """
    if not isinstance(objective, kind):
        raise ValueError(f"{extends}, got {type(objective).__name__}: set objective={name}")
    return objective


def check_loss(objective: Objective, model: Model, output: Any) -> None:
    """Raise ValueError for no StepOutput, a loss that is no scalar tensor, or one without a gradient to trained weights."""
    name = type(objective).__name__
    if not isinstance(output, StepOutput):
        raise ValueError(
            f"objective {name}: `loss` must give a StepOutput(loss, projections), got a {type(output).__name__}"
        )
    loss: Any = output.loss
    if not isinstance(loss, Tensor) or loss.dim():
        kind = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise ValueError(
            f"objective {name}: `loss` must give a scalar tensor, got {kind}: take the mean over the batch"
        )
    if not loss.requires_grad and any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            f"objective {name}: `loss` has no gradient: compute it from what the model gives, without detach(), item() or "
            "torch.no_grad()"
        )


def check_groups(objective: str, field: str, number: int, shard_sizes: Sequence[int], small: str) -> tuple[str, ...]:
    """Compare a number of clusters or prototypes with the clients' sample counts.

    Args:
        objective: Its name, for messages.
        field: The setting.
        number: Its value.
        shard_sizes: Samples by client.
        small: What becomes of clients that have no more samples than that.

    Returns:
        Which clients have no more samples, if any.

    Raises:
        ValueError: No client has more samples.
    """
    if number >= max(shard_sizes):
        raise ValueError(
            f"{objective}'s objective.{field} must stay below the clients' sample counts, got {number} and at most "
            f"{max(shard_sizes)} samples: lower it or clients.number"
        )
    few = [size for size in shard_sizes if size <= number]
    if not few:
        return ()
    return (
        f"{len(few)} of {len(shard_sizes)} clients have no more samples than {objective} has {field} ({number}; the "
        f"smallest has {min(few)}): {small}; a lower objective.{field} avoids that",
    )


def tiny_batch_notes(context: Context, shard_sizes: Sequence[int]) -> tuple[str, ...]:
    """Say where an incomplete last batch is so small that objectives without negatives suffer from its statistics.

    Such an objective relies on batch-norm to tell samples apart. On 900 photographs a client, where every epoch ended in a
    batch of 4 after 14 of 64, BYOL's kNN accuracy after 8 rounds of 4 epochs was 27.8 %, and 34.6 % without those batches.
    """
    if context.drop_last:
        return ()
    left = [size % context.batch for size in shard_sizes if size > context.batch]
    tiny = [count for count in left if 2 <= count <= context.batch // 8]
    if not tiny:
        return ()
    return (
        f"every epoch of {len(tiny)} of {len(shard_sizes)} clients ends in a batch of {min(tiny)} to {max(tiny)} samples, "
        "whose batch-norm statistics are noise: training.drop_last=true leaves it out",
    )


def project_views(context: Context, model: Model, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Project two random views of each image, each encoded in a batch of its own; float32 [B, p] each."""
    with context.autocast():
        first, second = (model(view)[1] for view in context.two_views(images, generator))
    return first, second
