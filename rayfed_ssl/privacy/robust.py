"""A robust rule in the place of the mean of weights: a method around a method.

The server reads each upload once and holds the round's where they lie. A rule makes of their weights one z, which every
upload then has: the method's own mean of them is z bit for bit, whatever its sample counts say. Uploads without weight in z
are left out with all that they hold; where none has any, the round changes nothing. Differences of parameters decide.
Statistics of batch-norm, and what clients did not receive (a momentum model in round 1), follow with the same weights
brought to sum 1, or by the same rule, so that variances stay positive. Integers, batch-norm's counters, are those that
clients received.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from rayfed_ssl.aggregation.robust.eminspector import EmInspector
from rayfed_ssl.aggregation.robust.geometry import from_combination
from rayfed_ssl.aggregation.robust.rule import CoordinateRule, GramRule, Rule
from rayfed_ssl.aggregation.weighted_mean import PIECE, weighted_mean
from rayfed_ssl.method import Client, Declared, Encoder, Method, Metrics, Server, Task, Weights, one_by_one
from rayfed_ssl.privacy.client_level import map_fields, with_variances
from rayfed_ssl.privacy.wrapper import Wrapper
from rayfed_ssl.training.state_parts import is_state, is_statistic, part_of

WEIGHT, DISTANCE = "robust_weight_", "robust_distance_"
"""Beginnings of the names of a client's weight in z, and of the distance of its parameters from z; its id follows."""

LEFT_OUT = HOSTILE_FOUND, HONEST_LOST = "hostile_found", "honest_lost"
"""How many clients of a round have no weight in z: hostile ones, and others."""


def held_fields(method: Method) -> Mapping[str, Declared]:
    """Say what a method says of uploads where the server holds a round's and looks at each: but for sums and releases."""
    return {name: replace(says, held=True) for name, says in one_by_one(method.upload_fields).items()}


@dataclass(frozen=True)
class Remembered:
    """A method's server state, and the sum of each client's changes of its parameters, float32, by client id."""

    state: Any
    changes: dict[int, Weights]


@dataclass(frozen=True, kw_only=True)
class Robust(Wrapper):
    """A method whose mean of weights is a robust rule's."""

    upload_fields = property(lambda self: held_fields(self.method))
    takes_old_versions = property(lambda self: self.method.takes_old_versions)
    rule: Rule

    def costly_start(self) -> Method | None:
        """Start as the method does, but for what the rule remembers."""
        return None if self.rule.remembers else self.method.costly_start()

    def init_server(self, server: Server) -> Any:
        """Start as the method does; the rule remembers nothing yet."""
        state = self.method.init_server(server)
        return Remembered(state, {}) if self.rule.remembers else state

    def download(self, state: Any, client_id: int) -> Any:
        """Send what the method sends."""
        return self.method.download(_of_method(state), client_id)

    def encoders(self, state: Any, clients: Mapping[int, Any]) -> dict[str, Encoder]:
        """The method's encoders."""
        return self.method.encoders(_of_method(state), clients)

    def update_client(self, download: Any, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        """Train as the method does."""
        return self.method.update_client(download, state, client)

    @property
    def field(self) -> str:
        """The field of an upload that the rule is about.

        Raises:
            ValueError: The method takes no mean of weights.
        """
        fields = self.method.upload_fields.items()
        of_weights = [n for n, d in fields if d.kind == "weights" and (d.summed or d.release == "difference")]
        if not of_weights:
            raise ValueError(
                f"robust stands in the place of a mean of weights, which {type(self.method).__name__} as it is set does not "
                "take: take fedavg or another method that averages (docs/robust.md), or remove robust"
            )
        return of_weights[0]

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse methods that take no mean, too few uploads, and rules that lack public data."""
        _ = self.field
        self.rule.check(task.cohort_size)
        if self.rule.needs_public and not num_public:
            raise ValueError(
                f"the rule {type(self.rule).__name__} looks at public data, and this run has none: set public (for "
                "example fraction:0.1)"
            )
        return self.method.check(task, num_public)

    def update_server(self, state: Any, uploads: Mapping[int, Any], server: Server) -> tuple[Any, Metrics]:
        """Put z in the place of each upload's weights; reports each client's weight and distance, and who is left out."""
        held, field = dict(uploads.items()), self.field
        self.rule.check(len(held))
        received: Weights = _at(self.download(state, min(held)), field)
        weights: list[Weights] = [_at(upload, field) for upload in held.values()]
        if isinstance(self.rule, GramRule) and self.rule.needs_public:
            weights.append(self._own_step(received, server))
        shares, changes = None, dict[int, Weights]()
        if isinstance(self.rule, GramRule) and isinstance(state, Remembered):
            changes = {c: _added(state.changes.get(c), received, sent) for c, sent in zip(held, weights, strict=True)}
            zeros = {name: torch.zeros_like(value) for name, value in changes[min(held)].items()}
            shares = self.rule.weights(_gram(zeros, list(changes.values()), list(zeros)))
        if isinstance(self.rule, EmInspector):
            shares = self.rule.of_features(torch.stack([self._features(received | w, server) for w in weights]))
        combined, shares, distances = combine(self.rule, received, weights, server.generator, shares)
        without = (
            () if shares is None else tuple(c for c, share in zip(held, shares.tolist(), strict=False) if not share)
        )
        agreed = {
            client_id: map_fields(lambda name, value: combined if name == field else value, upload)
            for client_id, upload in held.items()
            if client_id not in without
        }
        after, metrics = _of_method(state), Metrics()
        if agreed:
            after, metrics = self.method.update_server(after, agreed, replace(server, left_out=without))
        if isinstance(state, Remembered):
            after = Remembered(after, dict(sorted((state.changes | changes).items())))
        seen = {f"{DISTANCE}{client}": float(d) for client, d in zip(held, distances, strict=False)}
        if shares is not None:
            seen |= {f"{WEIGHT}{client}": float(share) for client, share in zip(held, shares, strict=False)}
            seen[HONEST_LOST] = float(len(without))
        return after, metrics | seen

    def _own_step(self, received: Weights, server: Server) -> Weights:
        assert server.public is not None, "check refuses rules without it"
        task = server.task
        trained, _ = task.train(received, task.encoder, server.public, server.generator, round=server.round)
        return {name: trained[name] for name in received}

    def _features(self, weights: Weights, server: Server) -> Tensor:
        assert server.public is not None, "check refuses rules without it"
        task = server.task
        with torch.no_grad():
            features, _ = task.represent(task.model(task.initial_weights() | weights, task.encoder), server.public)
        return features.cpu()


def combine(
    rule: Rule, received: Weights, weights: Sequence[Weights], random: torch.Generator, shares: Tensor | None = None
) -> tuple[Weights, Tensor | None, Tensor]:
    """Make z of uploads.

    Args:
        rule: The rule.
        received: What the clients received.
        weights: What they sent, in ascending client id.
        random: Of bucketing and FLAME's noise.
        shares: Weights of the clients [n] where the rule does not follow from differences.

    Returns:
        z; weights [n] of clients, None for rules by coordinate; distances of parameters from z, [n].
    """
    sent_alone = {name: value for name, value in weights[0].items() if name not in received}
    received = received | {n: torch.zeros_like(v) if v.is_floating_point() else v for n, v in sent_alone.items()}
    floats = [name for name, value in received.items() if value.is_floating_point()]
    follows = {name for name in floats if is_statistic(name) or name in sent_alone}
    trained, statistics = [n for n in floats if n not in follows], [n for n in floats if n in follows]
    of_all = isinstance(rule, CoordinateRule) and type(rule).rows is CoordinateRule.rows and rule.before is None
    gram = _gram(received, weights, () if of_all else trained)
    mixture = rule.mixture(gram, random)
    mixed = mixture @ gram @ mixture.T
    if isinstance(rule, CoordinateRule):
        z, distances = _by_coordinate(rule, received, weights, (trained, statistics), mixture, mixed)
        return received | z, None, distances
    if shares is None:
        assert isinstance(rule, GramRule), "a rule is about inner products, coordinates or features"
        shares = rule.weights(mixed) @ mixture
    z = _mean(received, weights, trained, shares)
    total = float(shares.sum())
    z |= _mean(received, weights, statistics, shares / total if total > 0 else shares)
    if isinstance(rule, GramRule) and (deviation := rule.deviation(mixed)):
        for name in trained:
            z[name] = z[name] + deviation * torch.randn(z[name].shape, generator=random)
    return received | z, shares, from_combination(gram, shares).clamp(min=0).sqrt()


def _mean(received: Weights, weights: Sequence[Weights], names: Sequence[str], shares: Tensor) -> Weights:
    """Move from w by sum_k a_k (w_k - w); what has no share is left out."""
    if not names:
        return {}
    rest = 1 - float(shares.sum())
    summands = [*zip(shares.tolist(), weights, strict=True), (rest if abs(rest) > 1e-12 else 0.0, received)]
    return weighted_mean((share, {name: tree[name] for name in names}) for share, tree in summands if share)


def _by_coordinate(
    rule: CoordinateRule,
    received: Weights,
    weights: Sequence[Weights],
    names: tuple[Sequence[str], Sequence[str]],
    mixture: Tensor,
    gram: Tensor,
) -> tuple[Weights, Tensor]:
    rows, squares, z = rule.rows(gram), torch.zeros(len(weights), dtype=torch.float64), Weights()
    of_statistics = mixture / mixture.sum(dim=1, keepdim=True)
    for group, mixing in zip(names, (mixture, of_statistics), strict=True):
        for name in group:
            parts = []
            for piece in _pieces(received, weights, [name]):
                mixed = mixing @ piece if rule.before else piece
                part = rule.combine(mixed if rows is None else mixed[rows])
                parts.append(part)
                if group is names[0]:
                    squares += (piece - part).square().sum(dim=1)
            moved = torch.cat(parts).view(received[name].shape)
            z[name] = (received[name].double() + moved).to(received[name].dtype)
    return with_variances(z), squares.sqrt()


def _gram(received: Weights, weights: Sequence[Weights], names: Sequence[str]) -> Tensor:
    """Inner products of differences, float64 [n, n]."""
    gram = torch.zeros(len(weights), len(weights), dtype=torch.float64)
    for piece in _pieces(received, weights, names):
        gram += piece @ piece.T
    return gram


def _added(changes: Weights | None, received: Weights, sent: Weights) -> Weights:
    """Add a client's change of its trained parameters to its earlier ones; a target's come down from the second round on."""
    names = [
        name
        for name, value in received.items()
        if value.is_floating_point() and not is_statistic(name) and not is_state(part_of(name))
    ]
    return {name: sent[name] - received[name] + (0 if changes is None else changes[name]) for name in names}


def _of_method(state: Any) -> Any:
    return state.state if isinstance(state, Remembered) else state


def _pieces(received: Weights, weights: Sequence[Weights], names: Sequence[str]) -> Iterator[Tensor]:
    """Differences of several tensors from what was received, float64 [n, p]."""
    for name in names:
        yield from differences(received[name], [tree[name] for tree in weights])


def differences(origin: Tensor, ends: Sequence[Tensor]) -> Iterator[Tensor]:
    """Differences of n tensors from their origin, some numbers of all at once, float64 [n, p]."""
    start, flat = origin.reshape(-1), [end.reshape(-1) for end in ends]
    for first in range(0, len(start), PIECE):
        part = slice(first, first + PIECE)
        yield torch.stack([end[part].double() for end in flat]) - start[part].double()


def _at(message: Any, field: str) -> Any:
    return reduce(getattr, field.split("."), message)
