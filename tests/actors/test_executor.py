"""RayExecutor on a real federation: the same bits as in this process, whatever dies."""

from contextlib import ExitStack

import pytest
import ray
import torch

from actors.client_actor import ClientActor
from actors.errors import ClusterError
from actors.executor import RayExecutor
from actors.object_store import ItemRef
from rayfed_ssl.engine import start_scores
from rayfed_ssl.engine.arithmetic import Arithmetic
from rayfed_ssl.engine.background_writer import BackgroundWriter
from rayfed_ssl.engine.local_executor import LocalExecutor
from rayfed_ssl.engine.result_cache import CachedResult
from rayfed_ssl.engine.round_loop import Observer, RunPlan, run_round, run_rounds
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage.checkpoints import RunState
from rayfed_ssl.storage.cloud import Bucket
from tests.actors.conftest import killing

pytestmark = pytest.mark.ray


class Trace(Observer):
    """Records an observer's events without times; functions may take the place of some of them."""

    def __init__(self, on_client=lambda report: None, on_round_end=lambda outcome: None):
        self.evaluations, self.reports = [], []
        self.on_client, self._on_round_end = on_client, on_round_end

    def on_round_end(self, outcome):
        self.reports += [(r.client, r.state, r.metrics, r.ledger) for r in outcome.clients]
        self._on_round_end(outcome)

    def on_evaluated(self, evaluations):
        self.evaluations += [(e.round, e.encoder, e.metrics) for e in evaluations]


def play(executor, federation, directory, **events):
    """Run a federation; returns all that must not depend on the executor."""
    trace = Trace(**events)
    plan = RunPlan(federation.config.rounds, federation.cohort, 1, directory)
    state = run_rounds(plan, executor, trace)
    return state.sha256, trace.reports, trace.evaluations


@pytest.fixture(scope="module")
def federation(open_tiny):
    return open_tiny("fedavg", "training.epochs=3", "rounds=2", "method.parts.batch_norm=local", "engine.attempts=2")


@pytest.fixture(scope="module")
def expected(federation, tmp_path_factory):
    return play(LocalExecutor(federation), federation, tmp_path_factory.mktemp("local"))


@pytest.fixture(scope="module")
def executor(cluster, federation):
    made = RayExecutor(federation)
    yield made
    made.close()


def test_results_are_those_of_the_local_executor(executor, federation, expected, tmp_path):
    assert executor.placement.num_actors == 2
    assert play(executor, federation, tmp_path) == expected


def test_a_start_is_scored_in_an_actor(executor, federation, monkeypatch):
    expected = LocalExecutor(federation).score_start("cnn")
    monkeypatch.setattr(start_scores, "_score", lambda *arguments: pytest.fail("scored in the driver"))
    monkeypatch.setattr(CachedResult, "read", lambda cached: None)
    assert executor.score_start("cnn") == expected


def test_the_fingerprint_of_a_run_is_an_actors(executor, federation, tmp_path, monkeypatch):
    expected = LocalExecutor(federation).arithmetic()
    monkeypatch.setattr(Arithmetic, "of", lambda *arguments: pytest.fail("taken in the driver"))
    made = executor._take_arithmetic(list(executor._pool.actors.values()))
    assert made == executor.arithmetic() == expected
    assert RunRecord.create(tmp_path, federation, made).manifest.fingerprint == expected.fingerprint


def test_a_server_actor_that_dies_between_rounds_changes_nothing(executor, federation, expected, tmp_path, monkeypatch):
    killed = []

    def kill_first(outcome):
        if not killed:
            killed.append(executor._server.actor)
            ray.kill(executor._server.actor)

    made, make = [], executor._server._create
    monkeypatch.setattr(executor._server, "_create", lambda: made.append(make()) or made[-1])
    assert play(executor, federation, tmp_path, on_round_end=kill_first) == expected
    assert len(killed) == len(made) == 1


@pytest.mark.slow
def test_a_client_that_dies_when_its_upload_is_computed_again_is_dropped(
    executor, federation, tmp_path, lost_ref, monkeypatch
):
    def lose_the_last(report):
        done.append(report.client)
        if len(done) == len(federation.cohort(1)):
            executor._uploads[report.client] = ItemRef(lost_ref, 0)
            stack.enter_context(killing("ClientActor.update_clients", times=2))

    done = []
    monkeypatch.setattr(executor, "_engine", executor._engine.model_copy(update={"on_failure": "drop"}))
    plan, state = RunPlan(1, federation.cohort, 0, tmp_path, quorum=0.1), RunState(0, executor.init_server(tmp_path))
    with ExitStack() as stack:
        outcome = run_round(plan, executor, Trace(on_client=lose_the_last), state, 1, BackgroundWriter())
    (dropped,) = outcome.dropped
    assert (dropped.client, dropped.quarantined) == (done[-1], True)
    assert [report.client for report in outcome.clients] == sorted(outcome.state.clients) == sorted(done[:-1])


def test_states_may_lie_in_a_bucket(executor, federation, expected, tmp_path):
    assert play(executor, federation, Bucket(f"file://{tmp_path}")) == expected


def test_actors_that_do_not_fit_are_refused(cluster, open_tiny):
    with pytest.raises(ClusterError, match=r"3 client actors of 2 CPUs each do not fit into Ray's 4 CPUs"):
        RayExecutor(open_tiny("fedavg", "engine.actors=3", "engine.cpus_per_actor=2"))


def test_threads_are_those_of_the_configuration(tiny):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    ClientActor(tiny("fedavg").dump())
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)
