"""Optimisers as settings: a frozen description that makes a fresh torch optimiser for each local training."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch.nn import Parameter


@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """Settings of an optimiser; the defaults are FLESD's local step (paper section 5.1, weight decay from its code).

    Attributes:
        name: "adam" (L2 weight decay, as torch.optim.Adam) or "sgd".
        lr: Learning rate, constant within a round.
        schedule: Over the rounds: "constant", or "cosine" from lr in the first round towards 0 (EasyFL's FedU and FedEMA).
        weight_decay: L2 factor.
        momentum: Used by "sgd" alone.
    """

    name: Literal["adam", "sgd"] = "adam"
    lr: float = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    weight_decay: float = 1e-6
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ValueError(f"the learning rate must be above 0, got {self.lr}")
        if not self.weight_decay >= 0 or not 0 <= self.momentum < 1:
            raise ValueError(
                f"weight_decay must be at least 0 and momentum at least 0 and below 1, got {self.weight_decay} and "
                f"{self.momentum}"
            )

    def at(self, round: int, rounds: int) -> "Optimiser":
        """Settle the learning rate of a round: lr (1 + cos(pi (r - 1) / R)) / 2 under "cosine", for r from 1 to R."""
        if self.schedule == "constant":
            return self
        return replace(self, lr=self.lr * (1 + math.cos(math.pi * (round - 1) / rounds)) / 2)

    def over(self, parameters: Iterable[Parameter]) -> torch.optim.Optimizer:
        """Make an optimiser with empty moments; torch's fused kernels do one pass over memory on CPU and GPU."""
        if self.name == "sgd":
            return torch.optim.SGD(
                parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, fused=True
            )
        return torch.optim.Adam(parameters, lr=self.lr, weight_decay=self.weight_decay, fused=True)
