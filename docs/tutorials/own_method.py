# %% [markdown]
# # Own method
#
# FedAvg averages the clients' weights. If one client diverges, the mean follows it. This method moves each weight
# by the median of the clients' changes instead. It is a dataclass that inherits from `Averaging` and replaces one
# step, `aggregate`.

# %%
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import PositiveFloat

from rayfed_ssl import Config, run
from rayfed_ssl.method import Metrics, Server, Weights, sent
from rayfed_ssl.methods import fedavg
from rayfed_ssl.methods.fedavg import Averaging
from rayfed_ssl.testing import check_method


@dataclass(frozen=True)
class Upload(fedavg.Upload):
    """FedAvg's, of which the server holds all weights: a median needs all uploads at once."""

    weights: Weights = sent("weights", held=True)


@dataclass(frozen=True, kw_only=True)
class FedMedian(Averaging):
    """FedAvg with a coordinate-wise median of the clients' changes (Yin et al. 2018)."""

    step: PositiveFloat = 1.0
    """How far the server moves; 1 goes all the way."""
    sends = Upload

    def aggregate(self, state: Any, uploads: Mapping[int, fedavg.Upload], server: Server) -> tuple[Weights, Metrics]:
        """Move the global weights by the median of the clients' changes."""
        received = [upload.weights for upload in uploads.values()]
        moved = {}
        for name, weight in state.weights.items():
            changes = torch.stack([weights[name] - weight for weights in received])
            moved[name] = weight + (self.step * changes.median(0).values).to(weight.dtype)
        return moved, {}


# %% [markdown]
# ## Run it
#
# A method is named by its module and class. In a file `my_method.py` it would be `my_method:FedMedian`, on the
# command line, in sweeps and on Ray too; in a notebook or script it is `__main__:FedMedian`, in this process.

# %%
settings = ("rounds=2", "training.epochs=1", "data.train_limit=600")
for name, method in (("mean", "fedavg"), ("median", "{name: '__main__:FedMedian', step: 0.5}")):
    result = run(Config.load("fedsimclr", f"method={method}", *settings), f"runs/{name}")
    print(name, {score: round(value, 3) for score, value in result.scores["global"].items()})

# %% [markdown]
# Both runs have the same cohorts, shards and batches, because these follow from the seed and not from the method.
#
# ## Check it
#
# What must hold for every method is tested on 150 digits: inputs are not written, a resumed run has the same
# bits, the order of the clients does not matter, uploads hold what they declare, and more.

# %%
check_method(FedMedian(step=0.5))
print("all laws hold")
