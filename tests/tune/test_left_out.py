"""Whom a robust rule leaves out where scores are shown, and as goals of studies."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl import ConfigError
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.html.report import write_report
from rayfed_ssl.reports.summary import summarize
from tests.tune.conftest import Cli, Recipes
from tune.studies.definition.files import load_study
from tune.studies.execution.scores import read_progress, score_of
from tune.studies.search.optuna_study import check_study

RULE = ("clients.number=6", "robust={name: multi-krum, hostile: 1}")
FLIP = "adversary={name: sign-flip, clients: [1], scale: 20}"


def test_result_and_comparison_say_how_many_clients_a_rule_left_out(cli: Cli, recipes: Recipes, tmp_path: Path) -> None:
    attacked, ruled, plain = (tmp_path / name for name in ("attacked", "ruled", "plain"))
    printed = cli("run", recipes["fedavg"], *RULE, FLIP, "--out", attacked)
    assert "clients that the rule left out, a round: 1 hostile, 0 honest" in printed.stdout
    assert (
        "clients that the rule left out, a round: 1 honest"
        in cli("run", recipes["fedavg"], *RULE, "--out", ruled).stdout
    )
    assert "left out, a round" not in cli("run", recipes["fedavg"], "--out", plain).stdout
    assert (
        "Clients that the rule left out, a round: 1 hostile"
        in Path(write_report([attacked], tmp_path / "report.html")).read_text()
    )
    rows = list(csv.DictReader(io.StringIO(cli("compare", attacked, ruled, plain, "--csv").stdout)))
    assert [(row["hostile found"], row["honest lost"]) for row in rows] == [("1", "0"), ("", "1"), ("", "")]
    assert "honest lost" not in cli("compare", plain).stdout


def test_a_comparison_over_seeds_has_them(cli: Cli, recipes: Recipes, tmp_path: Path) -> None:
    runs = [tmp_path / seed for seed in "01"]
    for run in runs:
        cli("run", recipes["fedavg"], *RULE, FLIP, f"seed={run.name}", "--out", run)
    rows = csv.DictReader(io.StringIO(cli("compare", *runs, "--by-seed", "--csv").stdout))
    found = {row["score"]: (row["mean"], row["std"]) for row in rows}
    assert (found["hostile_found"], found["honest_lost"]) == (("1", "0"), ("0", "0"))


def test_a_score_is_the_mean_over_the_rounds_of_an_attack_or_over_all(
    cli: Cli, recipes: Recipes, tmp_path: Path
) -> None:
    late = "adversary={name: sign-flip, clients: [1], scale: 20, from_round: 2}"
    cli("run", recipes["fedavg"], *RULE, late, "--out", tmp_path / "run")
    record = RunRecord.open(tmp_path / "run")
    assert summarize(record).left_out == {"hostile_found": 1.0, "honest_lost": 0.0}
    assert (score_of(record, "hostile_found", None, 1), score_of(record, "honest_lost", None, 1)) == (None, 1.0)
    assert read_progress(tmp_path / "run", None)["score.honest_lost"] == 0.0
    cli("run", recipes["fedavg"], *RULE, "--out", tmp_path / "ruled")
    assert score_of(RunRecord.open(tmp_path / "ruled"), "honest_lost", None, 1) == 1.0


@pytest.mark.parametrize(
    ("settings", "goal", "mistake"),
    [
        ({"robust": "multi-krum", "adversary": "sign-flip"}, "hostile_found", ""),
        ({"robust": "multi-krum"}, "honest_lost", ""),
        (
            {"robust": "multi-krum", "adversary": {"name": "sign-flip", "from_round": 99}},
            "hostile_found",
            "hostile_found is of rounds of an attack, and there are none: .* or lower adversary.from_round",
        ),
        ({"robust": "multi-krum"}, "hostile_found", "hostile_found is of rounds of an attack, and there are none"),
        ({"robust": "median"}, "honest_lost", "are of rules that weigh clients, and median weighs none"),
        ({"adversary": "sign-flip"}, "hostile_found", "are of rules that weigh clients, and there is no rule"),
    ],
)
def test_a_study_chooses_by_them_where_a_rule_weighs_clients(settings: dict[str, Any], goal: str, mistake: str) -> None:
    tree = {"recipe": "fedsimclr", "minimize": goal, "space": {"training.epochs": [1, 2]}, "settings": settings}
    if mistake:
        with pytest.raises(ConfigError, match=mistake):
            check_study(load_study(tree))
    else:
        check_study(load_study(tree))
