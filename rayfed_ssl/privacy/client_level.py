"""Client-level differential privacy of uploads: clipped and noised before they leave the client.

McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models, ICLR 2018. Clip norms that follow
a quantile: Andrew, Thakkar, McMahan, Ramaswamy: Differentially Private Learning with Adaptive Clipping, NeurIPS 2021.

Symbols: C clip norm; z noise multiplier; m clients of a cohort, m' of which arrive; gamma quantile; b share of the cohort
within C.

Each field of an upload that says how it is released is scaled to norm C at most. Of a "difference" the server uses nothing
but the sum over the cohort, so each client adds m-th of the variance: the sum of all uploads has noise of z C. That hides a
client from everybody who sees sums alone, and not from a server that looks at single uploads. A client that drops out takes
its noise along: m' uploads have noise of z C sqrt(m' / m), and that is counted. A "value" has noise of z C of its own and is
private by itself, whatever the server makes of it. Fields of one upload are released together: their costs add up.

Running statistics of batch-norm are part of the difference; variances that noise makes negative are 0 after the mean.
Integers (batch-norm's counters) are those of the download, and constants are 1. Losses and other metrics are for the run's
own record and not protected, nor is what clients remember.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from rayfed_ssl.method import Client, Method, Metrics, Release, Server, Task, Weights, sent
from rayfed_ssl.privacy.accounting import Accounted, ServerState
from rayfed_ssl.privacy.wrapper import Wrapper
from rayfed_ssl.randomness.seeds import Purpose, derive_seed, generator
from rayfed_ssl.training.state_parts import is_state, select, with_rule
from rayfed_ssl.trees import Tree, is_node, leaves, map_leaves

EXACT = {"upload_format": "fp32", "keep": 1.0, "dictionary": False, "fusion": False, "neighborhood": 0}
"""Settings of methods with which every field of their uploads has a bound."""

CLIP_RATE = 0.2
"""Learning rate of the logarithm of C (Andrew et al.)."""

COUNT_NOISE = 5.0
"""Noise of the count of uploads within C, over z: it costs a hundredth of what the upload costs, and is the m / 20 of Andrew
et al. at z = 1 and 100 clients.
"""


@dataclass(frozen=True)
class Download:
    """What the inner method sends, and C of each field."""

    inner: Any
    clips: dict[str, float] = sent("statistics")


@dataclass(frozen=True)
class Upload:
    """What the inner method sends, clipped and noised, and whether each field was within C, noised."""

    inner: Any
    within: dict[str, float] = sent("statistics")


class InnerUploads(Mapping[int, Any]):
    """The inner method's view of uploads, as lazy as they are.

    Attributes:
        within: What the uploads that have been read say of their norms.
    """

    def __init__(self, uploads: Mapping[int, Upload]) -> None:
        self._uploads = uploads
        self.within: list[dict[str, float]] = []

    def __getitem__(self, client_id: int) -> Any:
        upload = self._uploads[client_id]
        self.within.append(upload.within)
        return upload.inner

    def __iter__(self) -> Iterator[int]:
        return iter(self._uploads)

    def __len__(self) -> int:
        return len(self._uploads)


def clipped(tree: Tree, clip: float) -> tuple[Tree, float]:
    """Scale a tree of floats to norm C at most, min(1, C / norm), in float64; returns it and the norm that it had."""
    norm = math.sqrt(sum(float(leaf.double().square().sum()) for _, leaf in leaves(tree) if isinstance(leaf, Tensor)))
    factor = min(1.0, clip / norm) if norm else 1.0
    return map_leaves(lambda leaf: leaf.double() * factor if isinstance(leaf, Tensor) else leaf, tree), norm


def noised(tree: Tree, deviation: float, random: torch.Generator) -> Tree:
    """Add Gaussian noise to each number of a tree of float64."""

    def add(leaf: Any) -> Any:
        draws = isinstance(leaf, Tensor) and deviation > 0
        return leaf + deviation * torch.randn(leaf.shape, generator=random, dtype=torch.float64) if draws else leaf

    return map_leaves(add, tree)


def next_clip(clip: float, within: float, quantile: float) -> float:
    """C <- C exp(-rate (b - gamma)) (Andrew et al., Algorithm 1)."""
    return clip * math.exp(-CLIP_RATE * (within - quantile))


def map_fields(function: Callable[[str, Any], Any], message: Any, prefix: str = "") -> Any:
    """Apply a function to each field that is sent, by name ("base.weights"); what is None stays."""
    changes = {}
    for field in fields(message):
        value, name = getattr(message, field.name), prefix + field.name
        if "sent" not in field.metadata:
            changes[field.name] = map_fields(function, value, f"{name}.") if is_node(value) else value
        elif value is not None:
            changes[field.name] = function(name, value)
    return replace(message, **changes)


def with_variances(tree: Tree) -> Tree:
    """Put 0 in the place of variances of batch-norm below 0."""
    if isinstance(tree, dict):
        return {
            name: value.clamp(min=0) if str(name).endswith("running_var") else with_variances(value)
            for name, value in tree.items()
        }
    if is_node(tree):
        return replace(tree, **{field.name: with_variances(getattr(tree, field.name)) for field in fields(tree)})
    return tree


@dataclass(frozen=True, kw_only=True)
class ClientLevel(Accounted):
    """A method whose uploads hide whether one client's data were others.

    Attributes:
        clip: C, for each field or one for all; the first one where it follows a quantile.
        quantile: gamma, or None for a fixed C.
    """

    clip: float | Mapping[str, float]
    quantile: float | None = None

    def clips(self) -> dict[str, float]:
        """C of each released field before round 1.

        Raises:
            ValueError: Some field cannot be released, or the fields that `privacy.clip` names are others.
        """
        bounded = list(self.releases())
        if not bounded:
            raise ValueError(f"privacy.clip bounds uploads, and {type(self.method).__name__} has none: remove it")
        if not isinstance(self.clip, Mapping):
            return dict.fromkeys(bounded, self.clip)
        if set(self.clip) != set(bounded):
            raise ValueError(
                f"privacy.clip names {', '.join(self.clip) or 'nothing'}, and what is released is {', '.join(bounded)}: "
                "name these, or one norm for all"
            )
        return dict(self.clip)

    def releases(self) -> dict[str, Release]:
        """How each field is released but for a client's weight, which everybody sends as 1.

        Raises:
            ValueError: How far one client can move a field is not known, or its samples shall weigh it.
        """
        name, says = type(self.method).__name__, self.method.upload_fields
        if unknown := [field for field, declared in says.items() if not (declared.release or declared.weight)]:
            rows = " (rows of private samples)" if says[unknown[0]].private else ""
            exact = [f"method.{key}={text}" for key, text in EXACT.items() if vars(self.method).get(key, text) != text]
            remedy = f"set {' and '.join(exact).replace('False', 'false')}, or take" if exact else "take"
            if isinstance(self.method, Wrapper):
                raise ValueError(
                    "privacy.clip counts noise for a mean of clipped uploads, and robust and forged uploads of "
                    "an adversary give another: remove these or privacy.clip"
                )
            raise ValueError(
                f"privacy.clip needs to know how far one client can move each field of an upload, and {name} as it is set "
                f"does not say so of {unknown[0]}{rows}: {remedy} a method of docs/privacy-budget.md"
            )
        method: Method | None = self.method
        while method is not None:
            if vars(method).get("weighting") == "samples":
                raise ValueError(
                    "privacy.clip sends no sample counts, got method.weighting=samples: set method.weighting=uniform"
                )
            method = method.inner
        return {field: declared.release for field, declared in says.items() if declared.release}

    def shares(self, task: Task) -> dict[str, float]:
        """Variance of each field's noise in one upload over (z C)^2: 1 / m where only sums are used."""
        return {field: 1 / task.cohort_size if how == "difference" else 1.0 for field, how in self.releases().items()}

    def cost(self, num_arrived: int, task: Task) -> float:
        """Sum over fields of (2 / z)^2, that of sums times m / m', and of the counts."""
        each = 4 / self.noise**2 + (0 if self.quantile is None else 1 / (COUNT_NOISE * self.noise) ** 2)
        return sum(each if share == 1 else each / (share * num_arrived) for share in self.shares(task).values())

    def hides_cohort(self, task: Task) -> bool:
        """Whether only sums are used, over a part of the clients."""
        is_sum = "value" not in self.releases().values()
        return is_sum and task.cohort_size < task.num_clients

    def noise_warning(self, task: Task) -> str | None:
        """Say that the noise of the mean of weights, z C sqrt(d) / m, is above C, which no mean of differences exceeds."""
        if "difference" not in self.releases().values():
            return None
        sent = select(task.weights_of(task.blank(task.encoder)), with_rule(self.rules(task), "averaged", "mixed"))
        numbers = sum(value.numel() for value in sent.values() if value.is_floating_point())
        ratio = self.noise * math.sqrt(numbers) / task.cohort_size
        if ratio <= 1:
            return None
        return (
            f"noise of privacy.noise={self.noise:g} is {ratio:.3g} times the signal at most (z sqrt(d) / m, {numbers:,} "
            f"weights, {task.cohort_size:,} clients a round), so that training will hardly learn: take more clients, a "
            "smaller model or less noise (docs/privacy-budget.md)"
        )

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse parts of the model without a download to differ from."""
        self.clips()
        rules = self.rules(task)
        if memories := [part for part in with_rule(rules, "averaged", "mixed") if is_state(part)]:
            raise ValueError(
                f"privacy.clip bounds how far weights are from the download, which has no {memories[0]} at first: set "
                f"method.parts.{memories[0]}=local"
            )
        return super().check(task, num_public)

    def init_server(self, server: Server) -> ServerState:
        """Start as the inner method does, from the first C."""
        state = super().init_server(server)
        return state if self.quantile is None else replace(state, clips=self.clips())

    def download(self, state: ServerState, client_id: int) -> Any:
        """Send what the inner method sends, and C where it changes."""
        inner = super().download(state, client_id)
        return inner if self.quantile is None else Download(inner, state.clips)

    def update_client(self, download: Any, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        """Clip and noise what the inner method would send; reports norms before clipping."""
        received, clips = (download, self.clips()) if self.quantile is None else (download.inner, download.clips)
        raw, next_state, metrics = super().update_client(received, state, client)
        seed = derive_seed(client.task.seed, Purpose.PRIVACY, round=client.round, participant=client.id)
        releases, shares, random = self.releases(), self.shares(client.task), generator(seed)
        norms, within = dict[str, float](), dict[str, float]()

        def release(field: str, value: Any) -> Any:
            if (declared := self.method.upload_fields.get(field)) is None:
                raise ValueError(f"privacy.clip does not know how far one client can move {field}: remove privacy.clip")
            if declared.weight:
                return 1
            origin = reduce(getattr, field.split("."), received) if releases[field] == "difference" else None
            noise = self.noise * math.sqrt(shares[field])
            value, norms[field] = released(value, origin, clips[field], noise * clips[field], random)
            within[field] = float(norms[field] <= clips[field])
            if self.quantile is not None:
                within[field] += COUNT_NOISE * noise * float(torch.randn((), generator=random, dtype=torch.float64))
            return value

        upload = map_fields(release, raw)
        metrics = metrics | {f"{field}_norm": norm for field, norm in norms.items()}
        return upload if self.quantile is None else Upload(upload, within), next_state, metrics

    def update_server(
        self, state: ServerState, uploads: Mapping[int, Any], server: Server
    ) -> tuple[ServerState, Metrics]:
        """Aggregate, and move C towards the quantile."""
        inner = uploads if self.quantile is None else InnerUploads(uploads)
        after, metrics = super().update_server(state, inner, server)
        after = replace(after, inner=with_variances(after.inner))
        if self.quantile is None or not isinstance(inner, InnerUploads):
            return after, metrics
        clips = {}
        for field, clip in state.clips.items():
            share = sum(within[field] for within in inner.within) / len(uploads)
            clips[field] = next_clip(clip, share, self.quantile)
        return replace(after, clips=clips), metrics | {f"{field}_clip": clip for field, clip in state.clips.items()}


def released(
    value: Tree, origin: Weights | None, clip: float, deviation: float, random: torch.Generator
) -> tuple[Tree, float]:
    """Clip and noise a tree of tensors, or weights as a difference from their origin; returns it and its norm."""
    if origin is None:
        tree, norm = clipped(value, clip)
        noisy = noised(tree, deviation, random)
        return map_leaves(lambda leaf: leaf.float() if isinstance(leaf, Tensor) else leaf, noisy), norm
    moves = {name: after.double() - origin[name].double() for name, after in value.items() if after.is_floating_point()}
    tree, norm = clipped(moves, clip)
    moved = noised(tree, deviation, random)
    return {
        name: (before.double() + moved[name]).to(before.dtype) if name in moved else before
        for name, before in ((name, origin[name]) for name in value)
    }, norm
