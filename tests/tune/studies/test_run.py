"""Reproducing in small: two rows, two columns and two seeds of digits run, stop, go on, and say what failed."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayfed_ssl.errors import ConfigError, UntrustedError
from rayfed_ssl.machine.processor import NotPortableError
from rayfed_ssl.records.run_record import RunRecord
from tests.tune.conftest import Cli
from tune.studies.execution.segments import run_segment
from tune.studies.results.results import StudyResults
from tune.studies.run import StudyRequest

SMALL = {
    "data": {"name": "digits", "train_limit": 60, "test_limit": 30},
    "clients.number": 2,
    "rounds": 2,
    "training": {"epochs": 1, "batch": 16},
    "evaluation": {"every": 0, "linear": {"epochs": 1}},
    "engine": {"executor": "local", "device": "cpu", "precision": "fp32"},
}
TREE: dict[str, Any] = {
    "title": "A table in small",
    "source": "None, Table 0",
    "score": "linear",
    "rows": {
        "pooled": {"recipe": "simclr-centralized", "set": {"partition": {"name": "pooled"}, "rounds": 1}},
        "FedSimCLR": {"recipe": "fedsimclr"},
    },
    "columns": {
        "IID": {"set": {"partition": {"name": "iid"}}},
        "Non-IID": {"set": {"partition": {"name": "dirichlet", "alpha": 1.0}}},
    },
    "published": {"pooled": [90, None], "FedSimCLR": [80.5, 70]},
    "sizes": {"cpu": {"set": SMALL}},
}

POINT = {"row": "FedSimCLR", "column": "IID"}

TOO_MANY = {"recipe": "fedsimclr", "set": {"partition": {"name": "classes_per_client", "classes": 11}}}
"""Digits have ten classes, which no configuration knows before the run."""


def write(folder: Path, **changes: Any) -> str:
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump(TREE | changes, sort_keys=False))
    return str(file)


def asked(file: str, out: Path, **changes: Any) -> StudyRequest:
    return replace(StudyRequest(file, "reproduction", out=out, size="cpu", seeds=(0,)), **changes)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyRequest, StudyResults, list[str]]:
    """A table that has been made, what it says, and the progress."""
    folder, said = tmp_path_factory.mktemp("made"), []
    request = asked(write(folder), folder / "out", seeds=(0, 1))
    return request, request.run(said.append), said


def test_a_portable_table_asks_for_another_process_before_anything_is_written(tmp_path: Path):
    request = asked(write(tmp_path), tmp_path / "out", settings=("engine.cpu=portable", "engine.precision=auto"))
    with pytest.raises(NotPortableError, match=r"^engine.cpu=portable must be set up before torch is imported"):
        request.run(print)
    assert not (tmp_path / "out").exists()


def test_a_table_of_somebody_else_is_not_signed_and_its_runs_do_not_count(made, tmp_path: Path):
    copy = Path(shutil.copytree(made[0].directory, tmp_path / "copy"))
    request, record = replace(made[0], out=copy), (copy / "study.json").read_bytes()
    with pytest.raises(UntrustedError, match=r"is not a study that you have made here: to run it, add --trust"):
        request.run(print)
    assert (copy / "study.json").read_bytes() == record


def test_cells_of_equal_settings_are_one_run(made):
    request, results, said = made
    runs = {trial.label: trial.runs for trial in results.trials}
    assert runs["pooled, IID"] == runs["pooled, Non-IID"]
    assert runs["FedSimCLR, IID"] != runs["FedSimCLR, Non-IID"]
    assert len(list((request.directory / "runs").glob("*/run.json"))) == 2 * 3
    assert said[-1].startswith("trial 3 ")


def test_a_cell_shows_the_score_of_its_runs_beside_the_published_number(made):
    request, results, _ = made
    (trial,) = (trial for trial in results.trials if trial.label == "FedSimCLR, Non-IID")
    scores = []
    for run in trial.runs:
        record = RunRecord.open(request.directory / run)
        assert record.config().partition.alpha == 1.0
        scores.append(record.scores(2)["global"]["linear"])
    value = trial.values["linear"]
    assert value.each == pytest.approx(scores, abs=1e-12)
    assert value.mean == pytest.approx(sum(scores) / 2, abs=1e-12)
    assert value.std == pytest.approx(abs(scores[0] - scores[1]) / 2**0.5, abs=1e-12)
    assert (trial.published, trial.reason) == (70.0, "")
    assert trial.difference == pytest.approx(100 * value.mean - 70, abs=1e-9)
    assert results.model_dump(mode="json") == json.loads((request.directory / "results.json").read_text())


def test_the_table_is_written_in_the_papers_layout(made):
    request, results, _ = made
    lines = (request.directory / "table.md").read_text().splitlines()
    assert "|  | IID | Non-IID |" in lines
    assert [line.split(" | ")[0] for line in lines if line.startswith(("| p", "| F"))] == ["| pooled", "| FedSimCLR"]
    assert any("order alone" in line for line in lines)
    assert results.command == f"rayfed-ssl reproduce {request.name} --size cpu --seed 0 --seed 1 --out {request.out}"
    assert results.agreement is not None
    assert results.agreement.cells == 3


def test_what_is_finished_is_not_run_again(made):
    request, results, _ = made
    before = {file: file.stat().st_mtime_ns for file in (request.directory / "runs").glob("*/run.json")}
    said: list[str] = []
    again = request.run(said.append)
    assert all(line.startswith("trial ") and "complete" in line for line in said)
    assert {file: file.stat().st_mtime_ns for file in (request.directory / "runs").glob("*/run.json")} == before
    assert (again.tables, again.trials) == (results.tables, results.trials)


def test_an_interrupted_table_is_resumed_to_the_same_numbers(made, tmp_path: Path):
    request, results, _ = made
    again = replace(request, out=tmp_path / "out")
    runs = sorted((run for run in (request.directory / "runs").iterdir() if run.is_dir()), reverse=True)
    for run in runs[:3]:
        shutil.copytree(run, again.directory / "runs" / run.name)
    (again.directory / "runs" / runs[3].name / "checkpoints").mkdir(parents=True)  # stopped before its record began
    part = next(run for run in runs[4:] if RunRecord.open(run).config().rounds == 2)
    whole = RunRecord.open(part)
    copy = again.directory / "runs" / part.name
    assert run_segment(whole.config(), copy, 1).failure is None
    assert [trial.values for trial in again.run(print).trials] == [trial.values for trial in results.trials]
    assert RunRecord.open(copy).manifest.rounds[-1].state_sha256 == whole.manifest.rounds[-1].state_sha256


def test_what_fails_is_reported_and_keeps_nothing_else_from_running(cli: Cli, tmp_path: Path):
    name = write(tmp_path, rows=TREE["rows"] | {"too many": TOO_MANY})
    result = cli("reproduce", name, "--column", "IID", "--out", tmp_path / "out")
    assert result.exit_code == 1
    trials = json.loads((tmp_path / "out" / "results.json").read_text())["trials"]
    assert {trial["point"]["row"]: bool(trial["values"]) for trial in trials} == {
        "pooled": True,
        "FedSimCLR": True,
        "too many": False,
    }
    assert "Failed, trial 2 (too many, IID): " in result.output


@pytest.mark.slow
@pytest.mark.ray
def test_parallel_runs_are_trials_on_tune_and_report_why_they_fail(cli: Cli, tmp_path: Path):
    rows = {"FedSimCLR": {"recipe": "fedsimclr"}, "too many": TOO_MANY}
    name = write(tmp_path, rows=rows, published={})
    result = cli("reproduce", name, "--column", "IID", "--out", tmp_path / "out", "--jobs", 2, "--json", "-q")
    assert result.exit_code == 1
    plain = json.loads(result.stdout)
    one, other = plain["trials"]
    assert one["values"]["linear"]["mean"] > 0
    assert (other["values"], "11" in other["reason"]) == ({}, True)


def test_a_second_run_starts_from_the_encoder_of_the_first(tmp_path: Path):
    columns = {
        "10%": {
            "set": {"partition": {"name": "iid"}},
            "then": {"recipe": "federated-finetune", "set": {"clients.labeled": 0.5}},
        }
    }
    rows = {"FedSimCLR": {"recipe": "fedsimclr"}, "alone": {"recipe": "fedavg-supervised", "runs": "second"}}
    sizes = {"cpu": {"set": SMALL, "then": {"rounds": 1, "training": {"epochs": 1, "batch": 8}}}}
    name = write(tmp_path, rows=rows, columns=columns, sizes=sizes, score="supervised", published={})
    request = asked(name, tmp_path / "out")
    result = request.run(lambda line: None)
    assert result.failures == []
    runs = [request.directory / trial.runs[0] for trial in result.trials]
    starts = [RunRecord.open(run).config().model.start for run in runs]
    assert len(list((request.directory / "runs").glob("*/run.json"))) == 3
    assert starts[0] is not None
    assert RunRecord.open(starts[0]).manifest.method == "fedavg"
    assert starts[1] is None


def test_a_column_without_data_is_left_out_with_a_line_that_says_how_to_get_them(cli: Cli, tmp_path: Path):
    columns = TREE["columns"] | {"pictures": {"obtain": "ask the author", "set": {"data.name": "folder"}}}
    result = cli("reproduce", write(tmp_path, columns=columns, published={}), "--dry-run")
    assert result.exit_code == 0
    (line,) = [line for line in result.stdout.splitlines() if "left out" in line]
    assert "set data.path to its directory; ask the author" in line


def test_a_dry_run_lists_cells_and_writes_nothing(cli: Cli, tmp_path: Path):
    result = cli("reproduce", write(tmp_path), "--dry-run", "--out", tmp_path / "out", "--seed", 3)
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()[3:]]
    assert [line[-2:] for line in lines] == [["to", "do"]] * 4
    assert [line[1] for line in lines] == ["pooled,", "pooled,", "FedSimCLR,", "FedSimCLR,"]
    assert [line[3] for line in lines] == ["3"] * 4
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["flesd-tabel1"], "did you mean 'flesd-table1'?"),
        (["flesd-table1", "--size", "gpu"], "flesd-table1 has no size 'gpu'"),
        (["flesd-table1", "--row", "FLESD-c"], "did you mean 'FLESD-cc'?"),
        (["flesd-table1", "--column", "CIFAR10 α=10"], "flesd-table1 has no column 'CIFAR10 α=10'"),
        (["flesd-table1", "--jobs", "0"], "invalid value for '--jobs'"),
        (["flesd-table1", "--seed", "1", "--seed", "1"], "each seed counts once"),
        (["flesd-table1", "training.batches=3"], "unknown key 'training.batches'"),
        (["fcl-table1", "--size", "paper", "data.name=parquet"], "choose the columns of one with --column\n"),
        (
            ["flesd-table1", "data.name=parquet", "data.path=/nowhere"],
            "the data of no column of flesd-table1 are there",
        ),
    ],
)
def test_a_mistake_is_one_line(cli: Cli, words: list[str], message: str):
    result = cli("reproduce", *words, "--dry-run")
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_another_tables_directory_is_refused(made):
    request, _, _ = made
    with pytest.raises(ConfigError, match=r"holds small .*name another directory"):
        replace(request, name="flesd-figure5", settings=("data={name: digits}",)).run(print)


def test_a_sweep_command_refuses_to_resume_it(cli: Cli, made):
    result = cli("sweep", "--resume", made[0].directory)
    assert result.exit_code == 2
    assert f"holds a reproduction: resume it with `{made[0].command}`" in result.stderr


def test_a_table_is_there_even_if_its_figure_cannot_be_drawn(made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*words: Any) -> None:
        raise RuntimeError("no ink")

    request = asked(write(tmp_path, figure={"draw": "lines"}), tmp_path / "out")
    shutil.copytree(made[0].directory / "runs", request.directory / "runs")
    monkeypatch.setattr("tune.studies.results.figures.draw_paper", broken)
    results = request.run(lambda line: None)
    assert results.remarks[-1].startswith("The figure small could not be drawn: RuntimeError('no ink')")
    assert (request.directory / "table.md").is_file()


def test_a_cell_alone_is_left_out_for_its_public_data_or_what_it_transfers_to(tmp_path: Path):
    sizes = {"cpu": {"set": SMALL, "rows": {"public": {"set": {"public": "folder:/nowhere:10"}}}}}
    target = {
        "evaluation.protocols": ["transfer-fedca"],
        "evaluation.settings.transfer-fedca.dataset": "folder:/nowhere",
    }
    rows = {"public": {"recipe": "flesd"}, "FedSimCLR": {"recipe": "fedsimclr"}}
    columns = {"IID": {}, "elsewhere": {"set": target}}
    name = write(tmp_path, rows=rows, columns=columns, sizes=sizes, published={})
    directory = asked(name, tmp_path / "out").describe()
    assert directory.study.points() == [POINT]
    assert list(directory.record.skipped) == ["public, IID", "elsewhere"]
