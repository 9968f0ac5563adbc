"""Gradient inversion: pictures whose gradient points where the client's weights went.

Geiping, Bauermeister, Droege, Moeller: Inverting Gradients - How easy is it to break privacy in federated learning?,
NeurIPS 2020 (arXiv 2003.14053). Symbols: theta the received weights, d their change, received - sent; x the pictures, n of
them; L the objective; TV total variation, alpha its weight.

x = argmin over [0, 1] of 1 - cos(grad_theta L(theta, x), d) + alpha TV(x) (Eq. 4), by Adam on the signs of its gradient,
whose rate falls to a tenth after 3, 5 and 7 eighths of the iterations (their code).

Deviations:
- L is that of the objective, of two random views of each picture. With `views=known` they are those that the client drew for
  its first step, an upper bound that no server reaches; with `views=anew` each iteration draws others.
- d is of the whole local training, and L of one step on all n pictures at once: several epochs, batches below n, momentum,
  Adam's rule, and terms that a method adds to the objective's loss are not followed.
- What the client alone keeps, such as a queue of keys, starts as that of a newcomer. Batch-norm takes the statistics of x.
- One start from uniform noise. Reconstructions come in no order: each is measured against a member of its own, at the least
  squared error in all; what chance gives stands beside (`psnr-chance`, `rank-chance`).
"""

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from rayfed_ssl.attacks.attack import Attack, Finding, Pictures, Seen, Truth, received_model, uploaded_model
from rayfed_ssl.attacks.reconstruction import assign, compare, pixels, squared_distances
from rayfed_ssl.data.augmentation import augment_pixels, center_crop
from rayfed_ssl.data.color import standardize
from rayfed_ssl.data.view_recipes import OwnView, ViewRecipe
from rayfed_ssl.method import Task, sent_fields
from rayfed_ssl.randomness.seeds import generator
from rayfed_ssl.training.objective import Batch
from rayfed_ssl.training.optimizers import Adam
from rayfed_ssl.validation import Validated


class PixelTask(Task):
    """A task whose images are pixels in [0, 1], float32 [B, C, H, W], and whose views have gradients to them."""

    def augment(
        self, images: Tensor, recipe: ViewRecipe, generator: torch.Generator, size: int | None = None
    ) -> Tensor:
        """Draw the view that the task draws."""
        return augment_pixels(images, recipe, generator, size=size or self.size)

    def plain(self, images: Tensor) -> Tensor:
        """Normalize the center."""
        return standardize(center_crop(images, self.size), self.views.first.mean, self.views.first.std)


def total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighboring pixels in both directions, a scalar."""
    return images.diff(dim=2).abs().mean() + images.diff(dim=3).abs().mean()


def num_samples(seen: Seen) -> int:
    """Find how many samples an upload says that it comes from; raises ValueError where it says nothing."""
    for name, _, value in sent_fields(seen.upload):
        if name.rpartition(".")[2] == "num_samples":
            return int(value)
    raise ValueError("the upload does not say from how many pictures it comes")


@dataclass(frozen=True, kw_only=True)
class GradientInversion(Attack, Validated):
    """Pictures found by matching gradients."""

    knows = property(
        lambda self: ("objective", "views") if self.views == "anew" else ("objective", "the client's random draws")
    )
    views: Literal["anew", "known"] = "anew"
    """Whether views are drawn anew in each iteration, or are the client's."""
    most: Annotated[int, Field(ge=2)] = 16
    """Most pictures of a client: of more, one gradient tells too little."""
    iterations: PositiveInt = 200
    """Of Adam; the paper's 4,800 take minutes a picture."""
    lr: PositiveFloat = 0.1
    """Of Adam (paper)."""
    variation: NonNegativeFloat = 1e-2
    """alpha."""

    def target(self, seen: Seen) -> str:
        """Weights, from which the gradient is estimated."""
        uploaded_model(seen)
        num_samples(seen)
        if seen.task.objective.needs_labels:
            raise ValueError("the objective needs labels, and this attack does not find them")
        if any(isinstance(recipe, OwnView) for recipe in (seen.task.views.first, seen.task.views.second)):
            raise ValueError("the views are a user's function, which gives no gradients")
        return "weights"

    def run(self, seen: Seen, truth: Truth) -> Iterator[Finding | Pictures]:
        """Match gradients, and measure against the members."""
        found = center_crop(self.invert(seen), seen.task.size)
        yield from compare(seen, found, lambda samples: assign(squared_distances(found, pixels(seen, samples))), truth)

    def invert(self, seen: Seen) -> Tensor:
        """Find x, [n, C, H, W]."""
        shape = (num_samples(seen), *seen.auxiliary.images.shape[1:])
        images = nn.Parameter(torch.rand(shape, generator=seen.generator(6)).to(seen.task.device))
        falls = (torch.arange(self.iterations) * 8 / self.iterations).sub(1).div(2).floor().clamp(min=0)
        descent = Adam(lr=self.lr, weight_decay=0).over([images], self.lr * 0.1**falls)
        distance = self.distance(seen, len(images))
        for _ in range(self.iterations):
            loss = distance(images) + self.variation * total_variation(images)
            (gradient,) = torch.autograd.grad(loss, images)
            descent.step({images: gradient.sign().nan_to_num()})
            images.data.clamp_(0, 1)
        return images.detach()

    def distance(self, seen: Seen, number: int) -> Callable[[Tensor], Tensor]:
        """Give 1 minus the cosine of d with the gradient of L at pictures in [0, 1], [n, C, H, W]."""
        task, model, objective = seen.task, received_model(seen), seen.task.objective
        pixel_task = PixelTask(**{field.name: getattr(task, field.name) for field in fields(task)})
        trained = {name: p for name, p in model.named_parameters() if name in seen.received and name in seen.sent}
        change = torch.cat([(seen.received[name] - seen.sent[name]).flatten() for name in trained]).to(task.device)
        # The client draws for its state and its batches before it draws views; whose pictures they are does not matter.
        random = generator(seen.client_seed) if self.views == "known" else seen.generator(7)
        data, epoch = seen.auxiliary.select(torch.arange(number)), (seen.round - 1) * task.epochs
        state = objective.start(task, model, data, random)
        held = state.state_dict().keys() & seen.received.keys()
        state.load_state_dict({name: seen.received[name] for name in held}, strict=False)
        objective.start_epoch(task, model, state, data, 0, random)
        index = torch.randperm(number, generator=random)
        before_views = random.get_state()

        def distance(images: Tensor) -> Tensor:
            if self.views == "known":
                random.set_state(before_views)
            with sdpa_kernel(SDPBackend.MATH):  # others have no second derivative
                batch = Batch(images, index.to(task.device), None, epoch)
                loss = objective.loss(pixel_task, model, state, batch, random).loss
                gradients = torch.autograd.grad(
                    loss, list(trained.values()), create_graph=True, allow_unused=True, materialize_grads=True
                )
            return 1 - F.cosine_similarity(torch.cat([gradient.flatten() for gradient in gradients]), change, dim=0)

        return distance
