"""TrimmedMean, a method of one's own whose server needs all uploads at once: each number's mean without its extremes.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018.

    rayfed-ssl run method=examples.trimmed_mean:TrimmedMean method.trim=0.2 public=null
    python -m examples.trimmed_mean       # checks it against the laws

Symbols: m clients of a round; beta the share that is left out at each end; w_k the weights of client k.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from rayfed_ssl.method import Metrics, Server, Weights, sent
from rayfed_ssl.methods import fedavg
from rayfed_ssl.methods.fedavg import Averaging, ServerState


def trimmed_mean(all_weights: Sequence[Weights], trim: float) -> Weights:
    """Average each number without the floor(beta m) largest and as many smallest; batch-norm's counters are of the first."""
    cut, first = int(trim * len(all_weights)), all_weights[0]
    means: Weights = {}
    for name, value in first.items():
        values = torch.stack([weights[name] for weights in all_weights]).double().sort(dim=0).values
        kept = values[cut : len(all_weights) - cut].mean(dim=0)
        means[name] = kept.to(value.dtype) if value.is_floating_point() else value
    return means


@dataclass(frozen=True)
class Upload(fedavg.Upload):
    """FedAvg's, of which the server holds all weights: without `held` the law of hoarded uploads fails."""

    weights: Weights = sent("weights", held=True)


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Averaging):
    """FedAvg whose server leaves out extreme numbers, so that few clients cannot move it far."""

    sends: ClassVar = Upload
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    """beta."""

    def aggregate(
        self, state: ServerState, uploads: Mapping[int, fedavg.Upload], server: Server
    ) -> tuple[Weights, Metrics]:
        """Read each upload once, in order, and keep its weights."""
        return trimmed_mean([upload.weights for upload in uploads.values()], self.trim), {}


if __name__ == "__main__":
    from rayfed_ssl.testing import check_method

    check_method(TrimmedMean())
