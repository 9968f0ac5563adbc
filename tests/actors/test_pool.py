"""The pool of actors: order, affinity, calls of several items, restarts, deadlines."""

import os
import signal
import time
from contextlib import ExitStack
from unittest.mock import patch

import pytest
import ray
from ray.exceptions import (
    ActorUnavailableError,
    ObjectLostError,
    ObjectStoreFullError,
    RaySystemError,
)

from actors.dispatch.calls import ActorCall, Completed, Failed, PoolRun
from actors.dispatch.pool import MAX_MACHINE_DEATHS, ActorPool
from actors.dispatch.queue import WorkItem, WorkQueue
from actors.dispatch.server import RestartedServer
from actors.dispatch.starts import wait_until_ready
from actors.errors import ActorError, ClusterError


def creating(on_ready=lambda: None, **options):
    """Give a function that creates an actor which runs functions by key, and another when it is to be ready."""

    class Worker:
        def ready(self):
            return on_ready()

        def pid(self):
            return os.getpid()

        def do(self, keys, tasks):
            return [tasks[key]() for key in keys]

    return lambda: ray.remote(num_cpus=0, max_restarts=0, **options)(Worker).remote()


def in_turn(number, first, then):
    """Create actors of one kind so many times, and then of another."""
    left = [first] * number

    def create():
        return left.pop()() if left else then()

    return create


def run(pool, tasks, items=None, calls=None, **options):
    """Run functions by key; the list `calls` receives the actor and the keys of each call."""

    calls = [] if calls is None else calls

    def submit(actor, of_call):
        calls.append((actor, [item.key for item in of_call]))
        return [actor.do.remote(calls[-1][1], tasks)]

    return pool.run(items or [WorkItem(key) for key in tasks], submit, **options)


def wait_until_idle(pool):
    """Let actors that replace dead ones become ready."""
    while len(pool.idle) < len(pool.actors):
        list(run(pool, {0: give(0)}))


def give(value, seconds=0.0):
    return lambda: time.sleep(seconds) or value


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(path):
    def task():
        if not path.exists():
            path.touch()
            die()
        return "alive"

    return task


@pytest.fixture(scope="module")
def make_pool(cluster):
    """Make a pool whose actors end with the module's tests."""
    with ExitStack() as stack:

        def make(number, create=None):
            pool = ActorPool(create or creating(), number, attempts=3)
            stack.callback(pool.close)
            return pool

        yield make


@pytest.fixture(scope="module")
def pool(make_pool):
    return make_pool(2)


@pytest.fixture(scope="module")
def pool_of_one(make_pool):
    return make_pool(1)


def test_every_item_is_done_once_and_the_longest_starts_first(pool_of_one):
    items = [WorkItem("short", 1), WorkItem("long", 9), WorkItem("middle", 5)]
    results = run(pool_of_one, {item.key: give(item.key) for item in items}, items)
    assert [result.value for result in results] == ["long", "middle", "short"]
    assert pool_of_one.retries == 0


def test_items_of_known_duration_share_a_call_and_its_refs(pool_of_one):
    def submit(actor, of_call):
        calls.append([item.key for item in of_call])
        return [ray.put(calls[-1]), actor.do.remote(calls[-1], {key: give(key) for key in calls[-1]})]

    calls = []
    items = [WorkItem(k, 0.01, 0.01) for k in range(9)]
    results = pool_of_one.run(items, submit, call_seconds=0.1)
    assert {result.key: ray.get(result.refs[0])[result.index] for result in results} == {k: k for k in range(9)}
    assert len(calls) < len(items)


def test_an_item_runs_on_its_assigned_actor_and_on_others_only_when_they_are_idle(pool):
    wait_until_idle(pool)
    calls = []
    tasks = {"a": give(0), "b": give(0, 0.3), "c": give(0, 0.3), "d": give(0)}
    items = [WorkItem("a", 1), WorkItem("b", 9), WorkItem("c", 8), WorkItem("d", 1)]
    list(run(pool, tasks, items, calls, assigned={"a": 0, "b": 1, "c": 1, "d": 1}))
    first, second = pool.actors[0], pool.actors[1]
    assert {keys[0]: actor for actor, keys in calls[:2]} == {"a": first, "b": second}
    assert calls[2] == (first, ["c"])


def test_an_item_that_raises_is_not_repeated(pool):
    before = pool.retries
    (failed,) = run(pool, {"wrong": lambda: {}["nothing here"]})
    assert isinstance(failed.cause, KeyError)
    assert (failed.killed_actors, pool.retries) == (False, before)


def test_a_pool_whose_last_run_was_abandoned_works(pool):
    next(run(pool, {0: give(0), 1: give(1, 0.3), 2: give(2)}))
    assert sorted(result.value for result in run(pool, {k: give(k) for k in range(3)})) == [0, 1, 2]


def test_lost_inputs_are_restored(pool, lost_ref):
    def submit(actor, of_call):
        return [actor.do.remote(inputs[-1], {"input": give("input")})]

    inputs = [lost_ref]
    items = [WorkItem("input")]
    (result,) = pool.run(items, submit, restore_inputs=lambda: inputs.append(ray.put(["input"])))
    assert (result.value, len(inputs)) == ("input", 2)


def test_an_item_whose_actor_died_is_repeated_on_a_new_actor(pool, tmp_path):
    wait_until_idle(pool)
    before, pids = pool.retries, ray.get([actor.pid.remote() for actor in pool.actors.values()])
    tasks = {"fragile": die_once(tmp_path / "died"), 1: give(1), 2: give(2)}
    assert {result.key: result.value for result in run(pool, tasks)} == {"fragile": "alive", 1: 1, 2: 2}
    assert pool.retries == before + 1
    assert len(set(pids) & set(ray.get([actor.pid.remote() for actor in pool.actors.values()]))) == 1


def test_of_the_items_of_a_call_only_the_one_that_kills_actors_fails(pool_of_one):
    items = [WorkItem(k, 0.001, 0.001) for k in range(5)]
    tasks = {k: die if k == 2 else give(k) for k in range(5)}
    results = list(run(pool_of_one, tasks, items, call_seconds=1.0))
    assert sorted(result.value for result in results if isinstance(result, Completed)) == [0, 1, 3, 4]
    (failed,) = [result for result in results if isinstance(result, Failed)]
    assert failed.reason.startswith("its actor died in 3 of 3 attempts (Worker unexpectedly exits")
    assert (failed.key, failed.killed_actors, failed.cause) == (2, True, None)


def test_items_that_are_late_fail_and_their_actors_are_replaced(pool):
    wait_until_idle(pool)
    before = list(pool.actors.values())
    tasks = {"slow": give(0, 60), "slower": give(0, 60), "waiting": give(0), "quick": give(0)}
    items = [WorkItem("slow", 9), WorkItem("slower", 8), WorkItem("waiting", 1)]
    late = list(run(pool, tasks, items, deadline=time.monotonic() + 1))
    assert {failed.key for failed in late} == {"slow", "slower", "waiting"}
    assert all(failed.is_late for failed in late)
    assert not set(before) & set(pool.actors.values())
    assert [result.key for result in run(pool, tasks, [WorkItem("quick")])] == ["quick"]


def test_items_that_are_done_at_the_deadline_count_even_if_they_are_received_later(pool):
    def submit(actor, of_call):
        ref = actor.do.remote([of_call[0].key], tasks)
        ray.wait([ref], timeout=60)
        if of_call[0].key == "second":
            time.sleep(max(0.0, deadline - time.monotonic()))  # the driver is busy until the deadline
        return [ref]

    wait_until_idle(pool)
    tasks = {"first": give(1), "second": give(2), "third": give(3)}
    items = [WorkItem("first", 3), WorkItem("second", 2), WorkItem("third", 1)]
    deadline = time.monotonic() + 1
    results = list(pool.run(items, submit, deadline=deadline))
    assert {result.key for result in results if isinstance(result, Completed)} == {"first", "second"}
    assert [result.key for result in results if isinstance(result, Failed) and result.is_late] == ["third"]


@pytest.mark.parametrize(
    ("error", "allowed", "message"),
    [
        (ActorUnavailableError("rpc error", bytes(16)), MAX_MACHINE_DEATHS, "^20 machines died under one step"),
        (ObjectStoreFullError("no space"), 3, r"^Ray's object store is full, .* spills to \(no space\)"),
        (ObjectLostError("0" * 56, None, ""), 3, "^the inputs of client steps were lost 3 times"),
    ],
    ids=["machines", "full store", "lost inputs"],
)
def test_what_is_not_the_fault_of_an_item_ends_the_run_after_some_attempts(error, allowed, message):
    pool = ActorPool(object, 1, attempts=3)
    state = PoolRun(lambda actor, items: [], WorkQueue([], {}, 0.0), lambda: None)
    call = ActorCall(0, [WorkItem("a")], [])
    for _ in range(allowed - 1):
        assert list(pool._repeat(state, call, error)) == []
    assert pool.retries == allowed - 1
    with pytest.raises(ClusterError, match=message):
        list(pool._repeat(state, call, error))


@pytest.fixture
def short_timeouts(monkeypatch):
    monkeypatch.setattr("actors.dispatch.pool.READY_TIMEOUT", 0.1)
    monkeypatch.setattr("actors.dispatch.pool.CHECK_INTERVAL", 0.1)


NOWHERE = {"resources": {"elsewhere": 1}}


@pytest.mark.parametrize(
    ("replacement", "timeout", "message"),
    [
        (creating(die), 120.0, r"each of 3 new ones died while it started"),
        (creating(**NOWHERE), 0.1, r"new ones could not be placed within 0\.1 s"),
    ],
    ids=["dead", "not placed"],
)
def test_a_pool_without_any_actor_gives_up(make_pool, short_timeouts, monkeypatch, replacement, timeout, message):
    monkeypatch.setattr("actors.dispatch.pool.READY_TIMEOUT", timeout)
    pool = make_pool(1, in_turn(1, creating(), replacement))
    with pytest.raises(ClusterError, match=f"^all client actors died, and {message}"):
        list(run(pool, {"deadly": die}))


@pytest.mark.slow
def test_a_new_actor_that_cannot_be_placed_waits_while_others_work(make_pool, short_timeouts, tmp_path):
    pool = make_pool(2, in_turn(2, creating(), creating(**NOWHERE)))
    tasks = {"fragile": die_once(tmp_path / "died"), "slow": give("slow", 1.0)}
    assert {result.value for result in run(pool, tasks, assigned={"fragile": 0, "slow": 1})} == {"alive", "slow"}
    assert (len(pool.actors), pool.idle) == (2, [pool.actors[1]])


@pytest.mark.slow
def test_a_pool_continues_without_a_new_actor_that_cannot_open_its_data(make_pool, tmp_path, recwarn):
    def no_data():
        raise FileNotFoundError("no data here")

    pool = make_pool(2, in_turn(2, creating(), creating(no_data)))
    list(run(pool, {"fragile": die_once(tmp_path / "died")}))
    deadline = time.monotonic() + 60
    while len(pool.actors) == 2 and time.monotonic() < deadline:
        list(run(pool, {0: give(0, 0.1)}))
    message = "the run continues with 1 client actors, one less: a new one cannot open the run (no data here)"
    assert [str(warning.message) for warning in recwarn] == [message]
    assert len(pool.actors) == 1
    pool.close()
    with pytest.raises(ClusterError, match="all client actors died"):
        list(run(pool, {0: give(0)}))


def test_placed_actors_may_take_long_to_open_their_data(cluster, monkeypatch):
    actor = creating(lambda: time.sleep(1) or "opened")()
    ray.get(actor.__ray_ready__.remote())
    monkeypatch.setattr("actors.dispatch.starts.READY_TIMEOUT", 0.2)
    assert wait_until_ready([actor]) == ["opened"]
    with pytest.raises(ClusterError, match=r"1 actors were not ready within 0.21 s"):
        wait_until_ready([creating(**NOWHERE)()])
    ray.kill(actor)


def test_all_actors_are_killed_even_if_one_cannot_be():
    with patch("ray.is_initialized", lambda: True), patch("ray.kill", side_effect=RaySystemError("no answer")) as kill:
        ActorPool(object, 3, attempts=3).close()
    assert kill.call_count == 3


def test_a_server_that_dies_in_each_attempt_ends_the_run(cluster):
    server = RestartedServer(creating(), 2, lambda: None)
    with pytest.raises(
        ActorError, match=r"the server actor died in 2 of 2 attempts .Worker unexpectedly.* then resume"
    ):
        server.call(
            lambda actor: ray.get(actor.do.remote(["die"], {"die": lambda: os.kill(os.getpid(), signal.SIGKILL)}))
        )
    server.close()
