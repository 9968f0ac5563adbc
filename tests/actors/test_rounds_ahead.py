"""Steps of later rounds, which run while a round waits: which ones, how many, and what becomes of failures; without Ray."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.dispatch.calls import Failed
from actors.executor import RayExecutor
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.round_loop import ClientReport, Listener, Observer
from rayfed_ssl.engine.virtual_time import attach_schedule
from rayfed_ssl.storage.checkpoints import RunState, Stored

CLOCK = (
    "clock=phones",
    "clock.devices.hours=24",
    "clock.policy={name: fedbuff, buffer: 2}",
    "clients.number=6",
    "rounds=12",
)


class Offline(RayExecutor):
    """Keeps what would be trained; clients in `failing` kill their actors."""

    def __init__(self, federation: Federation, failing: tuple[int, ...] = ()) -> None:
        self._federation, self._engine = federation, federation.config.engine.model_copy(update={"on_failure": "drop"})
        self._uploads, self._ahead, self._failed = {}, {}, set[int]()
        self.placement: Any = SimpleNamespace(num_actors=2)
        self._health: Any = SimpleNamespace(check_regularly=lambda: None)
        self.failing, self.submitted = failing, dict[int, dict[int, int]]()

    def _train(
        self, state: RunState, rounds: Mapping[int, int], directory: Any, timeout: float | None = None
    ) -> Iterator[ClientReport | Failed]:
        self.submitted[state.round] = dict(rounds)
        for client in rounds:
            if client in self.failing:
                yield Failed(client, "its actor died", killed_actors=True)
            else:
                self._uploads[client] = client  # type: ignore[assignment]
                yield ClientReport(client, Stored("", ""), {}, (), 0.0)


@pytest.fixture
def federation(open_tiny: Any) -> Federation:
    federation: Federation = open_tiny("fedavg", *CLOCK)
    attach_schedule(federation)
    return federation


def train(executor: Offline, round: int, quarantined: tuple[int, ...] = ()) -> tuple[list[int], Listener]:
    cohort = [client for client in executor._federation.cohort(round) if client not in quarantined]
    listener = Listener(Observer(), quarantined)
    state = RunState(round, Stored("", ""))
    return [each.client for each in executor.train_clients(state, cohort, Path("x"), listener)], listener


def test_each_actor_may_run_one_step_ahead_and_each_step_runs_once(federation: Federation):
    executor = Offline(federation)
    for round in range(1, 13):
        clients, _ = train(executor, round)
        assert clients == sorted(federation.cohort(round)) == sorted(executor._uploads)
    ahead = [sum(later > round for later in each.values()) for round, each in executor.submitted.items()]
    assert max(ahead) == 2
    steps = [(later, client) for each in executor.submitted.values() for client, later in each.items()]
    assert sorted(steps) == [(round, client) for round in range(1, 13) for client in federation.cohort(round)]


def test_a_client_that_fails_is_reported_in_its_round_alone_and_not_run_ahead_again(federation: Federation):
    plain = Offline(federation)
    for round in range(1, 13):
        train(plain, round)
    client = next(c for number, each in plain.submitted.items() for c, later in each.items() if later > number)
    executor = Offline(federation, failing=(client,))
    for round in range(1, 13):
        _, listener = train(executor, round)
        assert set(listener.dropped) == {client} & set(federation.cohort(round))
    assert sum(each.get(client, number) > number for number, each in executor.submitted.items()) == 1


def test_a_quarantined_client_is_not_run_ahead(federation: Federation):
    executor = Offline(federation)
    for round in range(1, 13):
        train(executor, round, quarantined=(0, 1))
    assert all(not {0, 1} & set(each) for each in executor.submitted.values())


def test_with_a_deadline_in_seconds_nothing_is_run_ahead(federation: Federation):
    executor = Offline(federation)
    executor._engine = executor._engine.model_copy(update={"deadline": 60.0})
    for round in range(1, 13):
        train(executor, round)
    assert all(set(each.values()) == {round} for round, each in executor.submitted.items())
