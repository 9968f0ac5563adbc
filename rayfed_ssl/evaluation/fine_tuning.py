"""Fine-tuning of a whole encoder with a classifier on top, from few labels or on other data.

- FedCA (Zhang et al. 2020), Tables 2 and 3: a classifier with one hidden layer, Adam.
- SwAV (Caron et al., NeurIPS 2020; eval_semisup.py of its code), which FCL follows: a linear classifier, SGD with one
  learning rate for the encoder and a higher one for the classifier.

Symbols: N labeled samples, d feature width, K classes, B batch. Batch-norm uses each batch's statistics, as in SwAV's code.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.evaluation.evaluation_input import Subject, probe_view
from rayfed_ssl.evaluation.features import evaluating
from rayfed_ssl.evaluation.linear_probe import Classifier
from rayfed_ssl.training.batching import finite
from rayfed_ssl.training.objective import Batch, StepOutput
from rayfed_ssl.training.optimizers import OPTIMIZERS, Optimizer
from rayfed_ssl.training.step import Training
from rayfed_ssl.training.task import Task


@dataclass(frozen=True, kw_only=True)
class FineTuning(Classifier):
    """How encoder and classifier are trained together; defaults are FedCA's where it names them.

    Attributes:
        head: "mlp" (d-d-K with a ReLU) or "linear" (d-K).
        head_lr: Learning rate of the classifier; None takes the encoder's.
        augment: Whether each epoch draws a crop and a flip of every sample.
    """

    head: Literal["mlp", "linear"] = "mlp"
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: PositiveFloat = 1e-3
    head_lr: PositiveFloat | None = None
    batch: Annotated[int, Field(ge=2)] = 128
    epochs: PositiveInt = 100
    milestones: tuple[int, ...] = ()
    augment: bool = True

    @property
    def _head_lr(self) -> float:
        return self.lr if self.head_lr is None else self.head_lr

    def fit(self, subject: Subject, rows: Tensor) -> tuple[float, float]:
        """Train a copy of the encoder and a classifier on training samples `rows` [N]; give the last and best accuracy."""
        if len(rows) < 2:
            raise ValueError(f"fine-tuning needs at least 2 labeled samples, got {len(rows)}: raise fraction")
        data = Shard.of(subject.train.images, rows.numpy(), subject.task.device, subject.train.labels)
        assert data.labels is not None, "training samples have labels"
        with subject.seeded() as random:
            network = self.network(subject)
            training = Training(
                loss=partial(self.loss, subject.task, random),
                model=network,
                state=nn.Module(),
                generators=(random,),
                optimizers=self.optimizers(),
            )
            parts = [part for part in torch.arange(len(data)).split(self.batch) if len(part) > 1]
            rates = [(self.lr, None), (self._head_lr, None)]
            accuracies = []
            with subject.task.running(training, rates, self.epochs * len(parts)) as run:
                for epoch in range(self.epochs):
                    for descent, (rate, _) in zip(run.step.descents, rates, strict=True):
                        descent.lr = rate * self.factor(epoch)
                    (ordering,) = run.training.generators
                    order = torch.randperm(len(data), generator=ordering).split(self.batch)
                    for index, images in data.batches(order[: len(parts)]):
                        run.take(Batch(images, index, data.labels[index], epoch))
                    mean, _, _ = run.step.read()
                    finite(mean, f"epoch {epoch + 1} of {self.epochs} of fine-tuning", run.step.descents[0])
                    accuracies.append(accuracy_of(subject, run.training.model))
        return accuracies[-1], max(accuracies)

    def network(self, subject: Subject) -> nn.Sequential:
        """Put a fresh classifier, drawn as torch draws linear layers, on a copy of the encoder."""
        body = subject.model().encoder
        width = int(body.feature_dim)  # type: ignore[arg-type]  # nn.Module knows no attributes
        hidden = [nn.Linear(width, width), nn.ReLU(inplace=True)] if self.head == "mlp" else []
        head = nn.Sequential(*hidden, nn.Linear(width, subject.train.num_classes)).to(subject.task.device)
        return nn.Sequential(body, head).train()

    def optimizers(self) -> dict[str, Optimizer]:
        """Make the optimizers of encoder and classifier; learning rates are given to them later."""
        shared = {"weight_decay": self.weight_decay} | ({"momentum": self.momentum} if self.optimizer == "sgd" else {})
        kind: Callable[..., Optimizer] = OPTIMIZERS[self.optimizer]
        return {part: kind(lr=1.0, **shared) for part in ("0", "1")}

    def loss(
        self, task: Task, random: torch.Generator, network: nn.Module, state: nn.Module, batch: Batch
    ) -> StepOutput:
        """Cross entropy of one batch."""
        view = probe_view(task, batch.images, random) if self.augment else task.plain(batch.images)
        with task.autocast():
            scores = network(view)
        assert batch.labels is not None
        return StepOutput(F.cross_entropy(scores.float(), batch.labels), scores)


def accuracy_of(subject: Subject, network: nn.Module) -> float:
    """Share of test images whose highest class score is their class's, in [0, 1]."""
    with evaluating(network):
        scores = subject.extract(network, subject.test.images)
    if not bool(scores.isfinite().all()):
        raise ValueError("class scores of test images are not finite: lower the learning rate")
    return int((scores.argmax(1) == subject.labels[1]).sum()) / len(scores)
