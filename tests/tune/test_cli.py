"""The command line: what it prints, what it leaves on disk, and its errors."""

import csv
import html
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from rayfed_ssl.config.recipes import recipe_names
from rayfed_ssl.data.datasets import DATASETS
from rayfed_ssl.data.view_recipes import VIEWS
from rayfed_ssl.engine.phase_timer import phases_text
from rayfed_ssl.evaluation.registry import PROTOCOLS
from rayfed_ssl.methods import METHODS
from rayfed_ssl.models import ENCODERS
from rayfed_ssl.models.adapters import ADAPTERS
from rayfed_ssl.objectives import OBJECTIVES
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.summary import summarize
from tests.tune.conftest import Cli, Finished, Recipes


def test_a_run_prints_its_scores_bytes_and_where_its_record_is(finished: Finished):
    directory, result = finished["flesd"]
    record = RunRecord.open(directory)
    scores = {r["name"]: r["value"] for r in record.metrics if r["round"] == 2 and r["participant"] == "global"}
    lines = result.stdout.splitlines()
    (row,) = [line for line in lines if line.startswith("global")]
    assert [f"{100 * scores[name]:.2f}%" for name in ("knn", "linear")] == row.split()[1:]
    assert any(line.startswith("representations") for line in lines)
    assert any(line.startswith("public images") for line in lines)
    assert f"state_sha256 {record.manifest.rounds[-1].state_sha256}" in result.stdout
    assert f"record: {directory}" in result.stdout
    assert f"time: {phases_text(record.manifest.seconds)}" in lines
    assert record.manifest.seconds["imports"] > 0


def test_best_epochs_and_break_even_are_printed_on_request(cli: Cli, finished: Finished):
    directory, result = finished["flesd"]
    assert "Eq. 11" not in result.stdout
    assert "best epoch" not in result.stdout
    more = cli("resume", directory, "-v").stdout
    best = RunRecord.open(directory).scores(2)["global"]["linear_best"]
    (row,) = [line for line in more.splitlines() if line.startswith("global")]
    assert row.split()[-1] == f"{100 * best:.2f}%"
    assert "best epoch" in more
    assert "FLESD Eq. 11: 2 rounds x 45 public samples x 24 dimensions = 2,160 numbers up per client" in more


def test_the_version_is_printed(cli: Cli):
    result = cli("--version")
    assert (result.exit_code, result.stdout) == (0, f"rayfed-ssl {version('rayfed-ssl')}\n")


def test_progress_and_notes_go_to_standard_error(finished: Finished):
    _, result = finished["flesd"]
    assert "round 1/2: 3 clients, loss" in result.stderr
    assert "FLESD's queue holds 16 anchors instead of 32" in result.stderr
    assert "  dirichlet, alpha 1: size Gini 0." in result.stderr
    assert "round 1/2" not in result.stdout
    assert "encoder, projector, batch_norm received" in result.stderr
    assert "encoder, projector, batch_norm local" in finished["local"][1].stderr


def test_without_a_global_encoder_mean_and_minimum_are_shown(finished: Finished):
    _, result = finished["local"]
    starts = [line.split("  ")[0] for line in result.stdout.splitlines()]
    assert {"client-0", "client-1", "client-2", "mean of clients", "minimum of clients"} <= set(starts)


def test_a_quiet_run_of_mixed_models_prints_only_scores_with_architectures(cli, recipes, tmp_path):
    words = ("rounds=1", "clients.models=[cnn, alexnet]", "--quiet")
    result = cli("run", recipes["local"], *words, "--out", tmp_path / "run")
    assert (result.exit_code, result.stderr) == (0, "")
    starts = [line.split("  ")[0] for line in result.stdout.splitlines() if line.startswith("client-")]
    assert starts == ["client-0 (cnn)", "client-1 (alexnet)", "client-2 (cnn)"]


def test_resuming_a_finished_run_prints_the_same_result(cli: Cli, finished: Finished):
    directory, result = finished["flesd"]
    again = cli("resume", directory)
    assert again.exit_code == 0
    first, second = (
        [line for line in run.stdout.splitlines() if not line.startswith(("time: ", "warning: "))]
        for run in (result, again)
    )
    assert second == first
    assert "warning: " not in result.stdout  # as it was shown while the run went on, which a second time it does not
    assert again.stdout.count("warning: ") == len(RunRecord.open(directory).manifest.warnings)


def test_replay_prints_the_upload(cli: Cli, finished: Finished):
    result = cli("replay", finished["flesd"][0], "--round", 2, "--client", 1)
    assert result.exit_code == 0
    assert "loss_first" in result.stdout
    assert f"upload           {45 * 24 * 4:,} bytes, sha256 " in result.stdout


def test_evaluate_repeats_the_scores_and_changes_nothing(cli: Cli, finished: Finished):
    directory, _ = finished["flesd"]
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    (row,) = json.loads(cli("evaluate", directory, "--json").stdout)
    recorded = RunRecord.open(directory).scores(2)["global"]
    assert row["metrics"].keys() - recorded.keys() == {"linear_pseudo_r2"}  # how well the probe fits, which is no score
    assert {name: row["metrics"][name] for name in recorded.keys() & row["metrics"].keys()} == recorded
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_evaluate_takes_settings_rounds_and_the_random_encoder(cli: Cli, finished: Finished):
    directory, _ = finished["flesd"]
    scores, neighbors = {}, ["evaluation.knn.neighbors=1", "evaluation.train_limit=60"]
    options = {"last": [], "first": ["--round", 1], "initial": ["--initial"], "knn": neighbors}
    for name, words in options.items():
        result = cli("evaluate", directory, *words, "--json")
        assert result.exit_code == 0, result.output
        (scores[name],) = json.loads(result.stdout)
    assert [scores[name]["round"] for name in ("last", "first", "initial")] == [2, 1, 0]
    assert [scores[name]["encoder"] for name in ("last", "initial")] == ["global", "initial"]
    assert scores["knn"]["metrics"]["knn"] != scores["last"]["metrics"]["knn"]
    table = cli("evaluate", directory, "--initial")
    assert "linear probe" in table.stdout
    assert "initial" in table.stdout


def test_compare_has_a_row_a_run(cli: Cli, finished: Finished):
    directories = [directory for directory, _ in finished.values()]
    table = cli("compare", *directories)
    assert table.exit_code == 0
    lines = table.stdout.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["run", "flesd", "local"]
    head, flesd, local = lines[:3]
    for column, value in (("objective", "simclr"), ("model", "cnn"), ("dataset", "digits")):
        assert flesd[head.index(column) :].split()[0] == local[head.index(column) :].split()[0] == value
    assert "their accuracies do not compare" not in table.stdout
    starts = [line for line in lines[3:] if ": random start: kNN " in line and "; this run is " in line]
    assert [line.partition(":")[0] for line in starts] == ["flesd", "local"]
    rows = json.loads(cli("compare", *directories, "--json").stdout)
    assert [row["name"] for row in rows] == ["flesd", "local"]
    assert rows[0]["bytes_up"] == 2 * 3 * 45 * 24 * 4
    assert rows[1]["bytes_up"] == 0
    assert rows[1]["linear_minimum"] <= rows[1]["linear"]


def test_compare_names_what_differs_and_writes_tables_for_papers(cli: Cli, finished: Finished, recipes, tmp_path: Path):
    first, other = finished["flesd"][0], tmp_path / "a_b"
    assert (
        cli("run", recipes["flesd"], "evaluation.every=1", "training.optimizer.lr=0.02", "--out", other, "-q").exit_code
        == 0
    )
    head, one, two = cli("compare", first, other, first).stdout.splitlines()[:3]
    place = head.index("what differs") + len("what differs")
    assert [line[:place].split()[1] for line in (one, two)] == [
        f"training.optimizer.lr={RunRecord.open(run).config().training.optimizer.lr}" for run in (first, other)
    ]
    assert "a run is named more than once: it is shown once" in cli("compare", first, first).stderr
    written = cli("compare", first, other, "--csv")
    rows = list(csv.DictReader(io.StringIO(written.stdout)))
    assert [(row["run"], row["recipe"]) for row in rows] == [("flesd", "flesd"), ("a_b", "flesd")]
    up = summarize(RunRecord.open(other)).bytes_up
    assert abs(float(rows[1]["up (MB)"]) - up / 1e6) <= 0.005 * up / 1e6
    assert rows[1]["linear (%)"] == f"{100 * summarize(RunRecord.open(other)).headline('linear'):.10g}"
    assert "random start" in written.stderr
    latex = cli("compare", first, other, "--latex").stdout
    assert latex.startswith("\\begin{tabular}{lr")
    assert "\na\\_b & training.optimizer.lr=0.02 & " in latex
    assert f"{100 * summarize(RunRecord.open(other)).headline('linear'):.2f}\\%" in latex
    assert cli("compare", first, "--csv", "--json").exit_code == 2


def test_compare_leaves_out_a_sweep_beside_runs(cli: Cli, finished: Finished, tmp_path: Path):
    run, sweep = finished["flesd"][0], tmp_path / "sweep-digits"
    sweep.mkdir()
    (sweep / "study.json").write_text("{}")
    result = cli("compare", run, sweep)
    assert (result.exit_code, result.stdout) == (0, cli("compare", run).stdout)
    assert result.stderr == f"note: {sweep} is left out: it is a study, which `rayfed-ssl report` shows\n"
    for words in ([sweep], [sweep, sweep]):
        alone = cli("compare", *words)
        assert (alone.exit_code, alone.stderr.startswith(f"error: {sweep} is a study, which ")) == (2, True)


def test_the_command_in_a_report_makes_it_again(cli: Cli, finished: Finished, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "a  run [of] $mine's & <b>"
    shutil.copytree(finished["flesd"][0], tmp_path / "runs" / name)
    made = cli("report", f"runs/{name}", "--out", "new/my page.html")
    assert made.stdout.splitlines() == [f"runs: {name}", f"report: {tmp_path}/new/my page.html"]
    page = Path("new/my page.html").read_bytes()
    command = html.unescape(page.decode().split("<code>")[1].split("</code>")[0])
    program, *words = shlex.split(command)
    assert (program, cli(*words).exit_code) == ("rayfed-ssl", 0)
    assert Path("my page.html").read_bytes() == page


def test_report_says_which_runs_of_a_directory_it_shows(cli: Cli, finished: Finished, tmp_path: Path):
    runs = finished["flesd"][0].parent
    result = cli("report", runs, "--out", tmp_path / "all.html")
    assert result.stdout.splitlines() == ["runs: flesd, local", f"report: {tmp_path / 'all.html'}"]
    (tmp_path / "empty").mkdir()
    result = cli("report", tmp_path / "empty")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {tmp_path / 'empty'} holds no run and no study")


def test_clock_shows_a_schedule_without_training(cli: Cli, recipes: Recipes, tmp_path: Path):
    words = (recipes["fedavg"], "clock=phones", "clock.policy=deadline", "clients.fraction=0.5")
    result = cli("clock", *words, "--out", tmp_path / "new")
    assert result.exit_code == 0, result.output
    assert re.search(r"deadline on phones, 2 server steps, cohorts of 2 of 3 clients\n", result.stdout)
    for title in ("virtual time", "a server step", "uploads used", "bytes", "training", "staleness"):
        assert re.search(rf"^{title} +\S", result.stdout, re.MULTILINE), title
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == ["schedule.parquet", "schedule.png"]
    (tmp_path / "new" / "run.json").touch()
    refused = cli("clock", *words, "--out", tmp_path / "new")
    assert refused.exit_code == 2
    assert "new is a run, which has a schedule of its own: name another directory" in refused.output
    refused = cli("clock", recipes["fedavg"])
    assert refused.exit_code == 2
    assert "this recipe has no clock: add one, for example clock=phones" in refused.output


def test_partition_prints_and_draws_samples_by_client_and_class(cli: Cli, recipes: Recipes, tmp_path: Path):
    result = cli("partition", recipes["flesd"], "--out", tmp_path / "new" / "shards.svg")
    assert result.exit_code == 0
    assert "public: 45 samples from fraction:0.3" in result.stdout
    assert (tmp_path / "new" / "shards.svg").stat().st_size > 1000
    assert re.search(
        r"^skew: size Gini 0\.\d\d, label entropy \d\.\d\d of 2\.\d\d nats, total var", result.stdout, re.MULTILINE
    )
    rows = [line.split() for line in result.stdout.splitlines() if line[:1].isdigit()]
    assert len(rows) == 3
    for _, total, classes, *counts in rows:
        assert sum(map(int, counts)) == int(total)
        assert sum(count != "0" for count in counts) == int(classes)


def test_samples_that_no_client_gets_are_counted(cli: Cli, recipes: Recipes, tmp_path: Path):
    words = (recipes["local"], "rounds=1", "training.epochs=1")
    table = cli("partition", *words, "--out", tmp_path / "shards.png").stdout
    held = sum(int(line.split()[1]) for line in table.splitlines() if line[:1].isdigit())
    assert held < 150
    assert f"\nleft out: {150 - held} of 150 training samples\n" in table
    head = cli("run", *words, "--out", tmp_path / "run").stderr
    assert f" samples, {150 - held} left out\n" in head
    assert "left out" not in cli("partition", *words, "partition=iid", "--out", tmp_path / "iid.png").stdout


@pytest.mark.parametrize("executor", ["ray", "local"])
def test_a_step_that_cannot_fit_memory_is_refused_before_anything_is_decoded(executor, cli, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    for module in ("rayfed_ssl.capacity.client_cost", "actors.cluster.machine"):
        monkeypatch.setattr(f"{module}.free_memory", lambda: 4 * 10**8)
    words = (
        "model=resnet18",
        "data.size=64",
        "data.train_limit=600",
        "training.batch=4096",
        f"engine.executor={executor}",
    )
    result = cli("run", *words, "--out", tmp_path / "run")
    assert result.exit_code in (2, 3)
    (line,) = result.stderr.splitlines()
    assert re.search(r"by estimate; `rayfed-ssl doctor --measure` measures it.*lower training\.batch", line)
    assert not list((tmp_path / "cache").rglob("header.json"))


LISTS = {
    "methods": METHODS,
    "objectives": OBJECTIVES,
    "datasets": DATASETS,
    "models": ENCODERS,
    "views": VIEWS,
    "adapters": ADAPTERS,
    "recipes": recipe_names(),
}


@pytest.mark.parametrize("kind", LISTS)
def test_list_names_and_describes_everything(cli: Cli, kind: str):
    result = cli("list", kind)
    assert result.exit_code == 0
    header, *rows = result.stdout.splitlines()
    assert header.split() == ["name", "what", "it", "is"]
    assert [row.split()[0] for row in rows] == list(LISTS[kind])
    assert all(len(row.split()) > 1 for row in rows)


def test_the_list_of_protocols_names_their_sources(cli: Cli):
    table = " ".join(cli("list", "protocols").stdout.split())
    assert all(name in table and protocol.source in table for name, protocol in PROTOCOLS.items())


ERRORS = {
    "recipe": (["run", "digts"], "there is no recipe 'digts': did you mean 'digits'?"),
    "no files": (["run", "{fedavg}", "data=cifar10"], "no complete copy of CIFAR10"),
    "resume": (["resume", "/nowhere"], "/nowhere holds no run"),
    "setting": (["evaluate", "{run}", "rounds=3"], "a run keeps the settings that it began with, got rounds=3"),
    "two runs": (["evaluate", "{run}", "runs/b"], "after the run come settings, KEY=VALUE, got runs/b"),
    "directory in use": (
        ["run", "{flesd}", "--out", "{run}"],
        "is not an empty directory: name another one with --out",
    ),
    "address": (
        ["run", "{fedavg}", "engine.executor=local", "--address", "auto"],
        "--address names a Ray, which engine",
    ),
    "out": (["run", "{fedavg}", "--out", "{binary}/run"], "takes no files: name another directory with --out"),
    "out in /proc": (
        ["run", "{fedavg}", "--out", "/proc/x"],
        "/proc takes no files: name another directory with --out",
    ),
    "out of a sweep": (
        ["sweep", "digits", "--out", "/proc/x"],
        "/proc takes no files: name another directory with --out",
    ),
    "late fault": (
        ["run", "{fedavg}", "--out", "{binary}x", "--inject", "kill-actor:round=9,client=0"],
        "--inject kill-actor:round=9,client=0: the run has only 2 rounds",
    ),
    "fault of nobody": (
        ["run", "{fedavg}", "--out", "{binary}x", "--inject", "kill-actor:round=1,client=77"],
        "client 77 takes no part in round 1, choose from 0, 1, 2",
    ),
    "too few test samples": (
        ["run", "{fedavg}", "data.test_limit=1"],
        "data.test_limit=1 is less than the 10 classes, so that accuracies would say nothing: set 10 or more",
    ),
    "data that are no UTF-8": (["run", "{fedavg}", "data.path=p\udcff"], "data.path=p\\udcff is no UTF-8: rename it"),
    "place that is no UTF-8": (["run", "{fedavg}", "--out", "{binary}\udce9"], "\\udce9 is no UTF-8: name another"),
    "option": (["compare", "--sed", "3"], "no such option: --sed"),
    "no run": (["resume"], " resume --help"),
    "resumed setting": (["resume", "{run}", "seed=3"], "may change, and rounds by `rayfed-ssl resume`"),
    "comparison's picture": (
        ["compare", "{run}", "--figure", "x.txt"],
        "a picture's name ends in .png, .svg or .pdf, got x",
    ),
    "command": (["rnu"], "no such command 'rnu'. Did you mean 'run'"),
    "quoted recipe": (["run", "digits rounds=2"], "'digits rounds=2' has a space before its '='"),
    "linear": (
        ["evaluate", "{run}", "--protocol", "linear"],
        "'linear': `evaluate RUN` without --protocol measures it",
    ),
    "nearly linear": (["evaluate", "{run}", "--protocol", "liner"], "did you mean 'linear'?"),
    "run in place of a recipe": (
        ["partition", "{run}"],
        "is a run, whose recipe is ",
    ),
    "pictures in place of a recipe": (
        ["run", "{run}/encoders"],
        "put a recipe before it: fedsimclr data.name=folder data.path=",
    ),
    "encoder": (["run", "{fedavg}", "model.encoder=cn"], "model.encoder: unknown encoder 'cn': did you mean 'cnn'?"),
    "client's encoder": (["run", "{local}", "clients.models=[cnn,cn]"], "clients.models: unknown encoder 'cn'"),
    "empty sweep": (
        ["sweep", "{empty}"],
        "is empty: write keys and values into it, or take a sweep from `list sweeps`",
    ),
    "export to nowhere": (["export", "{run}", "{binary}/e.safetensors"], "error: OUT "),
    "fault": (["run", "{fedavg}", "--inject", "kill"], "--inject kill: write kill-actor:round=N"),
    "damaged record": (["compare", "{damaged}"], "is damaged (EOF while parsing"),
    "no text": (["run", "{binary}"], "it must be a YAML text"),
    "export's file": (["export", "{run}", "e.pt"], "an exported encoder's name ends in .safetensors, got e.pt"),
    "report": (["report", "/nowhere"], "/nowhere holds no run and no study"),
    "no sweep": (["sweep"], "name a sweep"),
    "sweep": (["sweep", "digit"], "there is no sweep 'digit': did you mean 'digits'?"),
    "resumed sweep": (
        ["sweep", "--resume", "/nowhere", "digits"],
        "takes a sweep's directory and no new settings but seeds=N",
    ),
    "reproduction": (["reproduce", "flesd-table"], "there is no reproduction 'flesd-table': did you mean"),
    "no list": (
        ["list"],
        "name a list: methods, objectives, optimizers, datasets, partitions, models, views, protocols, adapters, ",
    ),
    "list": (["list", "method"], "there is no list of 'method': did you mean 'methods'?"),
}


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run whose record is cut off, and recipes that are no text and nothing."""
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "run.json").write_text("{")
    (folder / "binary.yaml").write_bytes(bytes(range(256)))
    (folder / "empty.yaml").touch()
    return {"damaged": folder, "binary": folder / "binary.yaml", "empty": folder / "empty.yaml"}


@pytest.mark.parametrize("name", ERRORS)
def test_a_mistake_is_one_line_and_exit_code_2(cli, recipes, damaged, finished, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, message = ERRORS[name]
    result = cli(*(word.format(**recipes, **damaged, run=finished["flesd"][0]) for word in words))
    assert result.exit_code == 2, repr(result.exception)
    (line,) = [line for line in result.stderr.splitlines() if not line.startswith("decoded ")]
    assert line.startswith("error: ")
    assert message in line
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_records_the_command_with_its_directory(cli: Cli, tmp_path: Path):
    directory = tmp_path / "my sweep"
    result = cli("sweep", "digits", "seeds=2", "--out", directory, "--address", "nowhere")
    assert result.exit_code == 3  # no such Ray: the sweep has begun and runs nothing
    command = json.loads((directory / "study.json").read_text())["command"]
    assert command == f"rayfed-ssl sweep digits --out '{directory}' seeds=2"


def test_a_file_in_the_way_is_one_line_and_exit_code_1(cli: Cli, finished: Finished, tmp_path: Path):
    (tmp_path / "file").write_text("")
    result = cli("compare", finished["flesd"][0], "--figure", tmp_path / "file" / "figure.png")
    assert (result.exit_code, result.stderr) == (1, f"error: File exists: {tmp_path / 'file'}\n")
    result = cli("compare", finished["flesd"][0], "--figure", tmp_path / f"{300 * 'x'}.png")
    assert result.exit_code == 1
    assert result.stderr.endswith("x.png; shorten the name\n")


@pytest.mark.parametrize(
    ("recipe", "override", "message"),
    [
        ("fedavg", "training.optimizer.lr=1e30", "client 0 failed in round 1"),
        ("flesd", "method.distil_lr=1e30", "lower the learning rate"),
    ],
    ids=["client", "server"],
)
def test_a_step_that_diverges_is_one_line_and_exit_code_1(cli, recipes, recipe, override, message, tmp_path):
    result = cli("run", recipes[recipe], override, "training.epochs=2", "--quiet", "--out", tmp_path / "run")
    assert result.exit_code == 1, repr(result.exception)
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize("words", [["run", "-h"], []], ids=" ".join)
def test_help_loads_neither_ray_nor_torch(words: list[str]):
    program = (
        "import atexit, sys\nfrom tune.cli.app import main\nsys.argv[0] = 'rayfed-ssl'\n"
        "atexit.register(lambda: print([m for m in ('ray', 'torch', 'numpy', 'matplotlib') if m in sys.modules]))\n"
        "main()"
    )
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert "Usage: rayfed-ssl" in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_reader_of_the_output_may_close_the_pipe():
    program = f"set -o pipefail; {sys.executable} -c 'from tune.cli.app import main; main()' list datasets | true"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_modules_of_the_working_directory_do_not_hide_this_packages(tmp_path: Path):
    for name in ("actors", "tune"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('another module')")
    words = ("data.name=digits", "data.size=null", "data.train_limit=200", "model=cnn", "clients.number=3", "rounds=1")
    program = [
        str(Path(sys.executable).with_name("rayfed-ssl")),
        "run",
        "fedavg-supervised",
        *words,
        "training.epochs=1",
    ]
    finished = subprocess.run(
        [*program, "engine.actors=1", "--out", "run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert RunRecord.open(tmp_path / "run").last_round == 1


@pytest.mark.parametrize("argument", ["--out=~/here", "--out=~"])
def test_a_directory_may_begin_in_the_users_where_the_shell_leaves_it(cli: Cli, monkeypatch, tmp_path: Path, argument):
    """What lies there already is refused, so that nothing runs."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").write_text("")
    result = cli("run", "digits", argument)
    assert result.exit_code == 2
    assert str(tmp_path) in result.stderr
    assert not Path("~").exists()
