"""Reproducing in small: two rows, two columns and two seeds of digits run, stop, go on, and say what failed."""

import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from rayfed_ssl.config.schema import Config
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.records.run_record import RunRecord
from tune.reproductions.command import Wish, reproduce
from tune.reproductions.runner import Execution, Job, Plan, in_process

Cli = Callable[..., Result]

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
    "source": {"paper": "None", "item": "Table 0", "arxiv": "0000.00000"},
    "kind": "table",
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

TOO_MANY = {"recipe": "fedsimclr", "set": {"partition": {"name": "classes_per_client", "classes": 11}}}
"""Digits have ten classes, which no configuration knows before the run."""


def write(folder: Path, **changes: Any) -> str:
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump(TREE | changes, sort_keys=False))
    return str(file)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Wish, dict[str, Any], list[str]]:
    """A table that has been made, what was said, and what it says."""
    folder, said = tmp_path_factory.mktemp("made"), []
    wish = Wish(write(folder), seeds=(0, 1), out=folder / "out")
    reproduce(wish, said.append)
    return wish, json.loads((wish.directory / "reproduction.json").read_text()), said


def test_cells_of_equal_settings_are_one_run(made):
    wish, plain, said = made
    runs = {cell["row"]: [] for cell in plain["cells"]}
    for cell in plain["cells"]:
        runs[cell["row"]].append(cell["runs"])
    assert runs["pooled"][0] == runs["pooled"][1]
    assert runs["FedSimCLR"][0] != runs["FedSimCLR"][1]
    assert len(list(wish.folder.glob("*/run.json"))) == 2 * 3
    assert said[-1].startswith("run 6 of 6: ")


def test_a_cell_shows_the_score_of_its_runs_beside_the_published_number(made):
    wish, plain, _ = made
    cell = next(c for c in plain["cells"] if (c["row"], c["column"]) == ("FedSimCLR", "Non-IID"))
    scores = []
    for run in cell["runs"]:
        record = RunRecord.open(wish.directory / run)
        assert record.config().partition.alpha == 1.0
        scores.append(100 * record.scores(2)["global"]["linear"])
    assert cell["ours"] == pytest.approx(scores, abs=1e-9)  # percent of a fraction, in floats
    assert cell["mean"] == pytest.approx(sum(scores) / 2, abs=1e-9)
    assert cell["std"] == pytest.approx(abs(scores[0] - scores[1]) / 2**0.5, abs=1e-9)
    assert (cell["published"], cell["failures"]) == (70.0, {})
    assert cell["difference"] == pytest.approx(cell["mean"] - 70, abs=1e-9)


def test_the_table_is_written_in_the_papers_layout(made):
    wish, plain, _ = made
    lines = (wish.directory / "table.md").read_text().splitlines()
    assert "|  | IID | Non-IID |" in lines
    assert [line.split(" | ")[0] for line in lines if line.startswith(("| p", "| F"))] == ["| pooled", "| FedSimCLR"]
    assert any("order alone" in line for line in lines)
    assert plain["command"] == f"rayfed-ssl reproduce {wish.name} --size cpu --out {wish.out} --seed 0 --seed 1"
    assert plain["agreement"]["cells"] == 3


def test_what_is_finished_is_not_run_again(made):
    wish, _, _ = made
    before = {file: file.stat().st_mtime_ns for file in wish.folder.glob("*/run.json")}
    said: list[str] = []
    reproduce(wish, said.append)
    assert said == ["6 of 6 runs are there already"]
    assert {file: file.stat().st_mtime_ns for file in wish.folder.glob("*/run.json")} == before


def test_an_interrupted_table_goes_on_to_the_same_numbers(made, tmp_path: Path):
    wish, plain, _ = made
    again = replace(wish, out=tmp_path / "out")
    _, _, planned = again.resolve()
    again.folder.mkdir(parents=True)
    names = list(planned.jobs)
    first = Plan(dict(list(planned.jobs.items())[:2]))
    Execution(first, again.folder, in_process).run()
    shutil.copytree(wish.folder / names[2], again.folder / names[2])
    (again.folder / names[3] / "checkpoints").mkdir(parents=True)  # stopped before its record began
    said: list[str] = []
    reproduce(again, said.append)
    assert said[0] == "3 of 6 runs are there already"
    assert said[-1].startswith("run 3 of 3: ")
    now = json.loads((again.directory / "reproduction.json").read_text())
    assert [cell["ours"] for cell in now["cells"]] == [cell["ours"] for cell in plain["cells"]]


def test_a_run_that_stopped_between_rounds_is_resumed(made, tmp_path: Path):
    wish, _, _ = made
    _, _, planned = wish.resolve()
    name, job = next((name, job) for name, job in planned.jobs.items() if job.config.rounds == 2)
    shutil.copytree(wish.folder / name, tmp_path / name)
    record = RunRecord.open(tmp_path / name)
    whole = record.summary["rounds"][-1]["state_sha256"]
    record.truncate(1)
    for manifest in (tmp_path / name / "checkpoints").glob("*2.json"):
        manifest.unlink()
    execution = Execution(Plan({name: job}), tmp_path, in_process)
    execution.run()
    assert execution.failures == {}
    record = RunRecord.open(tmp_path / name)
    assert record.summary["finished"] is not None
    assert record.summary["rounds"][-1]["state_sha256"] == whole


def test_what_fails_is_reported_and_keeps_nothing_else_from_running(cli: Cli, tmp_path: Path):
    rows = TREE["rows"] | {"too many": TOO_MANY}
    name = write(tmp_path, rows=rows)
    result = cli("reproduce", name, "--column", "IID", "--out", tmp_path / "out")
    assert result.exit_code == 1
    plain = json.loads((tmp_path / "out" / "reproduction.json").read_text())
    states = {cell["row"]: (cell["mean"] is not None, list(cell["failures"])) for cell in plain["cells"]}
    assert states == {"pooled": (True, []), "FedSimCLR": (True, []), "too many": (False, ["0"])}
    assert "Failed, too many, IID, seed 0: " in result.output


def test_processes_run_beside_each_other_and_say_why_they_fail(cli: Cli, tmp_path: Path):
    rows = {
        "FedSimCLR": {"recipe": "fedsimclr"},
        "too many": TOO_MANY,
    }
    name = write(tmp_path, rows=rows, published={})
    result = cli("reproduce", name, "--column", "IID", "--out", tmp_path / "out", "--jobs", 2, "--json", "-q")
    assert result.exit_code == 1
    plain = json.loads(result.stdout)
    ours = {cell["row"]: cell["ours"] for cell in plain["cells"]}
    assert ours["FedSimCLR"][0] > 0
    assert ours["too many"] == [None]
    assert ".log)" in plain["cells"][1]["failures"]["0"]


def test_a_second_run_begins_with_the_encoder_of_the_first(tmp_path: Path):
    columns = {
        "10%": {
            "set": {"partition": {"name": "iid"}},
            "after": {"recipe": "federated-finetune", "set": {"clients.labeled": 0.5}},
        }
    }
    rows = {"FedSimCLR": {"recipe": "fedsimclr"}, "alone": {"recipe": "fedavg-supervised", "runs": "second"}}
    sizes = {"cpu": {"set": SMALL, "after": {"rounds": 1, "training": {"epochs": 1, "batch": 8}}}}
    name = write(tmp_path, rows=rows, columns=columns, sizes=sizes, score="supervised", published={})
    wish = Wish(name, out=tmp_path / "out")
    result = reproduce(wish, lambda line: None)
    assert result.failures == []
    runs = [wish.directory / cell.runs[0] for cell in result.cells]
    starts = [RunRecord.open(run).config().model.start for run in runs]
    assert len(list(wish.folder.glob("*/run.json"))) == 3
    assert starts[0] is not None
    assert RunRecord.open(starts[0]).summary["method"] == "fedavg"
    assert starts[1] is None


def test_what_needs_a_failed_run_is_left_out(tmp_path: Path):
    config = Config.load("fedsimclr")
    plan = Plan({"first": Job("first", config), "second": Job("second", config, "first")})
    execution = Execution(plan, tmp_path, lambda config, directory, lock: "it is broken", jobs=2)
    execution.run()
    assert execution.failures == {"first": "it is broken", "second": "needs first, which failed"}


def test_a_column_without_data_is_left_out_with_a_line_that_says_how_to_get_them(cli: Cli, tmp_path: Path):
    columns = TREE["columns"] | {"pictures": {"obtain": "ask the author", "set": {"data.name": "folder"}}}
    result = cli("reproduce", write(tmp_path, columns=columns, published={}), "--dry-run")
    assert result.exit_code == 0
    (line,) = [line for line in result.stdout.splitlines() if "left out" in line]
    assert "set data.path to its directory; ask the author" in line


def test_a_dry_run_lists_cells_and_writes_nothing(cli: Cli, tmp_path: Path):
    result = cli("reproduce", write(tmp_path), "--dry-run", "--out", tmp_path / "out", "--seed", 3)
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()[1:]]
    assert [(line[0], line[2], line[-2:]) for line in lines] == [
        (row, "3", ["to", "do"]) for row in ("pooled", "pooled", "FedSimCLR", "FedSimCLR")
    ]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["flesd-tabel1"], "did you mean 'flesd-table1'?"),
        (["flesd-table1", "--size", "gpu"], "flesd-table1 has no size 'gpu'"),
        (["flesd-table1", "--row", "FLESD-c"], "did you mean 'FLESD-cc'?"),
        (["flesd-table1", "--column", "CIFAR10 α=10"], "flesd-table1 has no column 'CIFAR10 α=10'"),
        (["flesd-table1", "--jobs", "0"], "at least 1, got 0"),
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
    wish, _, _ = made
    with pytest.raises(ConfigError, match="holds small at cpu size"):
        reproduce(replace(wish, name="flesd-figure5", settings=("data={name: digits}",)), lambda line: None)


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_damaged_record_is_refused_in_one_line(made, tmp_path: Path, text: str):
    (tmp_path / "reproduction.json").write_text(text)
    with pytest.raises(ConfigError, match=r"reproduction.json is damaged .*: delete it, or name another"):
        reproduce(replace(made[0], out=tmp_path), lambda line: None)


def test_what_changes_bits_makes_another_run_and_what_does_not_makes_none(made):
    names = [
        tuple(replace(made[0], settings=words).resolve()[2].jobs)
        for words in ((), ("engine.actors=3",), ("engine.threads=2",), ("engine.precision=bf16",))
    ]
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_a_run_that_a_killed_call_left_behind_is_waited_for(tmp_path: Path):
    config, said, tried = Config.load("fedsimclr"), [], []
    (tmp_path / ".locks").mkdir()
    with (tmp_path / ".locks" / "first").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sleep = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        orphan = subprocess.Popen(sleep, stdin=subprocess.PIPE, pass_fds=(lock.fileno(),))

    def say(line: str) -> None:
        said.append(line)
        if "waiting" in line:
            orphan.communicate(timeout=60)

    Execution(Plan({"first": Job("first", config)}), tmp_path, lambda *words: tried.append(orphan.poll()), 2, say).run()
    assert said[0] == "first is being run by another process: waiting for it"
    assert tried == [0]


def test_a_table_is_there_even_if_its_figure_cannot_be_drawn(made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*words: Any) -> None:
        raise RuntimeError("no ink")

    wish = replace(made[0], name=write(tmp_path, kind="figure", draw="bars"), out=tmp_path / "out", seeds=(0,))
    shutil.copytree(made[0].folder, wish.folder)
    monkeypatch.setattr("rayfed_ssl.reports.reproduction_figures.draw_reproduction", broken)
    with pytest.raises(RuntimeError, match="no ink"):
        reproduce(wish, lambda line: None)
    assert (wish.directory / "table.md").is_file()
    assert json.loads((wish.directory / "reproduction.json").read_text())["cells"]


def test_a_cell_alone_is_left_out_for_its_public_data_or_what_it_transfers_to(tmp_path: Path):
    sizes = {"cpu": {"set": SMALL, "rows": {"public": {"set": {"public": "folder:/nowhere:10"}}}}}
    target = {
        "evaluation.protocols": ["transfer-fedca"],
        "evaluation.settings.transfer-fedca.dataset": "folder:/nowhere",
    }
    rows = {"public": {"recipe": "flesd"}, "FedSimCLR": {"recipe": "fedsimclr"}}
    columns = {"IID": {}, "elsewhere": {"set": target}}
    wish = Wish(write(tmp_path, rows=rows, columns=columns, sizes=sizes, published={}))
    shown, skipped, planned = wish.resolve()
    assert [(cell.row, cell.column) for cell in shown.cells] == [("FedSimCLR", "IID")]
    assert list(skipped) == ["public, IID", "elsewhere"]
    assert len(planned.jobs) == 1
