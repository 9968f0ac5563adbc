"""What every participant of a run knows: models, views, local training, device. It holds no data and no state."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.data.shard import Shard
from rayfed_ssl.data.views import ViewRecipe, Views, augment, normalise
from rayfed_ssl.models import Model, build_model
from rayfed_ssl.models.precision import Precision, autocast, prepare
from rayfed_ssl.objective import Objective
from rayfed_ssl.optimisers import Optimiser
from rayfed_ssl.seeds import Purpose, derive_seed
from rayfed_ssl.trees import Weights, frozen


@dataclass(frozen=True, kw_only=True)
class Task:
    """The learning task that all participants share.

    Attributes:
        encoder: Architecture of the global model.
        client_encoders: Architectures by client id, cyclically, or () when all have the global one.
        stem: First layers of a ResNet: for small or for large images.
        projection_dim: Width of the projections, or None for the head's own.
        channels: C of the images.
        size: Side of the square views in pixels.
        views: Recipes of a sample's two views.
        objective: What clients minimise locally.
        optimiser: How clients minimise it; made anew for every local training, as in FLESD's code.
        epochs: E_local.
        batch: Samples a step.
        drop_last: Whether an incomplete last batch is left out.
        device: Where models and batches live.
        precision: Number format and memory layout of the forward pass.
        seed: The run's seed, for the initial weights only.
    """

    encoder: str
    client_encoders: tuple[str, ...] = ()
    stem: Literal["auto", "cifar", "imagenet"] = "auto"
    projection_dim: int | None = None
    channels: int
    size: int
    views: Views
    objective: Objective
    optimiser: Optimiser
    epochs: int
    batch: int
    drop_last: bool = False
    device: torch.device
    precision: Precision
    seed: int

    @property
    def heterogeneous(self) -> bool:
        """Whether some client's architecture differs from the global one."""
        return any(name != self.encoder for name in self.client_encoders)

    def architecture(self, client_id: int) -> str:
        """Name the encoder of a client."""
        return self.client_encoders[client_id % len(self.client_encoders)] if self.client_encoders else self.encoder

    def initial_weights(self, architecture: str | None = None) -> Weights:
        """Draw the weights that everybody starts from; one architecture, one draw."""
        name = architecture or self.encoder
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.seed, Purpose.INITIAL_MODEL))
            return frozen(self._build(name).state_dict())

    def model(self, weights: Weights, architecture: str | None = None) -> Model:
        """Make a model in training mode, on the device, that holds a copy of the weights."""
        model = self.blank(architecture or self.encoder).to_empty(device="cpu")
        model.load_state_dict(weights)
        return prepare(model, self.precision, self.device).train()

    def blank(self, architecture: str) -> Model:
        """Make a model without memory: no random weights are drawn that would be thrown away."""
        with torch.device("meta"):
            return self._build(architecture)

    def _build(self, encoder: str) -> Model:
        head = self.objective.head
        return build_model(
            encoder,
            head=head.name,
            projection_dim=self.projection_dim or head.dim,
            channels=self.channels,
            size=self.size,
            stem=self.stem,
        )

    def autocast(self) -> AbstractContextManager[None]:
        """Enter the number format of forward passes; losses are computed outside, in float32."""
        return autocast(self.precision, self.device)

    def augment(self, images: Tensor, recipe: ViewRecipe, generator: torch.Generator) -> Tensor:
        """Draw one random view of each image: uint8 [B, C, H, W] to normalised float [B, C, size, size]."""
        return augment(images, recipe, generator, size=self.size)

    def fit(
        self,
        model: Model,
        data: Shard,
        generator: torch.Generator,
        penalty: Callable[[Model], Tensor] | None = None,
    ) -> dict[str, float]:
        """Train in place for E_local epochs on a shard.

        Args:
            model: Model in training mode.
            data: The shard, at least two samples.
            generator: Orders the samples and draws the views.
            penalty: Term that the method adds to the loss of every step.

        Returns:
            The mean loss of the first and of the last epoch, the number of steps and of samples seen.

        Raises:
            ValueError: Too few samples for one batch, or a loss that is no longer finite.
        """
        steps = self._batches(len(data), generator)
        optimiser = self.optimiser.over(model.parameters())
        epoch_losses: list[float] = []
        num_steps = count = 0
        for epoch in range(self.epochs):
            total, count = torch.zeros((), device=self.device), 0
            for index in steps():
                labels = None if data.labels is None else data.labels[index]
                loss = self.objective.loss(self, model, data.batch(index), labels, generator)
                total, count = total + loss.detach() * len(index), count + len(index)
                if penalty is not None:
                    loss = loss + penalty(model)
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                optimiser.step()
                num_steps += 1
            epoch_losses.append(finite(float(total) / count, f"epoch {epoch + 1} of {self.epochs}", optimiser))
        return {
            "loss_first": epoch_losses[0],
            "loss": epoch_losses[-1],
            "steps": num_steps,
            "samples": count * self.epochs,
        }

    def _batches(self, num_samples: int, generator: torch.Generator) -> Callable[[], list[Tensor]]:
        if num_samples < 2:
            raise ValueError(
                f"a client needs at least 2 samples to train, got {num_samples}: lower clients.number, raise "
                "partition.alpha or take another seed"
            )
        batch = min(self.batch, num_samples)

        def shuffled() -> list[Tensor]:
            order = torch.randperm(num_samples, generator=generator, device=self.device)
            parts = list(order.split(batch))
            # One sample has no negatives and no batch statistics, so a last batch of one is left out.
            if len(parts) > 1 and (len(parts[-1]) < 2 or (self.drop_last and len(parts[-1]) < batch)):
                parts.pop()
            return parts

        return shuffled

    @torch.inference_mode()
    def project(self, model: Model, data: Shard, batch: int = 128) -> Tensor:
        """Compute unit-length projections of unaugmented samples in evaluation mode, float32 [N, projection_dim]."""
        model.eval()
        rows = []
        for index in torch.arange(len(data), device=self.device).split(batch):
            with self.autocast():
                _, projections = model(normalise(data.batch(index), self.views.first))
            rows.append(F.normalize(projections.float(), dim=1))
        model.train()
        return torch.cat(rows)


def finite(loss: float, where: str, optimiser: torch.optim.Optimizer) -> float:
    """Pass a finite loss through.

    Raises:
        ValueError: The loss is NaN or infinite.
    """
    if loss != loss or loss in (float("inf"), float("-inf")):
        rate = optimiser.param_groups[0]["lr"]
        raise ValueError(f"the loss is {loss} in {where} at learning rate {rate}: lower the learning rate")
    return loss
