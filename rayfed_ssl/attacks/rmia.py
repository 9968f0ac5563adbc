"""RMIA: is this picture fitted better than pictures at large, against a model that saw neither?

Zarifzadeh, Liu, Shokri: Low-Cost High-Power Membership Inference Attacks, ICML 2024 (arXiv 2312.03262). Symbols: theta the
client's model, theta' a reference; x the picture, z pictures at large; p(x | theta) likelihood.

Lambda(x, z) = (p(x | theta) / p(x)) / (p(z | theta) / p(z)), and the score is the share of z with Lambda >= gamma (Eq. 4).

Deviations: an encoder gives no likelihood, so log p(x | theta) is the mean cosine of projections of pairs of views over
`temperature`, up to a constant that Lambda cancels: what SimCLR, BYOL and their kin raise. p(x) is that of one reference,
which the server trains from the weights of round 1 on auxiliary pictures, for the epochs of all rounds up to the attacked
one. A reference from the attacked round's download would have seen the members in all rounds before.
"""

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass
from torch import Tensor

from rayfed_ssl.attacks.attack import Seen, uploaded_model, weights_in
from rayfed_ssl.attacks.encoder_mi import mean_cosine
from rayfed_ssl.attacks.membership import Membership
from rayfed_ssl.attacks.model_theft import embed
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.methods.fedavg import Averaging
from rayfed_ssl.models import Model
from rayfed_ssl.randomness.seeds import generator
from rayfed_ssl.trees import digest


def score(pictures: Tensor, population: Tensor, gamma: float) -> Tensor:
    """Share of z [Z] with log Lambda(x, z) >= log gamma, from log ratios log p(. | theta) - log p(.); [N] for x [N]."""
    lambdas = pictures.unsqueeze(1) - population
    return (lambdas >= torch.tensor(gamma).log()).double().mean(1)


@dataclass(frozen=True, kw_only=True)
class RMIA(Membership):
    """Likelihood ratio against one reference model and a population."""

    knows: ClassVar = ("auxiliary pictures", "objective", "views", "hyperparameters")
    gamma: PositiveFloat = 1.0
    """gamma; the paper takes 1 for one reference, and finds it to matter little."""
    temperature: PositiveFloat = 0.1
    """Of the likelihood."""
    views: Annotated[int, Field(ge=2, le=1000)] = 10
    """Views of each picture."""
    samples: Annotated[int, Field(ge=2)] = 512
    """Auxiliary pictures that the reference is trained on, at most."""
    population: Annotated[int, Field(ge=1)] = 500
    """Z, auxiliary pictures that the reference is not trained on; at most half of them."""

    def target(self, seen: Seen) -> str:
        """Weights, of the client and of the reference."""
        uploaded_model(seen)
        if isinstance(seen.method, Averaging) and not seen.method.takes_old_versions:
            raise ValueError("clients of round 1 send no weights, so that no reference can be trained from their start")
        if len(seen.auxiliary) < 4:
            raise ValueError(f"the test split has {len(seen.auxiliary)} auxiliary pictures, and a reference needs more")
        return "weights"

    def scores(self, seen: Seen, model: Model, samples: Shard) -> Tensor:
        """Score of each picture, in [0, 1]."""
        order = self.order(len(seen.auxiliary))
        number = min(self.population, len(order) // 2)
        population = seen.auxiliary.select(order[:number])
        reference = self.reference(seen)
        pictures, others = (self.log_ratios(seen, model, reference, group) for group in (samples, population))
        return score(pictures, others, self.gamma)

    @staticmethod
    def order(number: int) -> Tensor:
        """Order the auxiliary pictures, the same for all clients of a run: the population comes first."""
        return torch.randperm(number, generator=generator(number))

    def reference(self, seen: Seen) -> Model:
        """Train theta' on pictures that no client has; it serves all clients that received the same in round 1."""
        first, epochs = seen.first(), seen.round * seen.task.epochs
        key = digest((first, seen.round, seen.architecture, vars(self), "rmia"))
        if key not in seen.memory:
            order = self.order(len(seen.auxiliary))
            data = seen.auxiliary.select(order[min(self.population, len(order) // 2) :][: self.samples])
            task = replace(seen.task, epochs=epochs, rounds=1, schedule_rounds=None)
            alone = replace(seen, download=first, round=1, task=task, seed=int(key[:15], 16))
            seen.memory[key] = weights_in(first) | weights_in(alone.simulate(data, draw=2))
        return seen.task.model(seen.memory[key], seen.architecture)

    def log_ratios(self, seen: Seen, model: Model, reference: Model, samples: Shard) -> Tensor:
        """Log p(x | theta) - log p(x | theta'), on the same views, [N]."""
        random, images = seen.generator(4), samples.batch(torch.arange(len(samples)))
        views = (seen.task.augment(images, seen.task.views.first, random) for _ in range(self.views))
        pairs = [(embed(seen, model, view)[1], embed(seen, reference, view)[1]) for view in views]
        own, other = (mean_cosine(torch.stack(rows)) for rows in zip(*pairs, strict=True))
        return (own - other).double() / self.temperature
