"""LeJEPA: draw the views of a sample together, and all projections towards a standard normal distribution.

Balestriero, LeCun: LeJEPA: Provable and Scalable Self-Supervised Learning Without the Heuristics, 2025 (arXiv 2511.08544).
"code" below is the authors' minimal example.

Symbols: z projections [B, p] of a view; a directions [p, M] of length 1; t frequencies; phi(t) = exp(-t^2 / 2), the
characteristic function of N(0, 1), and the window, too; lambda weight of SIGReg.

Deviations: the integral goes over [0, 3] and counts twice, as the integrand is even (code; the paper's over [-5, 5] has its
knots farther apart). Directions are drawn anew for each step, the same for all views. There are two views of full size, and
small crops where `training.small_crops` asks for them (paper: six); the mean is that of the two.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.models import Model
from rayfed_ssl.randomness.draws import draw
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import Batch, Head, Objective, StepOutput, project_views
from rayfed_ssl.validation import UnitInterval


def directions(dim: int, number: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Draw directions of length 1, evenly over the sphere, [dim, number]."""
    return F.normalize(draw(torch.randn, dim, number, generator=generator, device=device), dim=0)


def characteristic(shadows: Tensor, largest: float, knots: int) -> Tensor:
    """Mean of exp(i t x) over samples, phi_hat of each direction at the knots, real and imaginary part: [2, M, knots].

    Args:
        shadows: x, one number a sample and direction, [B, M].
        largest: The last t.
        knots: Number of t from 0 on.
    """
    angles = shadows.unsqueeze(-1) * torch.linspace(0, largest, knots, device=shadows.device, dtype=shadows.dtype)
    return torch.stack([angles.cos().mean(0), angles.sin().mean(0)])


def normality(functions: Tensor, number: float, largest: float) -> Tensor:
    """`number` times the integral of |phi_hat(t) - phi(t)|^2 phi(t), for phi_hat [.., 2, M, knots]; [.., M]."""
    knots = functions.shape[-1]
    t = torch.linspace(0, largest, knots, device=functions.device, dtype=functions.dtype)
    phi, (real, imaginary) = (-t.square() / 2).exp(), functions.unbind(-3)
    error = (real - phi).square() + imaginary.square()
    return 2 * number * torch.trapezoid(error * phi, dx=largest / (knots - 1))


def epps_pulley(shadows: Tensor, largest: float, knots: int) -> Tensor:
    """B times the integral of |phi_hat(t) - phi(t)|^2 phi(t) over all t up to `largest` in size (paper, Epps-Pulley).

    Args:
        shadows: One number a sample, [B, M].
        largest: End of the integral.
        knots: Of the trapezoidal rule on [0, largest], whose value counts twice.

    Returns:
        A statistic for each of M, at least 0; 0 if the samples are normal.
    """
    return normality(characteristic(shadows, largest, knots), len(shadows), largest)


@dataclass(frozen=True, kw_only=True)
class LeJEPA(Objective):
    """Invariance and sketched isotropic Gaussian regularization (SIGReg)."""

    joins: ClassVar[str] = "SIGReg looks at the distribution of a batch"
    takes_small_crops: ClassVar[bool] = True
    hidden: PositiveInt = 2048
    """Width of the projector d-2048-2048-128, which has batch-norm after its first two layers (code; 16 wide there for ten
    classes).
    """
    strength: UnitInterval = 0.05
    """lambda, weight of SIGReg; 1 - lambda is that of the distance between views (paper: 0.01 to 0.1)."""
    directions: PositiveInt = 256
    """M, on which each step looks (code; the paper's largest runs have 1,024)."""
    largest: PositiveFloat = 3.0
    """Frequency at which the integral ends (code)."""
    knots: Annotated[int, Field(ge=2)] = 17
    """Of the integral (code)."""

    @property
    def head(self) -> Head:  # noqa: D102  # the base class says it
        return Head("expander", 128, self.hidden)

    def loss(
        self, context: Context, model: Model, state: nn.Module, batch: Batch, generator: torch.Generator
    ) -> StepOutput:
        """(1 - lambda) times the mean squared distance to the two views' mean plus lambda SIGReg, the mean of all views."""
        views = self.project(context, model, batch.images, generator)
        along = directions(views.shape[-1], self.directions, generator, views.device)
        statistic = torch.stack([epps_pulley(view @ along, self.largest, self.knots).mean() for view in views]).mean()
        return StepOutput(self.value(views, statistic), views[0])

    def project(self, context: Context, model: Model, images: Tensor, generator: torch.Generator) -> Tensor:
        """Project V views of each image, two and small crops, float32 [V, B, p]."""
        large = project_views(context, model, images, generator)
        with context.autocast():
            small = [model(crops)[1] for crops in context.small_views(images, generator)]
        return torch.stack([*large, *(view for crops in small for view in crops.split(len(images)))])

    def value(self, views: Tensor, statistic: Tensor) -> Tensor:
        """Weigh invariance of projections [V, B, p] and SIGReg, a scalar."""
        invariance = (views - views[:2].mean(0)).square().mean()
        return (1 - self.strength) * invariance + self.strength * statistic
