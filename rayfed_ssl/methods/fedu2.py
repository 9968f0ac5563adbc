"""FedU2: spread each client's representations over the sphere, and move the global model where all clients agree to go.

Liao, Liu, Chen, Zhou, Yu, Zhu, Yao, Wang, Zheng, Tan: Rethinking the Representation in Federated Unsupervised Learning with
Non-IID Data, CVPR 2024. "Code" below is the authors' repository (XeniaLLL/FedU2), from which the equations are taken.

Symbols: z unit projections of a batch [B, p]; s as many points, drawn uniformly on the sphere; a tangent points; v
directions; w global weights; w_k those of client k after training; d_k = (w_k - w) / ||w_k - w||; lambda weights of clients,
at least 0 and with sum 1.

FUR, flexible uniform regularizer: sliced Wasserstein distance of z to s, both laid into the tangent spaces at random points.
EUA, efficient unified aggregator: w <- w + step sum_k lambda_k d_k with lambda = argmin ||sum_k lambda_k d_k||, a direction
that has the same cosine with every client's own that counts, and no smaller one with the others.

Deviations:
- The paper derives FUR from unbalanced optimal transport and EUA from a constrained multi-objective problem solved by ADMM;
  the code computes what stands above.
- FUR acts on first views; the code adds that of second views, which on average is as much. Ours is a mean over tangent
  points; the code divides a sum over B of them by 6. So its 0.01 is our 0.01 x 2 x 128 / 6 = 0.43 at its batch of 128.
- BYOL's and SimSiam's projections have unit length before FUR here; in the code only SimCLR's have.
- lambda is exact; the code takes at most 20 steps of projected gradient descent from the clients' shares.
- The step is the mean of ||w_k - w|| over clients, weighted as FedAvg weighs them, so that one client alone is FedAvg's.
  The code's is 2 x 8 whatever the model and the learning rate: `server_lr=8`.
- Running statistics of batch-norm, and what gradients do not train, are averaged (code: by numbers of batches).
- NT-Xent is SimCLR's; the code leaves exp(0) in the place of a view's similarity with itself in each denominator.
- Clients train for equal epochs. In the code small clients train longer, in its comparisons FedU2's alone: `max_steps`.
- The code as launched trains on predicting rotations besides; this is not part of the paper's method, and left out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass as pydantic_dataclass
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.aggregation.weighted_mean import weighted_mean
from rayfed_ssl.method import Client, Metrics, Model, Server, Task, Term, Weights, sent
from rayfed_ssl.methods import fedavg
from rayfed_ssl.methods.fedavg import Averaging, Download, ServerState
from rayfed_ssl.randomness.draws import draw

MAX_COSINE = 1 - 1e-6
"""Beyond it a point and a tangent point are the same or opposite, where the angle has no gradient."""

MAX_EPOCHS = 10
"""Local epochs that a small client does at most (code)."""


def tangent_slices(points: Tensor, samples: Tensor, directions: Tensor) -> Tensor:
    """Project on directions where the sphere's logarithm map at tangent points lays samples.

    Args:
        points: a, unit rows [T, p].
        samples: Unit rows [B, p].
        directions: v, [T, R, p].

    Returns:
        v . log_a(sample), with log_a(x) = (x - cos(theta) a) theta / sin(theta), theta the angle of x and a: [T, R, B].
    """
    cosine = (points @ samples.T).clamp(-MAX_COSINE, MAX_COSINE)
    angle = cosine.acos()
    along = directions @ samples.T - cosine.unsqueeze(1) * (directions @ points.unsqueeze(2))
    return along * (angle / angle.sin()).unsqueeze(1)


def sliced_distance(first: Tensor, second: Tensor) -> Tensor:
    """Squared 2-Wasserstein distance of slices [T, R, B], averaged over slices: that of sorted samples."""
    return (first.sort(dim=2).values - second.sort(dim=2).values).square().mean()


def uniformity_loss(projections: Tensor, uniform: Tensor, points: Tensor, directions: Tensor) -> Tensor:
    """FUR: how far unit projections [B, p] are from points of a uniform distribution [B, p]; 0 if they are the same."""
    return sliced_distance(*(tangent_slices(points, samples, directions) for samples in (projections, uniform)))


def common_direction(cosines: Tensor) -> Tensor:
    """Minimize ||sum_k lambda_k d_k|| over lambda_k >= 0 with sum 1 (EUA).

    The least s^2 ||sum_k lambda_k d_k||^2 + (s - 1)^2 has the same lambda, whatever s is, and is a problem of non-negative
    least squares in s lambda.

    Args:
        cosines: d_i . d_j, float64 [K, K].

    Returns:
        float64 [K].
    """
    from sklearn.linear_model import LinearRegression  # takes a second to import

    values, vectors = torch.linalg.eigh(cosines)
    rows = torch.cat([values.clamp(min=0).sqrt().unsqueeze(1) * vectors.T, torch.ones_like(cosines[:1])])
    targets = torch.cat([torch.zeros_like(values), values.new_ones(1)])
    scaled = LinearRegression(positive=True, fit_intercept=False).fit(rows.numpy(), targets.numpy()).coef_
    weights = torch.from_numpy(scaled).double()
    return weights / weights.sum()


def inner_products(start: Weights, ends: Sequence[Weights]) -> Tensor:
    """Inner products of the clients' moves w_k - w over all tensors of w, float64 [K, K]."""
    total = torch.zeros(len(ends), len(ends), dtype=torch.float64)
    for name, origin in start.items():
        moves = torch.stack([(end[name].double() - origin.double()).flatten() for end in ends])
        total += moves @ moves.T
    return total


@dataclass(frozen=True)
class Upload(fedavg.Upload):
    """FedAvg's, of which the server compares all clients' weights."""

    weights: Weights = sent("weights", held=True)


@pydantic_dataclass(frozen=True, kw_only=True)
class FedU2(Averaging):
    """FedAvg with representations spread over the sphere, and a step that suits all clients.

    The server holds all uploads of a round at once: it needs every client's weights to weigh each.
    """

    sends = property(lambda self: Upload if self.aggregator == "eua" else fedavg.Upload)
    uniformity: NonNegativeFloat = 0.43
    """Strength of FUR; 0 leaves it out."""
    tangent_points: PositiveInt = 6
    """Tangent spaces in which distributions are compared, drawn for each step (code, see above)."""
    directions: PositiveInt = 6
    """Directions in each of them (code)."""
    aggregator: Literal["eua", "mean"] = "eua"
    """How weights are aggregated: "eua" or, for FUR alone, "mean"."""
    server_lr: PositiveFloat | None = None
    """eta, 8 in the code; w moves by 2 eta ||sum_k lambda_k d_k||. None takes the mean length of the clients' moves in
    the place of 2 eta.
    """
    max_steps: PositiveInt | None = None
    """Steps in which a client does as many whole epochs as it can, from 1 to 10; in the code those of the largest
    client. None is equal epochs for all.
    """

    def __post_init__(self) -> None:
        if self.server_lr is not None and self.aggregator == "mean":
            raise ValueError(
                f"method.server_lr={self.server_lr} has no meaning with method.aggregator=mean: remove one of them"
            )

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Say where clients do more work than under other methods."""
        notes = super().check(task, num_public)
        if self.max_steps is None:
            return notes
        return (
            *notes,
            f"FedU2's clients train for up to {MAX_EPOCHS} epochs, and not for {task.epochs}, with method.max_steps: "
            "leave it out to compare with other methods",
        )

    def update_client(self, download: Download, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        """FedAvg's local training with FUR; small clients may do more epochs."""
        if self.max_steps is not None:
            steps = math.ceil(len(client.data) / client.task.batch)
            epochs = max(1, min(self.max_steps // steps, MAX_EPOCHS))
            client = replace(client, task=replace(client.task, epochs=epochs))
        return super().update_client(download, state, client)

    def local_term(self, download: Download, client: Client) -> Term | None:
        """Make FUR on each step's projections of first views."""
        if self.uniformity == 0:
            return None
        return partial(self.spread, client.method_generator)

    def spread(self, generator: torch.Generator, model: Model, projections: Tensor) -> Tensor:
        """Compute FUR of projections [B, p], times its strength."""
        normal = partial(draw, torch.randn, generator=generator, device=projections.device)
        num, width = projections.shape
        uniform, points = (F.normalize(normal(count, width), dim=1) for count in (num, self.tangent_points))
        directions = normal(self.tangent_points, self.directions, width)
        return self.uniformity * uniformity_loss(F.normalize(projections, dim=1), uniform, points, directions)

    def aggregate(
        self, state: ServerState, uploads: Mapping[int, fedavg.Upload], server: Server
    ) -> tuple[Weights, Metrics]:
        """EUA; reports ||sum_k lambda_k d_k||, 1 where all clients go one way and 0 where no direction suits all."""
        if self.aggregator == "mean":
            return super().aggregate(state, uploads, server)
        held = [(self.factor(upload), upload.weights) for upload in uploads.values()]
        mean = weighted_mean(held)
        trained = {name for name, _ in server.task.blank(state.architecture).named_parameters()}
        start, *ends = (
            {n: w[n] for n in w if n in trained} for w in (state.weights, *(weights for _, weights in held))
        )
        products = inner_products(start, ends)
        lengths = products.diagonal().sqrt()
        units = lengths.where(lengths > 0, 1.0)
        cosines = products / units.outer(units)
        weights = common_direction(cosines)
        factors = torch.tensor([factor for factor, _ in held], dtype=torch.float64)
        step = 2 * self.server_lr if self.server_lr else float(factors / factors.sum() @ lengths)
        shares = (step * weights / units).tolist()
        # w + sum_k shares_k (w_k - w); what has no share is left out, so that zeros keep their sign.
        summands = [*zip(shares, ends, strict=True), (1 - math.fsum(shares), start)]
        moved = weighted_mean((share, tree) for share, tree in summands if share)
        return mean | moved, {"agreement": float((weights @ cosines @ weights).clamp(min=0).sqrt())}
