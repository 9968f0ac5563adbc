"""Fine-tuning of a whole encoder with a classifier on top, from few labels or on other data.

- FedCA (Zhang et al. 2020), Tables 2 and 3: a classifier with one hidden layer, Adam.
- SwAV (Caron et al., NeurIPS 2020; eval_semisup.py of its code), which FCL follows: a linear classifier, SGD with one
  learning rate for the encoder and a higher one for the classifier.

Symbols: N labeled samples, d feature width, K classes, B batch. Batch-norm uses each batch's statistics, as in SwAV's code.
"""

from collections.abc import Callable
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.evaluation.evaluation_input import Subject
from rayfed_ssl.evaluation.features import evaluating
from rayfed_ssl.evaluation.linear_probe import Classifier
from rayfed_ssl.training.batching import finite
from rayfed_ssl.training.optimizers import OPTIMIZERS, Descent, Optimizer
from rayfed_ssl.training.step import descend


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
        with subject.seeded() as random:
            network = self.network(subject)
            descents = self.descents(network)
            accuracies = []
            for epoch in range(self.epochs):
                for descent, rate in zip(descents, (self.lr, self._head_lr), strict=True):
                    descent.lr = rate * self.factor(epoch)
                loss = self._epoch(subject, network, descents, data, random)
                finite(loss, f"epoch {epoch + 1} of {self.epochs} of fine-tuning", descents[0])
                accuracies.append(accuracy_of(subject, network))
        return accuracies[-1], max(accuracies)

    def network(self, subject: Subject) -> nn.Sequential:
        """Put a fresh classifier, drawn as torch draws linear layers, on a copy of the encoder."""
        body = subject.model().encoder
        width = int(body.feature_dim)  # type: ignore[arg-type]  # nn.Module knows no attributes
        hidden = [nn.Linear(width, width), nn.ReLU(inplace=True)] if self.head == "mlp" else []
        head = nn.Sequential(*hidden, nn.Linear(width, subject.train.num_classes)).to(subject.task.device)
        return nn.Sequential(body, head).train()

    def descents(self, network: nn.Sequential) -> tuple[Descent, Descent]:
        """Make the optimizers of encoder and classifier."""
        shared = {"weight_decay": self.weight_decay} | ({"momentum": self.momentum} if self.optimizer == "sgd" else {})
        kind: Callable[..., Optimizer] = OPTIMIZERS[self.optimizer]
        encoder, head = (kind(lr=rate, **shared) for rate in (self.lr, self._head_lr))
        return encoder.over(network[0].parameters()), head.over(network[1].parameters())

    def _epoch(
        self,
        subject: Subject,
        network: nn.Sequential,
        descents: tuple[Descent, Descent],
        data: Shard,
        random: torch.Generator,
    ) -> float:
        """Train for one epoch, in place, and give the mean loss."""
        assert data.labels is not None
        total, count = torch.zeros((), device=subject.task.device), 0
        parts = torch.randperm(len(data), generator=random).split(self.batch)
        for index, images in data.batches([part for part in parts if len(part) > 1]):
            view = subject.crop(images, random) if self.augment else subject.task.plain(images)
            with subject.task.autocast():
                scores = network(view)
            loss = F.cross_entropy(scores.float(), data.labels[index])
            descend(loss, *descents)
            total, count = total + loss.detach() * len(index), count + len(index)
        return float(total) / count


def accuracy_of(subject: Subject, network: nn.Module) -> float:
    """Share of test images whose highest class score is their class's, in [0, 1]."""
    with evaluating(network):
        scores = subject.extract(network, subject.test.images)
    if not bool(scores.isfinite().all()):
        raise ValueError("class scores of test images are not finite: lower the learning rate")
    return int((scores.argmax(1) == subject.labels[1]).sum()) / len(scores)
