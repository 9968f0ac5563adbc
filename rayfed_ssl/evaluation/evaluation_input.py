"""What an evaluation protocol looks at: an encoder, and labeled data that no client has shown."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from rayfed_ssl.data.augmentation import augment
from rayfed_ssl.data.image_store import ImageSet
from rayfed_ssl.data.view_recipes import PROBE_VIEW
from rayfed_ssl.evaluation.features import extract_features
from rayfed_ssl.models import Model
from rayfed_ssl.randomness.seeds import Purpose, derive_seed, generator, seeded_globally
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import Weights


@dataclass(frozen=True, eq=False)
class Subject:
    """An encoder under evaluation. Features are computed when a protocol first asks for them, and kept.

    Attributes:
        weights: Of encoder and heads.
        train: Labeled training samples; no label is -1.
        seed: The run's. Each protocol draws from a fresh stream of it, so no protocol depends on those before it.
    """

    architecture: str
    weights: Weights
    task: Task
    train: ImageSet
    test: ImageSet
    seed: int

    def model(self) -> Model:
        """Make a copy of the model, in training mode on the device; ValueError if a weight is not finite."""
        model = self.task.model(self.weights, self.architecture)
        for name, value in model.state_dict().items():
            if not bool(value.isfinite().all()):
                raise ValueError(f"its {name} is not finite: the encoder diverged, lower its learning rate")
        return model

    @property
    def is_labeled(self) -> bool:
        """Whether there are labels that could be learned, and samples to test on."""
        return len(np.unique(self.train.labels)) > 1 and len(self.test) > 0

    @cached_property
    def encoder(self) -> nn.Module:
        """The encoder, which protocols leave as it is."""
        return self.task.model(self.weights, self.architecture).encoder

    @property
    def labels(self) -> tuple[Tensor, Tensor]:
        """Classes of the training and of the test samples, int64."""
        return torch.tensor(self.train.labels), torch.tensor(self.test.labels)

    @cached_property
    def train_features(self) -> Tensor:
        """Features of the unaugmented training images, float32 [N, d]."""
        return self.extract(self.encoder, self.train.images)

    @cached_property
    def test_features(self) -> Tensor:
        """Features of the test images, float32 [M, d]."""
        return self.extract(self.encoder, self.test.images)

    def tested_on(self, test: ImageSet) -> "Subject":
        """Copy this with other test samples; features of training samples are not computed again."""
        other = replace(self, test=test)
        vars(other)["train_features"] = self.train_features
        return other

    def extract(
        self, module: nn.Module, images: np.ndarray, transform: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Compute what a module makes of images, unaugmented by default, in evaluation mode, [N, d] on the CPU."""
        task = self.task
        return extract_features(module, images, transform or task.plain, device=task.device, precision=task.precision)

    @contextmanager
    def seeded(self) -> Iterator[torch.Generator]:
        """Fix torch's global generator, which dropout and fresh layers draw from, and give one for all other draws."""
        seed = derive_seed(self.seed, Purpose.EVALUATION)
        with seeded_globally(seed, self.task.device):
            yield generator(seed)


def probe_view(task: Task, images: Tensor, random: torch.Generator) -> Tensor:
    """Draw a crop and a flip of each uint8 image, normalized as encoders are used to: [B, C, S, S]."""
    first = task.views.first
    return augment(images, replace(PROBE_VIEW, mean=first.mean, std=first.std), random, size=task.size)


def scores(name: str, last: float, best: float) -> Mapping[str, float]:
    """Name a protocol's accuracies: the last epoch's, and the best epoch's, which the test set has chosen."""
    return {name: last, f"{name}_best": best}
