"""BYOL: predict what a slow copy of the encoder sees in the other view; there are no negatives.

Grill et al.: Bootstrap Your Own Latent, NeurIPS 2020. "Code" below is EasyFL, where FedBYOL, FedU and FedEMA come from.

Symbols: theta online encoder f, projector g and predictor q; xi target, a slow copy of f and g; z = g(f(view)) projections
[B, p]; p = q(z_theta) predictions [B, p]; zeta target decay (the paper's tau).

Deviations:
- The loss takes the mean over samples of both directions' sum (paper, code); lightly's examples halve it.
- zeta is constant (code); the paper raises it to 1 along a cosine.
- The target starts as the online network and moves from the first step on. In the code both are one object in a client's
  first round, so the target equals the online network until the second.
- The target is in training mode (code): batch-norm uses the statistics of its own batch, one view at a time, and dropout is
  on. Its running statistics come from these forward passes and not from the online network; training never reads them.
- A slow copy is made of parameters only, predictor excluded; the paper does not say what becomes of batch-norm statistics.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.models import Model, build_head
from rayfed_ssl.training.context import Context, update_momentum
from rayfed_ssl.training.objective import Batch, Head, Memory, Objective, StepOutput, state_as, tiny_batch_notes
from rayfed_ssl.training.state_parts import Rule
from rayfed_ssl.validation import UnitInterval


class BYOLState(Memory):
    """What BYOL remembers: the target xi, in training mode, without gradients."""

    target: Model


def regression_error(predictions: Tensor, targets: Tensor) -> Tensor:
    """2 - 2 cos(p, stopgrad(z_xi)) by sample (BYOL, Eq. 2), [B], in [0, 4]; inputs [B, p] have any length."""
    return 2 - 2 * (F.normalize(predictions, dim=1) * F.normalize(targets.detach(), dim=1)).sum(1)


@dataclass(frozen=True, kw_only=True)
class BYOL(Objective):
    """BYOL's regression."""

    parts: ClassVar[Mapping[str, Rule]] = {"predictor": "averaged", "target": "local"}
    enough_steps: ClassVar[int] = 2000
    momentum: UnitInterval = 0.99
    """zeta; 0.99 in EasyFL."""
    projector: Literal["mlp", "linear"] = "mlp"
    """d-4096-2048 with batch-norm ("mlp", EasyFL) or one layer to 256 ("linear", FedFoA's calibration layer)."""
    predictor: Literal["mlp", "linear"] = "mlp"
    """p-4096-p with batch-norm ("mlp", EasyFL) or one layer ("linear", EasyFL's choice "1_layer")."""
    hidden: PositiveInt | None = None
    """Width of the hidden layers of projector and predictor; None takes 4096."""

    def __post_init__(self) -> None:
        if self.hidden is not None and self.projector == self.predictor == "linear":
            raise ValueError(
                f"objective.hidden={self.hidden} has no meaning here: projector and predictor are linear; leave it out"
            )

    @property
    def head(self) -> Head:
        """The projector, to 2048 dimensions or, when linear, 256."""
        return Head("byol", 2048, self.hidden) if self.projector == "mlp" else Head("linear", 256)

    def heads(self, context: Context, feature_dim: int, projection_dim: int) -> dict[str, nn.Module]:
        """The predictor q, as wide at both ends as the projections."""
        if self.predictor == "linear":
            return {"predictor": build_head("linear", projection_dim, out=projection_dim)}
        return {"predictor": build_head("byol-predictor", projection_dim, out=projection_dim, hidden=self.hidden)}

    def start(self, context: Context, model: Model, data: Shard, generator: torch.Generator) -> BYOLState:
        """Start the target: xi <- theta, without the predictor."""
        return BYOLState(target=context.twin(model))

    def check(self, context: Context, shard_sizes: Sequence[int]) -> tuple[str, ...]:
        """Say where batches are too small."""
        return tiny_batch_notes(context, shard_sizes)

    def loss(
        self, context: Context, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator
    ) -> StepOutput:
        """Mean over samples of the regression error, summed over both directions."""
        first, second = context.two_views(batch.images, generator)
        predictor, target = model.part("predictor"), state_as(BYOLState, state).target
        with context.autocast():
            online = [model(view)[1] for view in (first, second)]
            predictions = [predictor(projections).float() for projections in online]
            with torch.no_grad():
                targets = [target(view)[1] for view in (first, second)]
        errors = regression_error(torch.cat(predictions), torch.cat(targets[::-1]))
        return StepOutput(errors.view(2, -1).sum(0).mean(), online[0])

    def finish_step(self, context: Context, model: Model, state: nn.Module, output: StepOutput) -> None:
        """Move the target: xi <- zeta xi + (1 - zeta) theta (Eq. 1)."""
        update_momentum(state_as(BYOLState, state).target, model, self.momentum)
