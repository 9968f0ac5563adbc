"""Class distribution: which classes does the client hold, and how much of each?

The server lets clients of its own, whose shares of classes it knows, take the client's step, and learns to read the shares
off an upload: the shadow uploads of attacks on distilled federations ("PDAFD", PoPETs 2025) for any kind of content, with
ridge regression in the place of a network, as S uploads are few. Symbols: x_s what upload s says, a vector of unit length
for each field, and for each part of a model; y_s its shares of K classes.

Rows of private samples have no order, so their mean and second moment stand for them; weights count as difference from
what was received.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass
from sklearn.linear_model import RidgeCV
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.aggregation.compression import Packed, SparseRows, fill_rows, unpack
from rayfed_ssl.attacks.attack import Attack, Finding, Seen, Truth
from rayfed_ssl.method import sent_fields
from rayfed_ssl.training.state_parts import part_of
from rayfed_ssl.trees import digest
from rayfed_ssl.validation import Validated

STRENGTHS = np.logspace(-4, 2, 13)
"""Of the ridge, relative to the mean square of x; leave-one-out chooses."""


def contents(seen: Seen, upload: object) -> dict[str, list[Tensor]]:
    """Flatten what an upload says, by its kind: vectors of unit length, float32; numbers of samples are left out."""
    found: dict[str, list[Tensor]] = {}
    for _, declared, value in sent_fields(upload):
        kind = declared.kind
        if kind == "statistics":
            continue
        if kind == "weights":
            parts: dict[str, list[Tensor]] = {}
            for name, values in value.items():
                if values.is_floating_point():  # counters of batches would outweigh all else
                    change = values - seen.received[name] if name in seen.received else values
                    parts.setdefault(part_of(name), []).append(change.float().flatten())
            vectors = [torch.cat(changes) for changes in parts.values()]
        elif declared.private:
            rows = value.float()
            vectors = [rows.mean(0), (rows.T @ rows / len(rows)).flatten()]
        elif isinstance(value, SparseRows):
            vectors = [fill_rows(value).flatten()]
        else:
            vectors = [(unpack(value) if isinstance(value, Packed) else value).float().flatten()]
        found.setdefault(kind, []).extend(F.normalize(torch.nan_to_num(vector).cpu(), dim=0) for vector in vectors)
    return found


def read_shares(uploads: np.ndarray, shares: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Regress shares [S, K] on uploads [S, D], with D far above S, and read those of a target [D]; [K], in the simplex."""
    mean = uploads.mean(0)
    left, sizes, right = np.linalg.svd(uploads - mean, full_matrices=False)
    scale = np.sqrt((sizes**2).mean()) or 1.0
    ridge = RidgeCV(alphas=STRENGTHS).fit(left * sizes / scale, shares)
    answer = np.clip(ridge.predict((target - mean)[None] @ right.T / scale)[0], 0, None)
    read: np.ndarray = answer / answer.sum() if answer.any() else shares.mean(0)
    return read


@dataclass(frozen=True, kw_only=True)
class ClassDistribution(Attack, Validated):
    """Ridge regression of shares of classes over uploads of simulated clients."""

    knows: ClassVar = ("auxiliary pictures", "objective", "views", "hyperparameters")
    needs: ClassVar = "labels"
    clients: Annotated[int, Field(ge=3, le=10000)] = 24
    """S."""
    samples: Annotated[int, Field(ge=2)] = 256
    """Of a simulated client; at most half of the auxiliary pictures."""
    alpha: PositiveFloat = 0.3
    """Of the Dirichlet distribution of y_s."""

    def target(self, seen: Seen) -> str:
        """All of the upload."""
        if seen.auxiliary.labels is None or not len(seen.auxiliary) or int(seen.auxiliary.labels.min()) < 0:
            raise ValueError(
                "the test split, whose pictures are the auxiliary ones, has no labels to simulate clients by"
            )
        if not (found := contents(seen, seen.upload)):
            raise ValueError("the upload has only numbers of samples")
        return ", ".join(found)

    def run(self, seen: Seen, truth: Truth) -> Iterator[Finding]:
        """`tv`, the total variation of the answer to the truth, and `guess`, that of the mean of y_s."""
        uploads, shares = self.simulated(seen)
        answer = read_shares(uploads, shares, vector(seen, seen.upload))
        for metric, guess in (("tv", answer), ("guess", shares.mean(0))):
            # The auxiliary pictures may lack the last classes.
            far = np.abs(np.pad(guess, (0, len(truth.shares) - len(guess))) - truth.shares.numpy()).sum() / 2
            yield Finding(metric, float(far), targets=self.clients)

    def simulated(self, seen: Seen) -> tuple[np.ndarray, np.ndarray]:
        """x_s [S, D] and y_s [S, K] of simulated clients, which follow from the download alone and serve all who got it."""
        key = digest((seen.download, seen.round, seen.architecture, vars(self)))
        if key not in seen.memory:
            assert seen.auxiliary.labels is not None, "target refuses auxiliary pictures without labels"
            own = replace(seen, seed=int(key[:15], 16))  # not the client's: it serves others too
            drawn, rng = own.generator(), np.random.default_rng(own.seed)
            labels = seen.auxiliary.labels.cpu()
            classes = int(labels.max()) + 1
            number = min(self.samples, len(labels) // 2)
            rows, shares = [], []
            for client in range(self.clients):
                wanted = rng.multinomial(number, rng.dirichlet(np.full(classes, self.alpha)))
                order = torch.randperm(len(labels), generator=drawn)
                chosen = torch.cat([order[labels[order] == k][: wanted[k]] for k in range(classes)])
                held = np.bincount(labels[chosen], minlength=classes)
                rows.append(vector(seen, own.simulate(own.auxiliary.select(chosen), draw=client)))
                shares.append(held / held.sum())
            seen.memory[key] = np.stack(rows), np.stack(shares)
        known: tuple[np.ndarray, np.ndarray] = seen.memory[key]
        return known


def vector(seen: Seen, upload: object) -> np.ndarray:
    """All of `contents` in one float32 vector."""
    return torch.cat([part for parts in contents(seen, upload).values() for part in parts]).numpy()
