"""A benchmark in small: two systems are tuned, compared on two splits and two seeds, stopped and resumed."""

import json
import shlex
import shutil
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import yaml

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.html import write_report
from tests.tune.conftest import Cli
from tune.studies.benchmark import BenchmarkRequest, run_benchmark
from tune.studies.definition.benchmark_file import benchmark_names, comparison_sweep, load_benchmark, search_sweep
from tune.studies.definition.files import load_sweep
from tune.studies.definition.trial_configs import run_of
from tune.studies.results.benchmark_collect import write_benchmark
from tune.studies.results.benchmark_results import BenchmarkResults, Difference, Row, RunEntry, compared
from tune.studies.results.reported import read_study

TREE: dict[str, Any] = {
    "title": "Two systems",
    "notes": ["In small."],
    "set": {
        "data": {"name": "digits", "train_limit": 60, "test_limit": 30},
        "clients.number": 2,
        "rounds": 2,
        "model": {"encoder": "cnn", "projection_dim": 16},
        "training": {"epochs": 1, "batch": 16},
        "evaluation": {"every": 1, "linear": {"epochs": 1}},
        "engine": {"device": "cpu", "precision": "fp32", "trackers": []},
    },
    "splits": {"IID": {"partition": {"name": "iid"}}, "skewed": {"partition": {"name": "dirichlet", "alpha": 1.0}}},
    "search": {"set": {"rounds": 1, "data.validation": 0.2}},
    "seeds": 2,
    "baseline": "FedSimCLR",
    "systems": {
        "FedSimCLR": {"recipe": "fedsimclr", "tune": {"training.optimizer.lr": [0.001, 0.01]}},
        "FedProx": {"recipe": "fedprox", "tune": {"method.mu": [0.01, 0.1]}},
        "alone": {"recipe": "simclr-local"},
    },
}


def write(folder: Path, **changes: Any) -> str:
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump(TREE | changes, sort_keys=False))
    return str(file)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[BenchmarkRequest, BenchmarkResults]:
    """A benchmark that was run with one seed first, and then with both."""
    folder = tmp_path_factory.mktemp("benchmark")
    request = BenchmarkRequest(write(folder), out=folder / "out")
    run_benchmark(replace(request, seeds=1), lambda line: None)
    return request, run_benchmark(request, lambda line: None)


def test_each_system_runs_with_what_its_search_chose(made: tuple[BenchmarkRequest, BenchmarkResults]) -> None:
    request, results = made
    for name, directory in (("FedSimCLR", "fedsimclr"), ("FedProx", "fedprox")):
        search = json.loads((request.directory / "search" / directory / "results.json").read_text())
        scores = {json.dumps(trial["point"]): trial["values"]["linear"]["mean"] for trial in search["trials"]}
        assert len(scores) == 2
        assert scores[json.dumps(results.chosen[name])] == max(scores.values())
        assert search["selection"] == "validation"
        for run in (run for row in results.rows if row.system == name for run in row.runs):
            settings = RunRecord.open(request.directory / run.run).config().dump()
            assert settings["data"]["validation"] is None
            for key, value in results.chosen[name].items():
                assert reduce(getitem, key.split("."), settings) == value
    assert "alone" not in results.chosen


def test_differences_are_paired_by_seed(made: tuple[BenchmarkRequest, BenchmarkResults]) -> None:
    _, results = made
    for split in ("IID", "skewed"):
        rows = {row.system: row for row in results.rows if row.split == split}
        assert [run.seed for run in rows["alone"].runs] == [0, 1]
        base = [run.scores["linear"] for run in rows["FedSimCLR"].runs]
        mine = [run.scores["linear"] for run in rows["alone"].runs]
        differences = [a - b for a, b in zip(mine, base, strict=True)]
        found = rows["alone"].difference
        assert found is not None
        assert found.mean == pytest.approx(fmean(differences), abs=1e-15)
        half = 12.706204736432095 * stdev(differences) / 2**0.5  # Student's t, one degree of freedom
        assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half), abs=1e-9)
        assert rows["FedSimCLR"].difference is None
        means = {name: fmean(run.scores["linear"] for run in row.runs) for name, row in rows.items()}
        best = max(means, key=lambda name: means[name])
        assert rows[best].rank == 1


def test_the_random_encoder_is_what_the_baseline_starts_from(made: tuple[BenchmarkRequest, BenchmarkResults]) -> None:
    request, results = made
    for row in (row for row in results.rows if row.system == "Random encoder"):
        assert [run.seed for run in row.runs] == [0, 1]
        for run in row.runs:
            starts = RunRecord.open(request.directory / run.run).manifest.starts["cnn"]
            assert (run.scores["linear"], run.scores["knn"]) == (starts["linear"], starts["knn"])
            assert run.bytes == 0


def test_a_row_has_the_command_that_makes_it(made: tuple[BenchmarkRequest, BenchmarkResults], cli: Cli) -> None:
    _, results = made
    assert set(results.commands) == {"FedSimCLR", "Random encoder", "FedProx", "alone"}
    assert results.commands["Random encoder"] == results.commands["FedSimCLR"]
    words = shlex.split(results.commands["alone"])
    assert words[:2] == ["rayfed-ssl", "benchmark"]
    again = cli(*words[1:], "--json")
    assert again.exit_code == 0, again.output
    now = BenchmarkResults.model_validate_json(again.stdout)
    assert [row for row in now.rows if row.system == "alone"] == [row for row in results.rows if row.system == "alone"]


def test_curves_begin_at_the_start(made: tuple[BenchmarkRequest, BenchmarkResults]) -> None:
    request, results = made
    for row in (row for row in results.rows if row.system == "alone"):
        starts = [RunRecord.open(request.directory / run.run).manifest.starts["cnn"]["knn"] for run in row.runs]
        assert list(row.knn_curve()) == [0, 1, 2]
        assert row.knn_curve()[0] == fmean(starts)


def entry(seed: int, linear: float, knn: float = 0.5) -> RunEntry:
    scores = {"linear": linear, "knn": knn}
    costs: dict[str, Any] = {"bytes": 1_500_000, "seconds": 12.0, "state_sha256": None, "epochs": [], "knn": []}
    return RunEntry.model_validate({"seed": seed, "run": "r", "scores": scores} | costs)


def fabricated(rows: list[Row]) -> BenchmarkResults:
    texts = {"title": "T", "command": "c", "score": "linear", "baseline": "A"}
    return BenchmarkResults(**texts, notes=[], commands={}, chosen={}, rows=rows, failures={})


def test_the_spread_between_systems_stands_beside_that_between_seeds() -> None:
    rows = [
        Row(split="IID", system="A", runs=[entry(0, 0.50), entry(1, 0.52)]),
        Row(split="IID", system="B", runs=[entry(0, 0.60), entry(1, 0.64)]),
        Row(split="IID", system="Random encoder", runs=[entry(0, 0.10), entry(1, 0.10)]),
        Row(split="other", system="A", runs=[entry(0, 0.50)]),
        Row(split="other", system="B", runs=[entry(0, 0.60)]),
        Row(split="alone", system="A", runs=[entry(0, 0.50)]),
    ]
    results = fabricated(rows)
    between = 100 * stdev([0.51, 0.62])
    within = 100 * ((stdev([0.50, 0.52]) ** 2 + stdev([0.60, 0.64]) ** 2) / 2) ** 0.5
    assert f"linear {between:.2f} between systems, {within:.2f} between seeds; knn 0.00" in results.spread("IID")
    assert "linear 7.07 between systems, one seed of each" in results.spread("other")
    assert results.spread("alone") == ""
    assert results.spread("IID") in results.markdown()


def test_a_table_has_both_scores_megabytes_and_seconds() -> None:
    rows = compared([Row(split="IID", system="A", runs=[entry(0, 0.5, 0.4), entry(1, 0.6, 0.5)])], "A", "linear")
    head, (line,) = fabricated(rows).table("IID")
    cells = dict(zip(head, line, strict=True))
    assert cells["linear (%)"] == "55.00 ± 7.07"
    assert cells["kNN (%)"] == "45.00 ± 7.07"
    assert (cells["rank"], cells["MB"], cells["seconds"], cells["seeds"]) == ("1", "1.50", "12", "2")


def test_one_seed_has_no_interval() -> None:
    assert Difference.of([(0.5, 0.4)]).text == "+10.00"


def test_a_finished_benchmark_runs_nothing_and_writes_the_same_files(
    made: tuple[BenchmarkRequest, BenchmarkResults], cli: Cli
) -> None:
    request, _ = made
    before = {path: path.stat().st_mtime_ns for path in request.directory.rglob("run.json")}
    text = (request.directory / "benchmark.md").read_text()
    again = cli("benchmark", request.name, "--out", request.directory)
    assert again.exit_code == 0, again.output
    assert {path: path.stat().st_mtime_ns for path in request.directory.rglob("run.json")} == before
    head = [line for line in text.splitlines() if "rayfed-ssl benchmark" not in line]
    now = (request.directory / "benchmark.md").read_text()
    assert [line for line in now.splitlines() if "rayfed-ssl benchmark" not in line] == head
    assert "FedProx" in again.output
    assert (request.directory / "accuracy-over-bytes.svg").is_file()
    digests = [run.state_sha256 for row in made[1].rows for run in row.runs if row.system != "Random encoder"]
    assert all(digest is not None and digest[:16] in text for digest in digests)


def test_the_report_shows_it(made: tuple[BenchmarkRequest, BenchmarkResults], tmp_path: Path) -> None:
    page = write_report([made[0].directory], tmp_path / "report.html", read_table=read_study).read_text()
    assert "mathdefault" not in page  # powers of ten as source
    assert "Benchmark: Two systems" in page
    means = [mean for row in made[1].rows if (mean := row.mean("linear")) is not None]
    assert len(means) == 8
    assert all(mean.text(symbol=False) in page for mean in means)
    assert "kNN over local epochs, skewed" in page


def test_a_part_adds_to_what_is_there(made: tuple[BenchmarkRequest, BenchmarkResults]) -> None:
    request, results = made
    part = run_benchmark(replace(request, systems=("alone",), seeds=1), lambda line: None)
    assert part.rows == results.rows
    assert part.chosen == results.chosen


def test_results_are_written_to_a_relative_directory(
    made: tuple[BenchmarkRequest, BenchmarkResults], monkeypatch: pytest.MonkeyPatch
) -> None:
    request, results = made
    monkeypatch.chdir(request.directory.parent)
    relative = Path(request.directory.name)
    assert write_benchmark(relative, load_benchmark(request.name), "again", request.command_of).rows == results.rows


def test_a_missing_run_costs_its_seed_alone(made: tuple[BenchmarkRequest, BenchmarkResults], tmp_path: Path) -> None:
    request, results = made
    out = tmp_path / "out"
    shutil.copytree(request.directory, out)
    (lost,) = [row.runs[1].run for row in results.rows if (row.split, row.system) == ("IID", "alone")]
    shutil.rmtree(out / lost)
    rows = write_benchmark(out, load_benchmark(request.name), "again", request.command_of).rows
    (row,) = [row for row in rows if (row.split, row.system) == ("IID", "alone")]
    assert [run.seed for run in row.runs] == [0]
    assert row.difference is not None
    assert (row.difference.n, row.difference.low) == (1, None)


def test_equal_means_share_a_rank() -> None:
    scores = {"A": 0.5, "B": 0.5, "C": 0.4}
    rows = [Row(split="IID", system=name, runs=[entry(0, score)]) for name, score in scores.items()]
    assert [row.rank for row in compared(rows, "A", "linear")] == [1, 1, 3]


def test_a_system_that_cannot_run_is_refused_before_any_run(tmp_path: Path, cli: Cli) -> None:
    eleven = {"recipe": "fedsimclr", "set": {"partition": {"name": "classes_per_client", "classes": 11}}}
    name = write(tmp_path, systems=TREE["systems"] | {"alone": eleven})
    result = cli("benchmark", name, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1, result.output
    assert not list(tmp_path.rglob("run.json"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baseline": "FedSimCRL"}, "there is no system 'FedSimCRL': did you mean 'FedSimCLR'?"),
        (
            {"systems": TREE["systems"] | {"FedProx": {"recipe": "fedprox", "tune": {"method.mu": [0.1]}}}},
            "all systems are tuned by as many trials, got FedSimCLR 2, FedProx 1",
        ),
        ({"splitz": {}}, "unknown key 'splitz'"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, cli: Cli, changes: dict[str, Any], message: str) -> None:
    result = cli("benchmark", write(tmp_path, **changes))
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_another_benchmark_is_not_written_over(made: tuple[BenchmarkRequest, BenchmarkResults], tmp_path: Path) -> None:
    request = BenchmarkRequest(write(tmp_path, title="Others"), out=made[0].directory)
    with pytest.raises(ConfigError, match="name another directory with --out"):
        run_benchmark(request, lambda line: None)


@pytest.mark.parametrize("name", benchmark_names())
def test_shipped_benchmarks_resolve(name: str) -> None:
    file = load_benchmark(name)
    for system in file.systems:
        if file.systems[system].tune:
            sweep = load_sweep(search_sweep(file, system), name="search")
            for point in sweep.space.grid():
                run_of(sweep, point, 0)
    sweeps = [load_sweep(comparison_sweep(file, system, {}, [0]), name="comparison") for system in file.systems]
    configs = [run_of(sweep, point, 0).config for sweep in sweeps for point in sweep.space.grid()]
    on_all_samples = [config for config in configs if getattr(config.partition, "fraction", 1) == 1]
    assert len({config.rounds * config.epochs for config in on_all_samples}) == 1  # an equal budget
