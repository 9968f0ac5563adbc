"""The success rate of a backdoor where scores are shown, and as a goal of studies."""

import csv
import io
from pathlib import Path

import pytest

from rayfed_ssl import ConfigError
from rayfed_ssl.formats import percent
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.html.report import write_report
from rayfed_ssl.reports.summary import summarize
from tests.tune.conftest import Cli, Recipes
from tune.studies.definition.files import load_study
from tune.studies.search.optuna_study import check_study


def test_a_run_that_has_a_trigger_shows_its_success_beside_that_of_its_start(
    cli: Cli, recipes: Recipes, tmp_path: Path
) -> None:
    attacked, plain = tmp_path / "attacked", tmp_path / "plain"
    printed = cli("run", recipes["fedavg"], "adversary=bad-encoder", "evaluation.every=1", "--out", attacked)
    assert printed.exit_code == 0, printed.output
    record = RunRecord.open(attacked)
    summary = summarize(record)
    rate, start = summary.headline("attack_success"), summary.start("attack_success")
    assert rate is not None
    assert start is not None
    assert 0 <= rate <= 1
    line = f"attack success: {percent(rate)} of pictures with the trigger are taken for the target class"
    assert f"{line}; random start: {percent(start)}, ±" in printed.stdout
    votes = {row["round"]: row["value"] for row in record.metrics if row["name"] == "attack_success_knn"}
    assert votes.keys() == {1, 2}
    report = Path(write_report([attacked], tmp_path / "report.html")).read_text()
    assert "attack success, linear probe" in report

    assert "attack success" not in cli("run", recipes["fedavg"], "--out", plain).stdout
    rows = csv.DictReader(io.StringIO(cli("compare", attacked, plain, "--csv").stdout))
    assert [row["attack success (%)"] for row in rows] == [f"{100 * rate:.10g}", ""]
    assert "attack success" not in cli("compare", plain).stdout
    assert f"attacked: {line}" in cli("compare", attacked, plain).stdout


def test_a_study_chooses_by_it_where_there_is_a_trigger() -> None:
    tree = {"recipe": "fedsimclr", "minimize": "attack_success", "space": {"training.epochs": [1, 2]}}
    check_study(load_study({**tree, "settings": {"partition": {"name": "iid"}, "adversary": {"name": "ssl-backdoor"}}}))
    with pytest.raises(ConfigError, match="attack_success is of a trigger, and no adversary has one: set adversary="):
        check_study(load_study(tree))
