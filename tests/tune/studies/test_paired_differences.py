"""A benchmark in small: two systems are tuned, compared on two splits and two seeds, stopped and resumed."""

import json
import shutil
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import yaml

from rayfed_ssl.errors import ConfigError, UntrustedError
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.html import write_report
from tests.tune.conftest import Cli
from tune.studies.definition.files import load_study, study_names
from tune.studies.definition.trial_configs import run_of
from tune.studies.execution.directory import StudyDirectory
from tune.studies.results.paired_differences import compared, system_table
from tune.studies.results.reported import read_study
from tune.studies.results.results import Difference, ScoreResult, StudyResults, TrialResult
from tune.studies.results.summary import summarize_study
from tune.studies.run import StudyRequest, search_of

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
    "columns": {
        "IID": {"set": {"partition": {"name": "iid"}}},
        "skewed": {"set": {"partition": {"name": "dirichlet", "alpha": 1.0}}},
    },
    "tuning": {"set": {"rounds": 1, "data.validation": 0.2}},
    "seeds": 2,
    "baseline": "FedSimCLR",
    "rows": {
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
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyRequest, StudyResults]:
    """A benchmark that was run with one seed first, and then with both."""
    folder = tmp_path_factory.mktemp("benchmark")
    request = StudyRequest(write(folder), "benchmark", out=folder / "out")
    replace(request, seeds=(0,)).run(lambda line: None)
    return request, request.run(lambda line: None)


def systems(results: StudyResults, column: str) -> dict[str, TrialResult]:
    return {trial.point["row"]: trial for trial in results.trials if trial.point["column"] == column}


def test_a_benchmark_of_somebody_else_does_not_count(made: tuple[StudyRequest, StudyResults], tmp_path: Path):
    copy = Path(shutil.copytree(made[0].directory, tmp_path / "copy"))
    record = (copy / "study.json").read_bytes()
    of_others = "is not a study that you have made here: to run it, add --trust"
    with pytest.raises(UntrustedError, match=rf"search/fedsimclr {of_others}"):
        replace(made[0], out=copy, rows=("alone",)).run(print)
    shutil.rmtree(copy / "search")
    with pytest.raises(UntrustedError, match=rf"copy {of_others}"):
        replace(made[0], out=copy, rows=("alone",)).run(print)
    assert (copy / "study.json").read_bytes() == record


def test_each_system_runs_with_what_its_search_chose(made: tuple[StudyRequest, StudyResults]) -> None:
    request, results = made
    for name, directory in (("FedSimCLR", "fedsimclr"), ("FedProx", "fedprox")):
        search = json.loads((request.directory / "search" / directory / "results.json").read_text())
        scores = {json.dumps(trial["point"]): trial["values"]["linear"]["mean"] for trial in search["trials"]}
        assert len(scores) == 2
        assert scores[json.dumps(results.chosen[name])] == max(scores.values())
        assert search["selection"] == "validation"
        for run in (run for trial in results.trials if trial.point["row"] == name for run in trial.runs):
            settings = RunRecord.open(request.directory / run).config().dump()
            assert settings["data"]["validation"] is None
            for key, value in results.chosen[name].items():
                assert reduce(getitem, key.split("."), settings) == value
    assert "alone" not in results.chosen


def test_differences_are_paired_by_seed(made: tuple[StudyRequest, StudyResults]) -> None:
    _, results = made
    for split in ("IID", "skewed"):
        rows = systems(results, split)
        assert rows["alone"].seeds == [0, 1]
        base, mine = rows["FedSimCLR"].values["linear"].each, rows["alone"].values["linear"].each
        differences = [a - b for a, b in zip(mine, base, strict=True)]
        versus = rows["alone"].versus
        assert versus is not None
        assert versus.mean == pytest.approx(fmean(differences), abs=1e-15)
        half = 12.706204736432095 * stdev(differences) / 2**0.5  # Student's t, one degree of freedom
        assert (versus.low, versus.high) == pytest.approx((versus.mean - half, versus.mean + half), abs=1e-9)
        assert rows["FedSimCLR"].versus is None
        means = {name: row.values["linear"].mean for name, row in rows.items()}
        best = max(means, key=lambda name: means[name])
        assert rows[best].rank == 1


def test_systems_within_two_standard_errors_share_a_rank() -> None:
    means = {"FedSimCLR": 0.80, "FedProx": 0.83, "alone": 0.70}
    one = {"point": {"column": "IID"}, "number": 0, "label": "", "state": "complete", "reason": "", "seeds": [0]}
    one |= {"runs": [], "reached": 1, "rounds": 1, "bytes": 0.0, "samples": 400}
    trials = [
        TrialResult.model_validate(
            one | {"point": {"row": name, "column": "IID"}, "values": {"linear": ScoreResult.of([mean])}}
        )
        for name, mean in means.items()
    ]
    ranked = compared(trials, "FedSimCLR", "linear")
    assert [trial.rank for trial in ranked] == [1, 1, 3]
    table = system_table(ranked, "IID", "linear", "FedSimCLR")
    assert [line[0].text for line in table.lines] == ["FedProx", "FedSimCLR", "alone"]
    assert table.remarks[0].endswith("up to 2.96 points each, by 400 test pictures.")
    unknown = [trial.model_copy(update={"samples": 0}) for trial in trials]
    assert [trial.rank for trial in compared(unknown, "FedSimCLR", "linear")] == [2, 1, 3]


def test_the_random_encoder_is_what_the_baseline_starts_from(made: tuple[StudyRequest, StudyResults]) -> None:
    request, results = made
    for split in ("IID", "skewed"):
        random, base = (systems(results, split)[name] for name in ("Random encoder", "FedSimCLR"))
        assert (random.seeds, random.bytes) == ([0, 1], 0)
        starts = [RunRecord.open(request.directory / run).manifest.starts["cnn"] for run in base.runs]
        for score in ("linear", "knn"):
            assert random.values[score].each == [start[score] for start in starts]


def test_a_finished_benchmark_runs_nothing_and_writes_the_same_files(
    made: tuple[StudyRequest, StudyResults], cli: Cli
) -> None:
    request, _ = made
    before = {path: path.stat().st_mtime_ns for path in request.directory.rglob("run.json")}
    text = (request.directory / "table.md").read_text()
    again = cli("benchmark", request.name, "--out", request.directory)
    assert again.exit_code == 0, again.output
    assert {path: path.stat().st_mtime_ns for path in request.directory.rglob("run.json")} == before
    head = [line for line in text.splitlines() if "rayfed-ssl benchmark" not in line]
    now = (request.directory / "table.md").read_text()
    assert [line for line in now.splitlines() if "rayfed-ssl benchmark" not in line] == head
    assert "FedProx" in again.output
    assert (request.directory / "figures" / "accuracy-over-bytes.svg").is_file()
    digests = [digest for trial in made[1].trials for digest in trial.digests]
    assert len(digests) == 3 * 2 * 2
    assert all(digest is not None and digest in text for digest in digests)


def test_the_report_shows_it(made: tuple[StudyRequest, StudyResults], tmp_path: Path) -> None:
    page = write_report([made[0].directory], tmp_path / "report.html", read_table=read_study).read_text()
    assert "mathdefault" not in page  # powers of ten as source
    assert "Benchmark: Two systems" in page
    means = [mean for trial in made[1].trials if (mean := trial.mean("linear")) is not None]
    assert len(means) == 8
    assert all(mean.text(symbol=False) in page for mean in means)


def test_a_part_adds_to_what_is_there(made: tuple[StudyRequest, StudyResults]) -> None:
    request, results = made
    part = replace(request, rows=("alone",), seeds=(0,)).run(lambda line: None)
    assert part.trials == results.trials
    assert part.chosen == results.chosen


def test_a_missing_run_costs_its_seed_alone(made: tuple[StudyRequest, StudyResults], tmp_path: Path) -> None:
    request, results = made
    directory = StudyDirectory.open(Path(shutil.copytree(request.directory, tmp_path / "out")), trust=True)
    shutil.rmtree(directory.path / systems(results, "IID")["alone"].runs[1])
    row = systems(summarize_study(directory), "IID")["alone"]
    assert row.seeds == [0]
    assert isinstance(row.versus, Difference)
    assert (row.versus.n, row.versus.low) == (1, None)


def test_a_system_that_cannot_run_is_refused_before_any_run(tmp_path: Path, cli: Cli) -> None:
    eleven = {"recipe": "fedsimclr", "set": {"partition": {"name": "classes_per_client", "classes": 11}}}
    name = write(tmp_path, rows=TREE["rows"] | {"alone": eleven})
    result = cli("benchmark", name, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1, result.output
    assert not list(tmp_path.rglob("run.json"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baseline": "FedSimCRL"}, "there is no row 'FedSimCRL': did you mean 'FedSimCLR'?"),
        (
            {"rows": TREE["rows"] | {"FedProx": {"recipe": "fedprox", "tune": {"method.mu": [0.1]}}}},
            "all rows are tuned by as many trials, got FedSimCLR 2, FedProx 1",
        ),
        ({"column": {}}, "unknown key 'column': did you mean 'columns'?"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, cli: Cli, changes: dict[str, Any], message: str) -> None:
    result = cli("benchmark", write(tmp_path, **changes))
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_another_benchmark_is_not_written_over(made: tuple[StudyRequest, StudyResults], tmp_path: Path) -> None:
    request = StudyRequest(write(tmp_path, title="Others"), "benchmark", out=made[0].directory)
    with pytest.raises(ConfigError, match="name another directory with --out"):
        request.run(print)


@pytest.mark.parametrize("name", study_names("benchmark"))
def test_shipped_benchmarks_resolve_at_an_equal_budget(name: str) -> None:
    file = load_study(name, kind="benchmark")
    for row in file.rows:
        if file.rows[row].tune:
            search = load_study(search_of(file, row))
            assert all(run_of(search, point, 0) for point in search.points())
    configs = [run_of(file, point, 0).config for point in file.points()]
    on_all_samples = [config for config in configs if getattr(config.partition, "fraction", 1) == 1]
    assert len({config.training.total_steps or config.rounds * config.epochs for config in on_all_samples}) == 1
