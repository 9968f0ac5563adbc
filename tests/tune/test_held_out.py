"""What is printed and reported of a run that measures on held-out samples: nowhere does it pass for the test set's."""

from pathlib import Path

from tests.tune.conftest import Cli

SETTINGS = ("data.validation=0.2", "data.test_limit=null", "rounds=1", "evaluation.diagnostics=1")
NOTE = "ccuracies are of 30 held-out training samples (data.validation=0.2), not of the test set"


def test_all_that_is_said_of_a_run_says_what_its_accuracies_are_of(cli: Cli, recipes: dict[str, Path], tmp_path: Path):
    done = cli("run", recipes["local"], *SETTINGS, "--out", tmp_path / "apart")
    assert f"note: a{NOTE}" in done.stderr
    line = "accuracies of apart are of held-out training samples (data.validation), not of the test set"
    assert line in done.stdout
    assert line in cli("compare", tmp_path / "apart").stdout
    assert line in cli("compare", tmp_path / "apart", "--by-seed").stdout
    assert cli("diagnose", tmp_path / "apart").stdout.startswith("round 1, 30 held-out images without labels")
    cli("report", tmp_path / "apart", "--out", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert f"A{NOTE}." in page
    assert "best epoch, chosen on the held-out samples" in page
    assert "chosen on the test set" not in page


def test_runs_on_the_test_set_are_told_as_before(cli: Cli, finished: dict[str, tuple[Path, object]]):
    assert "held-out" not in cli("compare", finished["local"][0], finished["flesd"][0]).stdout
