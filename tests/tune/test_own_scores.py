"""Each client's scores on samples of its own, where scores are shown, and as a goal of studies."""

import csv
import io
from pathlib import Path
from statistics import fmean

import pytest

from rayfed_ssl import ConfigError
from rayfed_ssl.formats import percent
from rayfed_ssl.records.own_scores import own_scores, summarize
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.html.report import write_report
from tests.data.pictures import write_folder
from tests.tune.conftest import Cli, Recipes
from tune.studies.definition.files import load_study
from tune.studies.execution.scores import outcome_after, read_progress
from tune.studies.search.optuna_study import check_study

TESTED = ("clients.test_fraction=0.3", "clients.number=3")


@pytest.fixture(scope="module")
def runs(cli: Cli, recipes: Recipes, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """Runs in which clients share an encoder, and keep one of their own, with what they printed."""
    folder = tmp_path_factory.mktemp("own")
    printed = {}
    for name in ("fedavg", "local"):
        result = cli("run", recipes[name], *TESTED, "--out", folder / name)
        assert result.exit_code == 0, result.output
        printed[name] = folder / name, result.stdout
    return printed


def test_a_run_prints_means_deviations_the_worst_tenth_and_who_gains(runs: dict[str, tuple[Path, str]]) -> None:
    for name, kinds in {"fedavg": ("global", "tuned", "start"), "local": ("personal", "start")}.items():
        directory, printed = runs[name]
        scores = own_scores(RunRecord.open(directory).metrics, 2)
        lines = {tuple(line.split()[:2]): line.split() for line in printed.splitlines() if line.strip()}
        for kind in kinds:
            score = f"own_{kind}_linear"
            summary = summarize(scores, score)
            shown = [fmean(each[score] for each in scores.values()), summary["std"], summary["worst_tenth"]]
            assert lines[kind, "linear"][2:5] == [percent(value) for value in shown]
        sizes = [int(each["own_samples"]) for each in scores.values()]
        assert f"3 clients on {min(sizes)} to {max(sizes)} samples of their own each" in printed


def test_compare_has_a_column_and_says_who_is_better_off(cli: Cli, runs: dict[str, tuple[Path, str]]) -> None:
    local, fedavg = runs["local"][0], runs["fedavg"][0]
    records = {name: own_scores(RunRecord.open(run).metrics, 2) for name, (run, _) in runs.items()}
    rows = csv.DictReader(io.StringIO(cli("compare", local, fedavg, "--csv").stdout))
    expected = [
        fmean(each[score] for each in records[name].values())
        for name, score in (("local", "own_personal_linear"), ("fedavg", "own_global_linear"))
    ]
    assert [float(row["own linear (%)"]) for row in rows] == pytest.approx(
        [100 * value for value in expected], abs=0.01
    )
    printed = cli("compare", local, fedavg).stdout
    gains = [records["fedavg"][c]["own_global_linear"] - records["local"][c]["own_personal_linear"] for c in range(3)]
    above, below = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    (line,) = [
        line for line in printed.splitlines() if "each client on its own samples" in line and "linear of" in line
    ]
    assert (
        f"fedavg beside local, each client on its own samples (global and personal encoder): linear of {above} ("
        in line
    )
    assert f" below, of 3; mean {100 * fmean(gains):+.2f} ± " in line
    assert f"above, {below} (" in line


def test_a_report_has_a_dot_a_client(runs: dict[str, tuple[Path, str]], tmp_path: Path) -> None:
    page = Path(write_report([runs["fedavg"][0]], tmp_path / "report.html")).read_text()
    assert "Each client on samples of its own" in page
    assert (tmp_path / "report-figures" / "fedavg-own-scores.png").is_file()


def test_evaluate_scores_clients_again(cli: Cli, runs: dict[str, tuple[Path, str]]) -> None:
    for directory, printed in runs.values():
        again = cli("evaluate", directory)
        assert again.exit_code == 0, again.output
        table = [line for line in printed.splitlines() if line.startswith(("global ", "personal ", "tuned ", "start "))]
        assert len(table) > 3
        assert {*table[1:]} <= {*again.stdout.splitlines()} | {table[0]}


def test_partition_shows_test_parts_and_names(cli: Cli, recipes: Recipes, tmp_path: Path) -> None:
    write_folder(
        tmp_path / "scans", [f"{site}/{label}/{n}.png" for site in ("lima", "oslo") for label in "ab" for n in range(9)]
    )
    data = (f"data={{name: folder, path: {tmp_path / 'scans'}, size: 8}}", "partition={name: column, column: site}")
    shown = cli(
        "partition",
        recipes["fedavg"],
        *data,
        "clients.number=2",
        "clients.test_fraction=0.25",
        "--out",
        tmp_path / "p.png",
    )
    assert shown.exit_code == 0, shown.output
    head, *rows = [line.split() for line in shown.stdout.splitlines()[:3]]
    assert head[:6] == ["client", "name", "samples", "own", "test", "classes"]
    assert [row[:2] for row in rows] == [["0", "lima"], ["1", "oslo"]]
    assert all(int(row[3]) == -(-(int(row[2]) + int(row[3])) // 4) for row in rows)


def test_a_study_may_seek_what_the_worst_clients_have(runs: dict[str, tuple[Path, str]]) -> None:
    directory = runs["fedavg"][0]
    scores = own_scores(RunRecord.open(directory).metrics, 2)
    worst, mean = "own_global_linear_worst_tenth", "own_global_linear"
    values = [each[mean] for each in scores.values()]
    assert outcome_after(directory, (worst, mean), None, 2).scores == {
        worst: summarize(scores, mean)["worst_tenth"],
        mean: fmean(values),
    }
    assert outcome_after(directory, (mean,), "minimum", 2).scores[mean] == min(values)
    assert read_progress(directory, None)[f"score.{worst}"] == summarize(scores, mean)["worst_tenth"]
    samples = [int(each["own_samples"]) for each in scores.values()]
    assert read_progress(directory, None, (mean,))["samples"] == sum(samples)
    assert read_progress(directory, None, (worst,))["samples"] == sum(samples) // 3
    assert read_progress(directory, None, (f"{mean}_gaining",))["samples"] == 3
    assert read_progress(directory, None, ("linear",))["samples"] == RunRecord.open(directory).manifest.data.test
    tree = {"recipe": "fedsimclr", "maximize": worst, "space": {"training.epochs": [1, 2]}}
    check_study(load_study({**tree, "settings": {"clients": {"test_fraction": 0.2}}}))
    with pytest.raises(
        ConfigError, match=f"{worst} is of clients' own samples, and none are set apart: set clients.test"
    ):
        check_study(load_study(tree))
    with pytest.raises(ConfigError, match="there is no score 'own_globl_linear': did you mean 'own_global_linear'"):
        check_study(load_study({**tree, "maximize": "own_globl_linear"}))
