"""Runs over seeds: which belong together, and mean, deviation and number."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.local_executor import LocalExecutor
from rayfed_ssl.formats import MeanStd
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.seed_groups import by_seed
from rayfed_ssl.reports.summary import Summary
from tests.conftest import TinyConfig


@pytest.fixture
def summary(tiny: TinyConfig):
    """Make up a finished run's summary: summary("fedavg", "seed=1", linear=0.5)."""

    def make(name: str, *settings: str, encoder: str = "global", **scores: float) -> Summary:
        values: dict[str, Any] = dict.fromkeys(Summary.__dataclass_fields__)
        values |= {
            "own": {},
            "directory": Path(name),
            "name": name,
            "config": tiny(name, *settings),
            "fingerprint": "data",
        }
        return Summary(**values | {"finished": True, "rounds": 2, "scores": {encoder: scores}})

    return make


def test_runs_that_differ_in_their_seed_alone_are_one_setting(summary):
    elsewhere = ("seed=0", "evaluation.every=1", "engine.actors=1")
    runs = [summary("fedavg", "seed=1", linear=0.5), summary("fedavg", *elsewhere, linear=0.7), summary("local")]
    fedavg, local = by_seed(runs)
    assert (fedavg.seeds, local.seeds) == ((0, 1), (0,))
    assert fedavg.scores["linear"] == MeanStd.of([0.7, 0.5])
    assert not fedavg.minimum


def test_without_a_global_encoder_there_are_mean_and_minimum_of_clients(summary):
    run = replace(summary("local"), scores={"client-0": {"knn": 0.25}, "client-1": {"knn": 0.75}})
    (group,) = by_seed([run])
    assert group.scores["knn"] == MeanStd(0.5, None, 1)
    assert group.minimum["knn"] == MeanStd(0.25, None, 1)


def test_clients_own_scores_are_averaged_over_clients_and_then_over_seeds(summary):
    runs = []
    for seed, shares in enumerate([(0.25, 0.5), (0.75, 1.0)]):
        own = {k: {"own_samples": 8.0, "own_global_linear": s, "own_start_linear": 0.5} for k, s in enumerate(shares)}
        runs.append(replace(summary("fedavg", f"seed={seed}", linear=0.5), own=own))
    (group,) = by_seed(runs)
    assert list(group.scores) == ["linear", "own linear", "worst tenth", "gaining"]
    assert group.scores["own linear"] == MeanStd.of([0.375, 0.875])
    assert group.scores["worst tenth"] == MeanStd.of([0.25, 0.75])
    assert group.scores["gaining"] == MeanStd.of([0.0, 1.0])


def test_a_seed_that_comes_twice_is_no_further_draw(summary):
    runs = [
        summary("fedavg", "seed=1"),
        replace(summary("fedavg", "seed=1"), directory=Path("copy")),
        summary("fedavg"),
    ]
    assert [[str(run.directory) for run in group.runs] for group in by_seed(runs)] == [["fedavg", "fedavg"], ["copy"]]


def test_the_path_of_the_data_does_not_count_but_what_they_are_does(summary):
    first, second = summary("fedavg", "seed=0"), summary("fedavg", "seed=1", "data.path=elsewhere")
    assert len(by_seed([first, second])) == 1
    assert len(by_seed([first, replace(second, fingerprint="other")])) == 2


def test_a_run_without_scores_lowers_n(summary):
    (group,) = by_seed([summary("fedavg", "seed=0"), summary("fedavg", "seed=1", linear=0.5)])
    assert (group.seeds, group.scores["linear"].n) == ((0, 1), 1)


def test_a_run_that_was_stopped_early_is_no_draw_of_the_finished_ones(summary):
    finished, stopped = by_seed([summary("fedavg"), replace(summary("fedavg", "seed=1"), rounds=1, finished=False)])
    assert (finished.seeds, stopped.seeds) == ((0,), (1,))


def test_runs_from_encoders_of_several_seeds_belong_together(summary, tiny: TinyConfig, tmp_path: Path):
    for name, seed in (("fedavg", 0), ("fedavg", 1), ("local", 1)):
        directory = tmp_path / f"{name}-{seed}"
        directory.mkdir()
        federation = Federation.open(tiny(name, f"seed={seed}"))
        RunRecord.create(directory, federation, LocalExecutor(federation).arithmetic())

    def begun(start: str, seed: int) -> Summary:
        return summary("fedavg", f"model.start={tmp_path / start}", f"seed={seed}")

    assert len(by_seed([begun("fedavg-0", 1), begun("fedavg-1", 0)])) == 1
    assert len(by_seed([begun("fedavg-0", 1), begun("local-1", 0)])) == 2
