import os
import signal
import time

import pytest
import ray

from actors.pool import ActorPool, Job, JobError


def make_actor():
    class Echo:
        def ready(self):
            pass

        def pid(self):
            return os.getpid()

        def echo(self, value, seconds=0.0):
            time.sleep(seconds)
            return value

        def die_if_missing(self, path):
            if not path.exists():
                path.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return "alive"

        def die(self):
            os.kill(os.getpid(), signal.SIGKILL)

        def fail(self):
            raise KeyError("nothing here")

    return ray.remote(num_cpus=0, max_restarts=0)(Echo).remote()


@pytest.fixture
def pool(cluster):
    made = ActorPool(make_actor, 2, attempts=3)
    yield made
    made.close()


def echo(key, cost=0.0, seconds=0.0):
    return Job(key, lambda actor: [actor.echo.remote(key, seconds)], cost)


def test_every_job_is_done_once(pool):
    assert sorted(done.value for done in pool.run([echo(k) for k in range(7)])) == list(range(7))
    assert pool.retries == 0


def test_the_most_expensive_job_starts_first(cluster):
    pool = ActorPool(make_actor, 1, attempts=3)
    order = [done.key for done in pool.run([echo("short", 1), echo("long", 9), echo("middle", 5)])]
    pool.close()
    assert order == ["long", "middle", "short"]


def test_a_job_whose_actor_died_is_repeated_on_a_new_actor(pool, tmp_path):
    before = ray.get([actor.pid.remote() for actor in pool.actors])
    jobs = [Job("fragile", lambda actor: [actor.die_if_missing.remote(tmp_path / "died")]), echo(1), echo(2)]
    assert {done.key: done.value for done in pool.run(jobs)} == {"fragile": "alive", 1: 1, 2: 2}
    assert pool.retries == 1
    after = ray.get([actor.pid.remote() for actor in pool.actors])
    assert len(set(before) & set(after)) == 1


def test_a_job_that_always_kills_its_actor_fails_after_its_attempts(pool):
    with pytest.raises(JobError, match=r"died in 3 of 3 attempts \(Worker unexpectedly exits") as caught:
        list(pool.run([Job("deadly", lambda actor: [actor.die.remote()])]))
    assert caught.value.key == "deadly"
    assert caught.value.cause is None
    assert pool.retries == 2


def test_a_job_that_raises_is_not_repeated(pool):
    with pytest.raises(JobError, match="nothing here") as caught:
        list(pool.run([Job("wrong", lambda actor: [actor.fail.remote()])]))
    assert isinstance(caught.value.cause, KeyError)
    assert pool.retries == 0


def test_a_pool_whose_last_run_was_left_in_the_middle_goes_on(pool):
    next(pool.run([echo(0), echo(1, seconds=0.3), echo(2)]))
    assert sorted(done.value for done in pool.run([echo(k) for k in range(3)])) == [0, 1, 2]


def test_inputs_that_vanished_are_stored_again(pool, lost_ref):
    inputs = [lost_ref]
    job = Job("input", lambda actor: [actor.echo.remote(inputs[-1])])
    (done,) = pool.run([job], store_again=lambda: inputs.append(ray.put("input")))
    assert done.value == "input"
    assert len(inputs) == 2
