"""What every participant of a run knows: models, views, local training, device. It holds no data and no state."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.models import Model
from rayfed_ssl.training.batching import batches, finite, norm, num_batches, spread
from rayfed_ssl.training.captured import Captures, Run
from rayfed_ssl.training.graphs import own_stream
from rayfed_ssl.training.model_factory import ModelFactory
from rayfed_ssl.training.objective import Batch, PerSample, StepOutput, check_loss
from rayfed_ssl.training.optimizers import Optimizer
from rayfed_ssl.training.per_sample import SampleNoise
from rayfed_ssl.training.step import Loss, Rates, Term, Training
from rayfed_ssl.trees import Weights

HEALTH_SAMPLES = 64
"""Samples whose features are looked at after a training: enough to see a collapse, a hundredth of an epoch's time."""


@dataclass(frozen=True, kw_only=True)
class Task(ModelFactory):
    """The learning task that all participants share.

    Attributes:
        optimizer: How clients minimize the objective; made anew for every local training, as in FLESD's code.
        schedule_rounds: Rounds that a schedule spans, of which later ones repeat the last; None means all.
        sample_noise: How gradients of `train` hide single samples, or None.
        captures: Captures steps once in this process and replays them, where they can be captured; None for eager steps.
    """

    optimizer: Optimizer
    schedule_rounds: int | None = None
    sample_noise: SampleNoise | None = field(default=None, compare=False)
    captures: Captures | None = field(default=None, compare=False, repr=False)

    def train(
        self,
        weights: Weights,
        architecture: str,
        data: Shard,
        generator: torch.Generator,
        *,
        round: int,
        loss: Loss | None = None,
        terms: Sequence[Term] = (),
    ) -> tuple[Weights, dict[str, float]]:
        """Train for E_local epochs from a participant's state.

        Args:
            weights: Model and state; what is missing starts anew.
            architecture: The model's encoder.
            data: The shard.
            generator: Makes the state, orders the samples and draws the views.
            round: From 1.
            loss: Takes the place of the objective's.
            terms: Added to the loss of every step.

        Returns:
            The state after training, frozen on the CPU, and the metrics of `fit`.
        """
        with self.borrowed(weights, architecture) as model:
            state = self.objective.start(self, model, data, generator)
            fresh = state.state_dict()
            state.load_state_dict({name: value for name, value in weights.items() if name in fresh}, strict=False)
            if self.sample_noise is not None:
                assert isinstance(self.objective, PerSample), "privacy.level=sample refuses others"
                assert loss is None, "privacy.level=sample refuses methods that change the loss"
                assert not terms, "and those that add to it"
                loss = partial(self.sample_noise.loss, self, self.objective, generator)
            metrics = self.fit(model, data, generator, round=round, state=state, loss=loss, terms=terms)
            return self.weights_of(model, state), metrics

    def fit(
        self,
        model: Model,
        data: Shard,
        generator: torch.Generator,
        *,
        round: int | None = None,
        state: nn.Module | None = None,
        loss: Loss | None = None,
        terms: Sequence[Term] = (),
        epochs: int | None = None,
        batch: int | None = None,
        drop_last: bool | None = None,
        optimizer: Optimizer | None = None,
        phase: Callable[[int, int], Hashable] | None = None,
    ) -> dict[str, float]:
        """Train in place.

        Args:
            model: Model in training mode.
            data: The samples, at least two.
            generator: Orders the samples and draws the views.
            round: From 1; a schedule of the learning rate depends on it. None is a training of its own: a schedule spans it.
            state: The objective's, changed in place; None makes one, or none at all where `loss` is given.
            loss: Takes the place of the objective's; with a state, the objective still looks after it.
            terms: Added to the loss of every step; not part of the reported loss.
            epochs: E_local of the task by default.
            batch: Samples a step; the task's by default.
            drop_last: Whether an incomplete last batch is left out; the task's choice by default.
            optimizer: The task's by default.
            phase: Names what a step does, by its epoch and its place in it, both from 0; the objective's phases by default.

        Returns:
            The mean loss of the first and of the last epoch, the number of steps and of samples seen, `spread` of the
            encoder's features of some samples, how many times as large the weights have become, and if there are any the
            mean of all terms in the last epoch.

        Raises:
            ValueError: Too few samples for one batch, or a loss that is no longer finite.
        """
        batch, num_epochs = batch or self.batch, epochs or self.epochs
        drop_last = self.drop_last if drop_last is None else drop_last
        if state is None and loss is None:
            state = self.objective.start(self, model, data, generator)
        planned = num_epochs * num_batches(len(data), batch, drop_last=drop_last)
        settings, rates = self._rates(optimizer or self.optimizer, round, planned)
        training = Training(
            loss=partial(objective_loss, self, generator) if loss is None else loss,
            terms=tuple(terms),
            model=model,
            state=nn.Module() if state is None else state,
            finish=None if state is None else partial(self.objective.finish_step, self),
            generators=(generator,),
            optimizers={"": settings},
        )
        epoch_losses: list[float] = []
        num_steps = count = 0
        with self.running(training, rates, planned, 0 if round is None else self._trainings_after(round)) as run:
            (ordering,), descent = run.training.generators, run.step.descents[0]
            steps = batches(len(data), batch, ordering, drop_last=drop_last)
            initial_norm = norm(self.trained(model_of(run)))
            for epoch in range(num_epochs):
                if state is not None:
                    self.objective.start_epoch(self, model_of(run), run.training.state, data, epoch, ordering)
                parts, count = steps(), 0
                done_before = ((round or 1) - 1) * num_epochs + epoch
                epoch_phase = self.objective.phase(done_before)
                for place, (index, images) in enumerate(data.batches(parts)):
                    labels = None if data.labels is None else data.labels[index]
                    named = phase(epoch, place) if phase else epoch_phase
                    run.take(Batch(images, index, labels, done_before, named))
                    num_steps, count = num_steps + 1, count + len(index)
                last = epoch == num_epochs - 1
                mean, added, health = run.step.read(*(self._health(model_of(run), data, initial_norm) if last else []))
                where = f"epoch {epoch + 1} of {num_epochs}"
                epoch_losses.append(finite(mean, where, descent))
                if terms:
                    finite(added, where, descent, "what the method adds to the loss")
        growth, feature_std = health
        if not math.isfinite(growth):
            raise ValueError(
                f"the norm of the weights is not finite after the last step at learning rate {descent.lr:g}: lower it"
            )
        metrics = {
            "loss_first": epoch_losses[0],
            "loss": epoch_losses[-1],
            "steps": num_steps,
            "samples": count * num_epochs,
            "feature_std": feature_std,
            "weight_growth": growth,
        }
        return metrics | {"terms": added} if terms else metrics

    @contextmanager
    def running(
        self, training: Training, rates: Sequence[Rates], planned: int, trainings_after: float = 0
    ) -> Iterator[Run]:
        """Run steps of a training as this device does best; model, state and generators have changed once the block ends.

        Args:
            training: What it reads and writes.
            rates: Of its optimizers.
            planned: Steps to come.
            trainings_after: How many trainings like it are to come, about.
        """
        with own_stream(self.device):
            if self.captures is None:
                yield Run.in_place(training, rates, self.device)
                return
            later = planned * trainings_after
            with self.captures.placed(training, rates, self.device, planned, later) as run:
                yield run

    def _rates(self, optimizer: Optimizer, round: int | None, steps: int) -> tuple[Optimizer, list[Rates]]:
        """Part an optimizer from its learning rates in a round."""
        last = self.schedule_rounds or self.rounds
        span = (1, 1) if round is None else (min(round, last), last)
        settings = optimizer.at(*span)
        return replace(settings, lr=1.0), [(settings.lr, settings.rates(*span, steps))]

    def _trainings_after(self, round: int) -> float:
        return max(0, self.rounds - round + 1) * self.cohort_size - 1

    @torch.no_grad()
    def _health(self, model: Model, data: Shard, initial_norm: Tensor) -> list[Tensor]:
        """Compute on the device the growth of the weights and the spread of features of plain samples."""
        ((_, images),) = data.batches([torch.arange(min(HEALTH_SAMPLES, len(data)))])
        model.eval()
        with self.autocast():
            features = model.encoder(self.plain(images))
        model.train()
        return [norm(self.trained(model)) / initial_norm, spread(features.float())]

    def trained(self, model: Model) -> list[nn.Parameter]:
        """List a model's parameters but for those that adapters leave frozen."""
        frozen = {id(tensor) for tensor in self.frozen(model)}
        return [parameter for parameter in model.parameters() if id(parameter) not in frozen]

    def fit_projections(
        self,
        model: Model,
        data: Shard,
        generator: torch.Generator,
        targets: Tensor,
        distance: Callable[[Tensor, Tensor], Tensor],
        **options: Any,
    ) -> dict[str, float]:
        """Train a model's projections of plain images towards targets, in place.

        Args:
            model: Model in training mode.
            data: The samples, N of them.
            generator: Orders the samples.
            targets: On the device, [N, p].
            distance: Loss of projections [B, p], not normalized, and their targets.
            options: As in `fit`.
        """
        return self.fit(model, data, generator, loss=partial(projection_loss, self, distance, targets), **options)

    @torch.inference_mode()
    def represent(self, model: Model, data: Shard, batch: int = 128) -> tuple[Tensor, Tensor]:
        """Compute features [N, d] and projections [N, p] of unaugmented samples in evaluation mode, not normalized."""
        model.eval()
        features, projections = [], []
        for _, images in data.batches(torch.arange(len(data)).split(batch)):
            with self.autocast():
                feature, projection = model(self.plain(images))
            features.append(feature)
            projections.append(projection)
        model.train()
        return torch.cat(features), torch.cat(projections)

    def project(self, model: Model, data: Shard, batch: int = 128) -> Tensor:
        """Compute unit-length projections of unaugmented samples in evaluation mode, float32 [N, projection_dim]."""
        return F.normalize(self.represent(model, data, batch)[1], dim=1)


def objective_loss(task: Task, generator: torch.Generator, model: Model, state: nn.Module, batch: Batch) -> StepOutput:
    """Compute the loss of the task's objective."""
    output = task.objective.loss(task, model, state, batch, generator)
    check_loss(task.objective, model, output)
    return output


def projection_loss(
    task: Task,
    distance: Callable[[Tensor, Tensor], Tensor],
    targets: Tensor,
    model: Model,
    state: nn.Module,
    batch: Batch,
) -> StepOutput:
    """Compare projections of plain images with their targets."""
    with task.autocast():
        _, projections = model(task.plain(batch.images))
    return StepOutput(distance(projections, targets[batch.index]), projections)


def model_of(run: Run) -> Model:
    """Give the model of a training that `Task.fit` began."""
    model = run.training.model
    assert isinstance(model, Model), "fit trains models"
    return model
