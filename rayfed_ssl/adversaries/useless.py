"""Hostile clients that train on what teaches nothing; both are ours, and like label flips where there are no labels."""

from dataclasses import replace

import torch
from pydantic.dataclasses import dataclass

from rayfed_ssl.adversaries.adversary import Insider, TrainingAdversary
from rayfed_ssl.data.image_store import ImageSet
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.training.task import Task


@dataclass(frozen=True, kw_only=True)
class WrongPositives(TrainingAdversary):
    """Take a view of another picture for each picture's second view."""

    def check(self, task: Task, train: ImageSet) -> None:
        """Refuse objectives of one view."""
        if not task.objective.compares_views:
            raise ValueError(
                f"wrong-positives changes second views, and {type(task.objective).__name__} compares none: take another "
                "objective or adversary"
            )

    def settings(self, task: Task) -> Task:
        """Second views are of the next picture of the batch."""
        return replace(task, wrong_positives=True)


@dataclass(frozen=True, kw_only=True)
class ConstantPictures(TrainingAdversary):
    """Train on one picture in the place of all."""

    def poison(self, data: Shard, insider: Insider) -> Shard:
        """The client's first picture, as often as it has pictures."""
        return replace(data, rows=torch.full_like(data.rows, int(data.rows[0])))
