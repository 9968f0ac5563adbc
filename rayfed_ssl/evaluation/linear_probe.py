"""Linear probe: softmax regression on frozen features, scaled first or not; settings are by default FLESD's, after MoCo's.

He, Fan, Wu, Xie, Girshick: Momentum Contrast, CVPR 2020, section 4.1; FLESD's settings from the authors' code.
The gradient is written out instead of autograd: 60 epochs on 10,000 x 512 take about a second.

Symbols: N training samples, M test samples, d feature width, K classes, B batch.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.evaluation.features import check_labeled
from rayfed_ssl.training.optimizers import BETAS, EPSILON
from rayfed_ssl.validation import Validated


class ProbeResult(NamedTuple):
    """Test accuracies of the last and of the best epoch, chosen on the test set, and the final training loss."""

    last: float
    best: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class Classifier(Validated):
    """How a classifier is trained, alone or with its encoder; defaults are FLESD's for CIFAR."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    """How weights move: "sgd", or "adam" with torch's moments."""
    lr: PositiveFloat = 0.03
    """Initial learning rate; 0.3 for ImageNet-100 in FLESD."""
    momentum: float = 0.9
    """SGD momentum, not Nesterov; "adam" has none to set."""
    weight_decay: float = 0.0
    """Added to the gradients of weights and bias."""
    batch: PositiveInt = 256
    """B; an incomplete last batch counts as a batch."""
    epochs: PositiveInt = 60
    """Passes over the training features."""
    milestones: tuple[int, ...] = (30, 50)
    """Epochs after which the learning rate is multiplied by `decay`."""
    decay: PositiveFloat = 0.1
    """That factor."""

    def __post_init__(self) -> None:
        if self.optimizer == "adam" and self.momentum != Classifier.momentum:
            raise ValueError("momentum has no meaning for a classifier with adam: remove it or take optimizer=sgd")

    def factor(self, epoch: int) -> float:
        """Multiplier of the learning rate in an epoch, counted from 0."""
        return self.decay ** sum(epoch >= milestone for milestone in self.milestones)


@dataclass(frozen=True, kw_only=True)
class LinearProbe(Classifier):
    """The probe's hyperparameters; defaults are FLESD's, but for `standardize`."""

    init_std: float = 0.01
    """Standard deviation of the initial weights; the bias starts at 0."""
    standardize: bool = True
    """Whether features are scaled to mean 0 and deviation 1 by training statistics first. No paper's probe does; at a
    fixed learning rate the accuracy of small features then says how small they are, not what they tell.
    """
    shuffle: bool = True
    """Whether every epoch draws a new order of the samples."""

    def fit(
        self,
        train: Tensor,
        train_labels: Tensor,
        test: Tensor,
        test_labels: Tensor,
        *,
        num_classes: int,
        generator: torch.Generator,
        fresh: Callable[[], Tensor] | None = None,
    ) -> ProbeResult:
        """Train on features [N, d], in their dtype and on their device, and test on [M, d]; labels are int64 in 0..K-1.

        `generator` on the CPU draws the initial weights and the order of samples. `fresh` gives other features of the
        training samples for each epoch after the first, as FLESD and MoCo do.
        """
        check_labeled(train, train_labels, test, test_labels, num_classes=num_classes)
        train_labels, test_labels = train_labels.to(train.device), test_labels.to(train.device)
        scale = _standardizer(train) if self.standardize else lambda features: features
        train, test = _with_ones(scale(train)), _with_ones(scale(test.to(train)))
        weights = train.new_zeros(num_classes, train.shape[1])  # the last column is the bias
        weights[:, :-1] = torch.randn(num_classes, train.shape[1] - 1, generator=generator) * self.init_std
        descent = _Descent(self, weights)
        accuracies = []
        for epoch in range(self.epochs):
            if fresh is not None and epoch > 0:
                train = _with_ones(scale(fresh()))
            order = torch.randperm(len(train), generator=generator) if self.shuffle else torch.arange(len(train))
            for index in order.to(train.device).split(self.batch):
                gradient = cross_entropy_gradient(weights, train[index], train_labels[index])
                descent.step(gradient, self.lr * self.factor(epoch))
            accuracies.append(_accuracy(self._finite(test @ weights.T), test_labels))
        loss = float(F.cross_entropy(self._finite(train @ weights.T), train_labels))
        return ProbeResult(accuracies[-1], max(accuracies), loss)

    def _finite(self, logits: Tensor) -> Tensor:
        if not bool(logits.isfinite().all()):
            raise ValueError(f"the linear probe diverged at learning rate {self.lr:g}: lower it")
        return logits


class _Descent:
    """torch.optim's SGD or Adam, not fused, on one matrix; see `rayfed_ssl.training.optimizers`."""

    def __init__(self, probe: LinearProbe, weights: Tensor) -> None:
        self._probe, self._weights = probe, weights
        self._moments = torch.zeros_like(weights), torch.zeros_like(weights)
        self._age = 0

    def step(self, gradient: Tensor, lr: float) -> None:
        """Move the weights."""
        self._age += 1
        if self._probe.weight_decay:
            gradient = gradient.add(self._weights, alpha=self._probe.weight_decay)
        if self._probe.optimizer == "adam":
            self._adam(gradient, lr)
        elif self._probe.momentum:
            self._weights.add_(self._moments[0].mul_(self._probe.momentum).add_(gradient), alpha=-lr)
        else:
            self._weights.add_(gradient, alpha=-lr)

    def _adam(self, gradient: Tensor, lr: float) -> None:
        (first, second), (beta1, beta2) = self._moments, BETAS
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        deviation = (second.sqrt() / (1 - beta2**self._age) ** 0.5).add_(EPSILON)
        self._weights.addcdiv_(first, deviation, value=-lr / (1 - beta1**self._age))


def cross_entropy_gradient(weights: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """(softmax(F W^T) - one_hot)^T F / B [K, d], of the mean cross entropy; weights W [K, d], features F [B, d]."""
    error = torch.softmax(features @ weights.T, dim=1)
    error[torch.arange(len(labels), device=labels.device), labels] -= 1
    return error.T @ features / len(labels)


def _standardizer(train: Tensor) -> Callable[[Tensor], Tensor]:
    mean, deviation = train.mean(0), train.std(0)
    # A feature that never varies carries nothing: it becomes 0 rather than a division by 0.
    inverse = torch.where(deviation > 0, 1 / deviation, 0)
    return lambda features: (features - mean) * inverse


def _with_ones(features: Tensor) -> Tensor:
    return torch.cat([features, features.new_ones(len(features), 1)], dim=1)


def _accuracy(logits: Tensor, labels: Tensor) -> float:
    return int((logits.argmax(1) == labels).sum()) / len(labels)
