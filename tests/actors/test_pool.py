import os
import signal
import time

import pytest
import ray
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, ActorUnavailableError, ActorUnschedulableError, NodeDiedError, RaySystemError

from actors.dispatch.calls import ActorCall, Completed, Failed, PoolRun
from actors.dispatch.pool import MAX_MACHINE_DEATHS, ActorPool
from actors.dispatch.queue import WorkItem, WorkQueue
from actors.errors import ClusterError, is_machine_failure
from actors.placement.restarts import wait_until_ready


def make_actor():
    class Echo:
        def ready(self):
            pass

        def pid(self):
            return os.getpid()

        def do(self, keys, tasks):
            return [tasks[key]() for key in keys]

    return ray.remote(num_cpus=0, max_restarts=0)(Echo).remote()


def make_stillborn():
    class Stillborn:
        def ready(self):
            os.kill(os.getpid(), signal.SIGKILL)

        def do(self, keys, tasks):
            os.kill(os.getpid(), signal.SIGKILL)

    return ray.remote(num_cpus=0, max_restarts=0)(Stillborn).remote()


def make_placeless():
    class Placeless:
        def ready(self):
            pass

    return ray.remote(num_cpus=0, resources={"elsewhere": 1}, max_restarts=0)(Placeless).remote()


def make_blind():
    class Blind:
        def ready(self):
            raise FileNotFoundError("no data here")

    return ray.remote(num_cpus=0, max_restarts=0)(Blind).remote()


def first_then(number, first, then):
    """Make so many actors of one kind, and of another after that."""
    left = [first] * number

    def make():
        return left.pop()() if left else then()

    return make


def run(pool, tasks, jobs=None, calls=None, **options):
    """Run functions by key; the list `calls` receives the keys of each call and who was called."""

    def submit(actor, given):
        keys = [job.key for job in given]
        if calls is not None:
            calls.append((actor, keys))
        return [actor.do.remote(keys, tasks)]

    return pool.run(jobs or [WorkItem(key) for key in tasks], submit, **options)


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


@pytest.fixture
def pool(cluster):
    made = ActorPool(make_actor, 2, attempts=3)
    yield made
    made.close()


@pytest.fixture
def lone(cluster):
    made = ActorPool(make_actor, 1, attempts=3)
    yield made
    made.close()


def test_every_job_is_done_once(pool):
    assert sorted(done.value for done in run(pool, {k: give(k) for k in range(7)})) == list(range(7))
    assert pool.retries == 0


def test_the_longest_job_starts_first(lone):
    jobs = [WorkItem("short", 1), WorkItem("long", 9), WorkItem("middle", 5)]
    assert [done.key for done in run(lone, {job.key: give(0) for job in jobs}, jobs)] == ["long", "middle", "short"]


def test_jobs_of_known_length_share_a_call_and_its_refs(lone):
    def submit(actor, jobs):
        calls.append([job.key for job in jobs])
        return [ray.put(calls[-1]), actor.do.remote(calls[-1], {key: give(key) for key in calls[-1]})]

    calls = []
    jobs = [WorkItem(k, 0.01, 0.01) for k in range(9)]
    found = {done.key: ray.get(done.refs[0])[done.index] for done in lone.run(jobs, submit, call_seconds=0.1)}
    assert found == {k: k for k in range(9)}
    assert len(calls) < len(jobs)


def test_a_job_runs_at_home_and_elsewhere_only_when_others_idle(pool):
    calls = []
    assigned = {"a": 0, "b": 1, "c": 1, "d": 1}
    tasks = {"a": give(0), "b": give(0, 0.3), "c": give(0, 0.3), "d": give(0)}
    list(
        run(
            pool,
            tasks,
            [WorkItem("a", 1), WorkItem("b", 9), WorkItem("c", 8), WorkItem("d", 1)],
            calls,
            assigned=assigned,
        )
    )
    first, second = pool.actors[0], pool.actors[1]
    assert calls[:2] == [(first, ["a"]), (second, ["b"])]
    assert calls[2] == (first, ["c"])


def test_a_job_whose_actor_died_is_repeated_on_a_new_actor(pool, tmp_path):
    before = ray.get([actor.pid.remote() for actor in pool.actors.values()])
    tasks = {"fragile": die_once(tmp_path / "died"), 1: give(1), 2: give(2)}
    assert {done.key: done.value for done in run(pool, tasks)} == {"fragile": "alive", 1: 1, 2: 2}
    assert pool.retries == 1
    after = ray.get([actor.pid.remote() for actor in pool.actors.values()])
    assert len(set(before) & set(after)) == 1


def test_of_jobs_in_one_call_only_the_one_that_kills_fails(lone):
    jobs = [WorkItem(k, 0.001, 0.001) for k in range(5)]
    tasks = {k: die if k == 2 else give(k) for k in range(5)}
    results = list(run(lone, tasks, jobs, call_seconds=1.0))
    assert sorted(r.value for r in results if isinstance(r, Completed)) == [0, 1, 3, 4]
    (failed,) = [r for r in results if isinstance(r, Failed)]
    assert (failed.key, failed.killed_actors, failed.cause) == (2, True, None)


def test_a_job_that_always_kills_its_actor_fails_after_its_attempts(pool):
    (failed,) = run(pool, {"deadly": die})
    assert failed.reason.startswith("its actor died in 3 of 3 attempts (Worker unexpectedly exits")
    assert (failed.key, failed.killed_actors, failed.cause, pool.retries) == ("deadly", True, None, 2)


def test_a_job_that_raises_is_not_repeated(pool):
    def fail():
        raise KeyError("nothing here")

    (failed,) = run(pool, {"wrong": fail})
    assert isinstance(failed.cause, KeyError)
    assert not failed.killed_actors
    assert pool.retries == 0


def test_what_is_not_done_in_time_fails_and_its_actors_are_replaced(pool):
    before = list(pool.actors.values())
    tasks = {"slow": give(0, 60), "slower": give(0, 60), "waiting": give(0), "quick": give(0)}
    jobs = [WorkItem("slow", 9), WorkItem("slower", 8), WorkItem("waiting", 1)]
    late = list(run(pool, tasks, jobs, deadline=time.monotonic() + 1))
    assert {failed.key for failed in late} == {"slow", "slower", "waiting"}
    assert all(failed.is_late for failed in late)
    assert not set(before) & set(pool.actors.values())
    assert [done.key for done in run(pool, tasks, [WorkItem("quick")])] == ["quick"]


def test_a_pool_whose_actors_all_die_at_once_gives_up(cluster):
    pool = ActorPool(make_stillborn, 1, attempts=2)
    with pytest.raises(ClusterError, match="all client actors died, and each of 2 new ones died while it started"):
        list(run(pool, {0: give(0)}))


def test_a_pool_whose_last_run_was_left_in_the_middle_goes_on(pool):
    next(run(pool, {0: give(0), 1: give(1, 0.3), 2: give(2)}))
    assert sorted(done.value for done in run(pool, {k: give(k) for k in range(3)})) == [0, 1, 2]


def test_inputs_that_vanished_are_stored_again(pool, lost_ref):
    def submit(actor, jobs):
        return [actor.do.remote(inputs[-1], {"input": give("input")})]

    inputs = [lost_ref]
    (done,) = pool.run([WorkItem("input")], submit, restore_inputs=lambda: inputs.append(ray.put(["input"])))
    assert done.value == "input"
    assert len(inputs) == 2


def died(message, pid=7):
    return ActorDiedError(ActorDiedErrorContext(class_name="Echo", actor_id=bytes(16), pid=pid, error_message=message))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            died("The actor died because its node has died. Node Id: 1, Ip: 2, Port: 3, Reason: health check failed"),
            True,
        ),
        (died("The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR"), False),
        (ActorUnavailableError("rpc error", bytes(16)), True),
        (ActorUnschedulableError("the node is gone"), True),
        (NodeDiedError("the node is gone"), True),
    ],
    ids=["node", "process", "unavailable", "unschedulable", "node of a task"],
)
def test_which_deaths_are_those_of_a_machine(error, expected):
    assert is_machine_failure(error) is expected


def test_the_death_of_a_machine_does_not_count_against_a_job():
    pool = ActorPool(object, 1, attempts=3)
    jobs = PoolRun(lambda actor, jobs: [], WorkQueue([], {}, 0.0), lambda: None)
    call, lost = ActorCall(0, [WorkItem("a")], []), ActorUnavailableError("rpc error", bytes(16))
    for _ in range(MAX_MACHINE_DEATHS - 1):
        assert list(pool._repeat(jobs, call, lost)) == []
    assert jobs.deaths["a"] == 0
    with pytest.raises(ClusterError, match=r"^20 machines died under one step"):
        list(pool._repeat(jobs, call, lost))


def test_what_is_done_at_the_deadline_counts_although_nobody_looked(pool):
    def submit(actor, jobs):
        ref = actor.do.remote([jobs[0].key], tasks)
        ray.wait([ref], timeout=60)
        if jobs[0].key == "second":
            time.sleep(max(0.0, deadline - time.monotonic()))  # the driver is kept from looking
        return [ref]

    tasks = {"first": give(1), "second": give(2), "third": give(3)}
    jobs = [WorkItem("first", 3), WorkItem("second", 2), WorkItem("third", 1)]
    deadline = time.monotonic() + 1
    results = list(pool.run(jobs, submit, deadline=deadline))
    assert {result.key for result in results if isinstance(result, Completed)} == {"first", "second"}
    assert [result.key for result in results if isinstance(result, Failed) and result.is_late] == ["third"]


@pytest.fixture
def hasty(monkeypatch):
    """Waits that would be long."""
    monkeypatch.setattr("actors.dispatch.pool.READY_TIMEOUT", 0.1)
    monkeypatch.setattr("actors.dispatch.pool.CHECK_INTERVAL", 0.1)


@pytest.mark.slow
def test_a_new_actor_without_a_place_waits_for_one_while_others_work(cluster, hasty, tmp_path):
    pool = ActorPool(first_then(2, make_actor, make_placeless), 2, attempts=3)
    tasks = {"fragile": die_once(tmp_path / "died"), "slow": give("slow", 1.0)}
    assert {done.value for done in run(pool, tasks, assigned={"fragile": 0, "slow": 1})} == {"alive", "slow"}
    assert len(pool.actors) == 2
    assert pool.idle == [pool.actors[1]]
    pool.close()


def test_a_pool_of_which_nobody_finds_a_place_any_more_gives_up(cluster, hasty):
    pool = ActorPool(first_then(1, make_actor, make_placeless), 1, attempts=3)
    with pytest.raises(ClusterError, match=r"all client actors died, and new ones could not be placed within 0\.1 s"):
        list(run(pool, {"deadly": die}))
    pool.close()


@pytest.mark.slow
def test_a_new_actor_that_cannot_open_its_data_is_done_without(cluster, tmp_path, recwarn):
    pool = ActorPool(first_then(2, make_actor, make_blind), 2, attempts=3)
    list(run(pool, {"fragile": die_once(tmp_path / "died")}))
    over = time.monotonic() + 60
    while len(pool.actors) == 2 and time.monotonic() < over:
        list(run(pool, {0: give(0, 0.1)}))
    told = "the run continues with 1 client actors, one less: a new one cannot open the run (no data here)"
    assert [str(warning.message) for warning in recwarn] == [told]
    assert len(pool.actors) == 1
    pool.close()
    with pytest.raises(ClusterError, match="all client actors died"):
        list(run(pool, {0: give(0)}))


def test_actors_that_are_placed_may_take_their_time_to_open_their_data(cluster, monkeypatch):
    class Slow:
        def ready(self):
            time.sleep(1)
            return "opened"

    actor = ray.remote(num_cpus=0)(Slow).remote()
    ray.get(actor.__ray_ready__.remote())
    monkeypatch.setattr("actors.placement.restarts.READY_TIMEOUT", 0.2)
    assert wait_until_ready([actor]) == ["opened"]
    with pytest.raises(ClusterError, match=r"1 actors were not ready within 0.21 s"):
        wait_until_ready([make_placeless()])
    ray.kill(actor)


def test_an_actor_that_cannot_be_ended_keeps_none_of_the_others_from_it(monkeypatch):
    def end(actor):
        ended.append(actor)
        raise RaySystemError("its machine does not answer")

    ended = []
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "kill", end)
    ActorPool(object, 3, attempts=3).close()
    assert len(ended) == 3
