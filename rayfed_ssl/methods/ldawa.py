"""L-DAWA: average layer by layer, each client's layer scaled by the cosine of its angle to the global one.

Rehman, Gao, de Gusmao, Alibeigi, Shen, Lane: L-DAWA: Layer-wise Divergence Aware Weight Aggregation in Federated
Self-Supervised Visual Representation Learning, ICCV 2023. "Code" below is the authors' repository.

Symbols: w_k^l tensor l of client k after local training; w_g^l the global one that it started from; K clients of the round;
delta_k^l = cos(w_k^l, w_g^l).

Deviations:
- delta shrinks a layer wherever it is below 1 (code). `renormalize` divides by the sum of |delta| instead of K.
- A delta below 0 turns a layer round (code). Where w_k^l or w_g^l is 0 there is no angle, and delta is 1; the code divides
  by 0 if w_g^l is 0.
- Scalars and integers (batch-norm's step counters) are averaged without scaling; running means and variances are vectors
  and scaled like weights (code).
- The warm-up is weighted as FedAvg is, later rounds are not weighted by samples (code).
"""

from collections.abc import Iterable, Mapping
from typing import ClassVar

import torch
from pydantic import NonNegativeInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from rayfed_ssl.method import Metrics, Server, Task, Weights
from rayfed_ssl.methods.fedavg import Averaging, ServerState, Upload


def angle(local: Tensor, reference: Tensor) -> float:
    """delta_k^l: cosine of the angle between two tensors, in [-1, 1]; 1 where one of them is 0."""
    first, second = local.double().flatten(), reference.double().flatten()
    lengths = float(first.norm() * second.norm())
    return max(-1.0, min(1.0, float(first @ second) / lengths)) if lengths > 0 else 1.0


def layerwise_mean(trained: Iterable[Weights], reference: Weights, renormalize: bool) -> tuple[Weights, list[float]]:
    """w^l <- 1/K sum_k delta_k^l w_k^l, one client at a time; sums are float64.

    Args:
        trained: w_k of each client.
        reference: w_g.
        renormalize: Whether the sum of |delta_k^l| stands in the place of K; a layer at right angles to all clients' then
            stays as it was.

    Returns:
        The mean, and all delta_k^l.

    Raises:
        ValueError: No client sent anything.
    """
    sums, scales, angles = dict[str, Tensor](), dict[str, float](), []
    for weights in trained:
        for name, value in weights.items():
            cosine = 1.0
            if value.is_floating_point() and value.dim() > 0:  # others have no direction
                cosine = angle(value, reference[name])
                angles.append(cosine)
            summand = value.double() * cosine
            sums[name] = sums[name].add_(summand) if name in sums else summand
            scales[name] = scales.get(name, 0.0) + (abs(cosine) if renormalize else 1.0)
    if not sums:
        raise ValueError("L-DAWA has nothing to average: no client of this round sent an upload")
    means = {name: total / scales[name] if scales[name] else reference[name] for name, total in sums.items()}
    return {
        name: (mean if reference[name].is_floating_point() else mean.round()).to(reference[name].dtype)
        for name, mean in means.items()
    }, angles


@dataclass(frozen=True, kw_only=True)
class LDAWA(Averaging):
    """FedAvg with a mean that looks at each layer's direction."""

    uploads_follow_weights: ClassVar = True
    warm_up: NonNegativeInt = 3
    """First rounds that are FedAvg's, `weighting` too; the code's condition makes them 3."""
    renormalize: bool = False
    """Divide by the sum of delta's magnitudes instead of K, so that layers do not shrink."""

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Say where all rounds are FedAvg's."""
        notes = super().check(task, num_public)
        if task.rounds <= self.warm_up:
            return (*notes, f"L-DAWA is FedAvg here: all {task.rounds} rounds are warm-up, lower method.warm_up")
        return notes

    def aggregate(self, state: ServerState, uploads: Mapping[int, Upload], server: Server) -> tuple[Weights, Metrics]:
        """Average, after the warm-up layer by layer; reports the mean cosine."""
        if server.round <= self.warm_up:
            return super().aggregate(state, uploads, server)
        trained = (upload.weights for upload in uploads.values())
        mean, angles = layerwise_mean(trained, state.weights, self.renormalize)
        return mean, {"cosine": float(torch.tensor(angles, dtype=torch.float64).mean())}
