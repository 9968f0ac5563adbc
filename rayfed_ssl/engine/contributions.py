"""Contributions that start from older states of the server: which state, and what becomes of the upload."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.storage.checkpoints import RunState, Stored
from rayfed_ssl.training.state_parts import is_statistic
from rayfed_ssl.trees import Weights


@dataclass(frozen=True)
class Start:
    """Where a client's task starts.

    Attributes:
        server: The server's state that the client receives.
        weight: What the change counts that it brings.
        mixes: Whether that is the change from the server's last weights, or from those that the client received.
    """

    server: Stored
    weight: float
    mixes: bool


def starts_of(federation: Federation, state: RunState, cohort: Sequence[int]) -> dict[int, Start]:
    """Find where the clients of the running round start; none where all start from the last state."""
    schedule = federation.schedule
    if schedule is None or schedule.policy.is_synchronous:
        return {}
    parts, mixes = schedule.contributions(state.round), schedule.policy.mixes
    servers = {client: server_of(federation, state, state.round, client) for client in cohort}
    return {client: Start(servers[client], parts[client].weight, mixes) for client in cohort}


def server_of(federation: Federation, state: RunState, round: int, client: int) -> Stored:
    """Find the server's state from which a client's task of a round, the running one or a later one, starts."""
    schedule = federation.schedule
    return state.server if schedule is None else state.server_of(schedule.contributions(round)[client].version)


class Rebased(Mapping[int, Any]):
    """Uploads whose weights are those that they make of the server's last ones; each is computed when it is read.

    With w the server's last weights, w_v those that a client received, w_k those that it sends and s what it counts, this is
    w + s (w_k - w_v), or w + s (w_k - w) where it mixes. Running statistics are always mixed, as a difference of
    variances could make one negative, and so is what the client did not receive.
    """

    def __init__(
        self,
        uploads: Mapping[int, Any],
        starts: Mapping[int, Start],
        last: Stored,
        weights: Callable[[Stored], Weights],
    ) -> None:
        self._uploads, self._starts, self._last, self._read = uploads, starts, last, weights

    def __getitem__(self, client_id: int) -> Any:
        upload, start = self._uploads[client_id], self._starts[client_id]
        base = self._last if start.mixes else start.server
        if upload.weights is None or (start.weight == 1 and (start.mixes or base == self._last)):
            return upload
        received, last = self._read(base), self._read(self._last)
        moved = {name: _moved(name, value, received, last, start.weight) for name, value in upload.weights.items()}
        return replace(upload, weights=moved)

    def __iter__(self) -> Iterator[int]:
        return iter(self._uploads)

    def __len__(self) -> int:
        return len(self._uploads)


def _moved(name: str, value: Tensor, received: Weights, last: Weights, weight: float) -> Tensor:
    if name not in last or not value.is_floating_point():
        return value
    base = received.get(name)
    if base is None or is_statistic(name):
        base, weight = last[name], min(weight, 1.0)
    return (last[name].double() + weight * (value.double() - base.double())).to(value.dtype)
