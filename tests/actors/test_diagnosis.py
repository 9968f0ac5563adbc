"""Diagnostics through Ray: the same numbers as in this process."""

import pytest

from actors.executor import RayExecutor
from rayfed_ssl.engine.local_executor import LocalExecutor
from rayfed_ssl.engine.round_loop import Observer, RunPlan, run_rounds

pytestmark = pytest.mark.ray


class Numbers(Observer):
    """Keeps what the server and the encoders report."""

    def __init__(self):
        self.rows = []

    def on_server(self, report):
        self.rows.append(report.metrics)

    def on_evaluated(self, evaluations):
        self.rows += [(e.encoder, e.metrics) for e in evaluations]


def play(executor, federation, directory):
    numbers = Numbers()
    try:
        run_rounds(RunPlan(federation.config.rounds, federation.cohort, 1, directory), executor, numbers)
    finally:
        executor.close()
    return numbers.rows


def test_diagnostics_do_not_depend_on_the_executor(cluster, open_tiny, tmp_path):
    federation = open_tiny("fedfoa", "method.base=fedavg", "evaluation.diagnostics=1")
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    expected = play(LocalExecutor(federation), federation, here)
    assert {"diag_update_cosine", "diag_cka", "diag_relation_distance"} < set(expected[0])
    assert "diag_alignment" in expected[1][1]
    assert play(RayExecutor(federation), federation, there) == expected
