"""Adversaries that see the honest uploads of the round; all of them send the same.

A little is enough (ALIE): Baruch, Baruch, Goldberg: A Little Is Enough: Circumventing Defenses For Distributed Learning,
NeurIPS 2019. Inner product: Xie, Koyejo, Gupta: Fall of Empires, UAI 2020. Min-Max: Shejwalkar, Houmansadr: Manipulating the
Byzantine, NDSS 2021. With the server's rule at hand the first two may search for their strength, as in ByzFL.
"""

from collections.abc import Callable, Iterator
from typing import ClassVar, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from rayfed_ssl.adversaries.adversary import Numbers, Scale, UploadAdversary


def farthest(distance: Callable[[float], float], evaluations: int = 20) -> float:
    """Find where a distance is large by ByzFL's line search: from 0 in doubled steps of 10, then in steps times 0.8."""
    best, step, expands = 0.0, 10.0, True
    most = distance(best)
    for _ in range(evaluations - 1):
        reached = distance(best + step)
        expands = expands and reached > most
        if reached > most:
            best, most = best + step, reached
        step *= 2.0 if expands else 0.8
    return best


@dataclass(frozen=True, kw_only=True)
class Scaled(UploadAdversary):
    """Send something of the honest uploads, times tau."""

    sees_honest: ClassVar = True
    tau: Scale | Literal["best"]

    @property
    def searches(self) -> bool:
        """Whether tau is searched for."""
        return self.tau == "best"

    def strength(self, pieces: Callable[[], Iterator[Numbers]], number: int, hostile: int) -> float:
        """Tau, where it is said."""
        return 1.0 if self.tau == "best" else self.tau


@dataclass(frozen=True, kw_only=True)
class ALIE(Scaled):
    """Send the mean of honest uploads, some deviations away."""

    tau: Scale | Literal["best"] = 1.5
    """Deviations; "best" tries the server's step 20 times. ByzFL's 1.5: the paper's formula gives 0 for two of ten."""

    def forge(self, numbers: Numbers, strength: float, draws: torch.Generator) -> Tensor:
        """Mu + tau sigma (ByzFL)."""
        return numbers.mean + strength * numbers.deviation


@dataclass(frozen=True, kw_only=True)
class InnerProduct(Scaled):
    """Send the opposite of the mean of honest uploads."""

    tau: Scale | Literal["best"] = 2.0
    """0.1 to 0.5 against Krum; "best" tries the server's step 20 times."""

    def forge(self, numbers: Numbers, strength: float, draws: torch.Generator) -> Tensor:
        """-tau mu."""
        return -strength * numbers.mean


@dataclass(frozen=True, kw_only=True)
class MinMax(UploadAdversary):
    """Send the mean, as far away as two honest uploads are from each other."""

    sees_honest: ClassVar = True

    def strength(self, pieces: Callable[[], Iterator[Numbers]], number: int, hostile: int) -> float:
        """The largest g whose farthest honest upload is no farther than two honest ones are.

        ||mu - g sigma - x_k||^2 is a square in g for each k, so it is solved and not searched for.
        """
        gram = along = apart = torch.zeros((), dtype=torch.float64)
        for piece in pieces():
            centered, sigma = piece.honest - piece.mean, piece.deviation
            gram = gram + centered @ centered.T
            apart, along = apart + sigma.square().sum(), along + centered @ sigma
        if float(apart) == 0:
            return 0.0
        squares = gram.diagonal()
        across = (squares[:, None] + squares[None, :] - 2 * gram).max()
        # g^2 ||sigma||^2 + 2 g <sigma, x_k - mu> + ||x_k - mu||^2 <= max ||x_i - x_j||^2
        roots = (-along + (along.square() + apart * (across - squares)).clamp(min=0).sqrt()) / apart
        return max(0.0, float(roots.min()))

    def forge(self, numbers: Numbers, strength: float, draws: torch.Generator) -> Tensor:
        """Mu - g sigma."""
        return numbers.mean - strength * numbers.deviation
