"""MoCo: tell a sample's other view, seen by a slow encoder, from the keys of earlier batches.

He, Fan, Wu, Xie, Girshick: Momentum Contrast for Unsupervised Visual Representation Learning, CVPR 2020 (v1). Chen, Fan,
Girshick, He: Improved Baselines with Momentum Contrastive Learning, 2020 (v2). "Code" below is the authors' CIFAR
demonstration and, for federations, EasyFL.

Symbols: q queries [N, p]; k+ their keys [N, p]; k_1..k_K the queue [K, p]; tau temperature; m momentum; theta_q, theta_k the
weights of query and key encoder; B samples a step.

v1 is `projector="linear" temperature=0.07`, v2 is `projector="mlp" temperature=0.2`, the CIFAR demonstration is
`projector="linear" temperature=0.1`; all three have queues and momenta of their own, named in docs/objectives/moco.md.

Deviations:
- `symmetric=true` (EasyFL) adds the loss of second views as queries and enqueues the keys of both views; the paper has one
  direction. Both directions see the queue as it was before the step, and their losses are summed, not averaged (code).
- The key encoder moves after the optimizer's step and not before the next forward pass (code): the same weights.
- The key encoder starts each local training as the query encoder, with its batch-norm statistics, and the queue stays with
  the client (EasyFL, which keeps the key encoder's own statistics; training never reads them).
- Shuffle-BN spreads keys over other devices than their queries. One device has no others, and shuffling a batch that is then
  encoded in one piece changes nothing (EasyFL). `key_groups` above 1 encodes the keys in that many random groups, so that
  their batch-norm statistics are not their queries'; the demonstration splits the queries' batch-norm as well.
- A queue that is not full yet holds random directions (code). Any batch fits any queue: keys wrap around, and of more keys
  than the queue holds the last stay. The code wants K to be a multiple of the batch.
- The two-layer projector has no batch-norm (v2, FCL); EasyFL's has it in the hidden layer (`projector="mlp-bn"`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.models import Model
from rayfed_ssl.randomness.draws import draw
from rayfed_ssl.training.context import Context, update_momentum
from rayfed_ssl.training.objective import Batch, Head, Memory, Objective, StepOutput, state_as
from rayfed_ssl.training.state_parts import Rule
from rayfed_ssl.validation import UnitInterval


class KeyQueue(Memory):
    """The last K keys, first in, first out.

    Attributes:
        rows: Unit-length rows, float32 [K, p]; random directions until they are replaced.
        filled: How many keys were enqueued so far, int64 scalar; the next one takes the place filled mod K.
    """

    rows: Tensor
    filled: Tensor

    def __init__(self, rows: Tensor) -> None:
        super().__init__(rows=rows, filled=torch.zeros((), dtype=torch.int64, device=rows.device))

    @classmethod
    def random(cls, size: int, dim: int, generator: torch.Generator, device: torch.device) -> "KeyQueue":
        """Start from random directions (code)."""
        return cls(F.normalize(draw(torch.randn, size, dim, generator=generator, device=device), dim=1))

    def enqueue(self, keys: Tensor) -> None:
        """Replace the oldest rows by keys [N, p], in their order, wrapping around."""
        size = len(self.rows)
        places = (self.filled + torch.arange(len(keys), device=keys.device)) % size
        # More keys than places would write a place twice, in no fixed order.
        self.rows[places[-size:]] = keys[-size:]
        self.filled += len(keys)


class MoCoState(Memory):
    """What MoCo remembers: the key encoder with its projector, in training mode, without gradients, and the last K keys."""

    target: Model
    queue: KeyQueue


@dataclass(frozen=True)
class Encoded:
    """A step's queries and keys; row i of `keys` is k+ of row i of `queries`.

    Attributes:
        projections: Query encoder's projections of the first views, float32 [B, p], not normalized, differentiable.
        queries: Unit-length rows, differentiable: of first views, [B, p]; when symmetric followed by those of second views,
            [2 B, p].
        keys: Unit-length rows without gradients, of the other view of each query's sample.
    """

    projections: Tensor
    queries: Tensor
    keys: Tensor


def queue_contrast(queries: Tensor, keys: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """InfoNCE of each query [N, p] with its key [N, p] and a queue [K, p] (MoCo, Eq. 1; FCL, Eq. 3), unit-length rows.

    Returns:
        -log( exp(q.k+ / tau) / (exp(q.k+ / tau) + sum_j exp(q.k_j / tau)) ), [N]; 0 where K is 0.
    """
    positive = (queries * keys).sum(1, keepdim=True)
    logits = torch.cat([positive, queries @ negatives.T], dim=1) / temperature
    return torch.logsumexp(logits, dim=1) - logits[:, 0]


def queue_rows(state: nn.Module) -> Tensor:
    """The queue of MoCo's state as it is now, float32 [K, p]: not a copy, `finish_step` changes it."""
    return state_as(MoCoState, state).queue.rows


@pydantic_dataclass(frozen=True, kw_only=True)
class MoCo(Objective):
    """MoCo's contrastive objective."""

    joins: ClassVar[str] = "the queue holds keys of other samples"
    parts: ClassVar[Mapping[str, Rule]] = {"target": "reset", "queue": "local"}
    temperature: PositiveFloat = 0.1
    """tau; 0.1 in the CIFAR demonstration, 0.07 in v1, 0.2 in v2."""
    queue_size: PositiveInt = 4096
    """K; 4096 in the CIFAR demonstration and EasyFL, 65536 for ImageNet."""
    momentum: UnitInterval = 0.99
    """m; 0.99 in the CIFAR demonstration and EasyFL, 0.999 for ImageNet."""
    symmetric: bool = True
    """Whether second views are queries too (EasyFL)."""
    projector: Literal["linear", "mlp", "mlp-bn"] = "mlp"
    """One layer ("linear", v1), d-d-128 ("mlp", v2 and FCL), or that with batch-norm ("mlp-bn", EasyFL's v2)."""
    key_groups: PositiveInt = 1
    """Random groups in which keys are encoded; above 1 it stands for shuffle-BN."""

    @property
    def head(self) -> Head:
        """The projector, to 128 dimensions."""
        return Head({"linear": "linear", "mlp": "fcl", "mlp-bn": "simclr-bn"}[self.projector], 128)

    @property
    def num_views(self) -> int:
        """Queries alone: keys take no gradients."""
        return 2 if self.symmetric else 1

    def chance_loss(self, batch: int) -> float:
        """The logarithm of the number of candidates, the positive and the queue; of both directions when symmetric."""
        return (2 if self.symmetric else 1) * math.log(1 + self.queue_size)

    @property
    def num_to_fill(self) -> int:
        """Those whose keys take the place of all random directions."""
        return math.ceil(self.queue_size / (2 if self.symmetric else 1))

    def check(self, context: Context, shard_sizes: Sequence[int]) -> tuple[str, ...]:
        """Tell which queues will hold random directions to the end."""
        keys_per_sample = context.rounds * context.epochs * (2 if self.symmetric else 1)
        short = [size for size in shard_sizes if size * keys_per_sample < self.queue_size]
        if not short:
            return ()
        return (
            f"MoCo's queue of {self.queue_size} keys is not filled by {len(short)} of {len(shard_sizes)} clients (the "
            f"smallest gives {min(short) * keys_per_sample} keys in the run): random directions stay in it; a lower "
            "objective.queue_size avoids that",
        )

    def start(self, context: Context, model: Model, data: Shard, generator: torch.Generator) -> MoCoState:
        """Start the key encoder, theta_k <- theta_q, and a queue of random directions."""
        queue = KeyQueue.random(self.queue_size, model.projection_dim, generator, context.device)
        return MoCoState(target=context.twin(model), queue=queue)

    def encode(
        self, context: Context, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator
    ) -> Encoded:
        """Draw two views and encode queries and keys; writes nothing but running statistics of batch-norm.

        A method with its own loss on MoCo's queries takes the negatives from `queue_rows(state)` and returns
        `StepOutput(loss, encoded.projections, {"keys": encoded.keys})`: then `finish_step` moves theta_k and enqueues.
        Each view passes each encoder in a batch of its own (code).
        """
        first, second = context.two_views(batch.images, generator)
        target = state_as(MoCoState, state).target
        with context.autocast():
            projections = [model(view)[1] for view in ((first, second) if self.symmetric else (first,))]
        keys = [
            self._keys(context, target, view, generator) for view in ((second, first) if self.symmetric else (second,))
        ]
        return Encoded(projections[0], F.normalize(torch.cat(projections), dim=1), torch.cat(keys))

    @torch.no_grad()
    def _keys(self, context: Context, target: Model, view: Tensor, generator: torch.Generator) -> Tensor:
        num_groups = max(1, min(self.key_groups, len(view) // 2))  # batch-norm needs two samples
        if num_groups == 1:
            order = torch.arange(len(view), device=view.device)
        else:
            order = draw(torch.randperm, len(view), generator=generator, device=view.device)
        with context.autocast():
            rows = torch.cat([target(view[group])[1] for group in order.tensor_split(num_groups)])
        return F.normalize(rows, dim=1)[order.argsort()]

    def loss(
        self, context: Context, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator
    ) -> StepOutput:
        """Mean over samples of Eq. 1, summed over both directions when symmetric."""
        encoded = self.encode(context, model, state, batch, generator)
        losses = queue_contrast(encoded.queries, encoded.keys, queue_rows(state), self.temperature)
        return StepOutput(losses.sum() / len(batch.images), encoded.projections, {"keys": encoded.keys})

    def finish_step(self, context: Context, model: Model, state: nn.Module, output: StepOutput) -> None:
        """Move the key encoder, theta_k <- m theta_k + (1 - m) theta_q (Eq. 2), then enqueue `output.updates["keys"]`."""
        state = state_as(MoCoState, state)
        update_momentum(state.target, model, self.momentum)
        state.queue.enqueue(output.updates["keys"])
