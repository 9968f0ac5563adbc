"""DCL, an objective of one's own: SimCLR whose denominator leaves the positive pair out.

Yeh, Hong, Hsu, Liu, Chen, LeCun: Decoupled Contrastive Learning, ECCV 2022.

    rayfed-ssl run method=fedavg public=null objective=examples.my_objective:DCL objective.temperature=0.2
    python -m examples.my_objective       # checks it against the laws

Symbols: z projections of a view [B, p]; tau temperature.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.models import Model
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import Batch, Head, Objective, StepOutput, project_views


def decoupled_loss(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Mean over views of -s_pos / tau + log sum exp(s / tau) over all views of other samples (eq. 6); a scalar.

    Args:
        first: Projections of one view, [B, p], B at least 2.
        second: Projections of the other view of the same samples, [B, p].
        temperature: tau.
    """
    views, num = F.normalize(torch.cat([first, second]), dim=1), len(first)
    similarities = views @ views.T / temperature
    sample = torch.arange(2 * num, device=views.device) % num
    same = sample[:, None] == sample
    positive = (views * views.roll(num, 0)).sum(1) / temperature
    return (similarities.masked_fill(same, float("-inf")).logsumexp(1) - positive).mean()


@dataclass(frozen=True, kw_only=True)
class DCL(Objective):
    """Decoupled contrastive learning."""

    head: ClassVar = Head("flesd", 128)
    """d-d-128 with ReLU, SimCLR's."""
    temperature: Annotated[float, Field(gt=0)] = 0.1
    """tau (section 4.1)."""

    def loss(
        self, context: Context, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator
    ) -> StepOutput:
        """Compare two random views of each image with those of all others in the batch."""
        first, second = project_views(context, model, batch.images, generator)
        return StepOutput(decoupled_loss(first, second, self.temperature), first)


if __name__ == "__main__":
    from rayfed_ssl.testing import check_objective

    check_objective(DCL())
