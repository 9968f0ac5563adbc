"""What a sweep has given: its files, the best settings as recipes, what the terminal shows."""

import csv
import json
import shutil

import pytest

from rayfed_ssl.config.schema import Config
from rayfed_ssl.records.run_record import RunRecord
from tests.tune.studies.swept import result
from tune.studies.definition.files import load_study
from tune.studies.definition.trial_configs import config_of
from tune.studies.execution.directory import StudyDirectory
from tune.studies.results.summary import _remarks, print_results, write_results


@pytest.fixture(scope="module")
def grid(swept_grid, tmp_path_factory):
    """A copy of the finished grid with its results, and what was returned."""
    path = shutil.copytree(swept_grid.path, tmp_path_factory.mktemp("results") / "grid")
    directory = StudyDirectory.open(path)
    return directory, write_results(directory)


@pytest.fixture(scope="module")
def front(swept_front, tmp_path_factory):
    path = shutil.copytree(swept_front.path, tmp_path_factory.mktemp("results") / "front")
    directory = StudyDirectory.open(path)
    return directory, write_results(directory)


def files_of(path):
    names = [*path.glob("*.yaml"), *path.glob("figures/*"), path / "results.json", path / "table.md"]
    return {str(file.relative_to(path)): file.read_bytes() for file in names}


def test_numbers_are_those_of_the_runs(grid):
    directory, _ = grid
    content = json.loads((directory.path / "results.json").read_text())
    done = [trial for trial in content["trials"] if trial["state"] == "complete"]
    assert len(done) == 4
    for trial in done:
        each = [
            RunRecord.open(directory.path / run).scores(trial["rounds"])["global"]["linear"] for run in trial["runs"]
        ]
        assert trial["values"]["linear"]["each"] == each
        assert trial["seeds"] == [0, 1]
    best = content["trials"][content["best"]]
    assert best["values"]["linear"]["mean"] == max(trial["values"]["linear"]["mean"] for trial in done)
    assert content["front"] == []
    assert content["finished"] is not None


def test_impossible_trials_are_failures_with_their_reason(grid):
    directory, made = grid
    assert [trial.label for trial in made.trials if trial.state == "failed"] == [
        "FedAvg, rounds=4",
        "FedProx, rounds=4",
    ]
    text = (directory.path / "table.md").read_text()
    assert "| 4 | failed | failed |" in text
    assert "- Failed, trial 2 (FedAvg, rounds=4): " in text
    assert "- Settings are chosen by held-out training samples." in text
    assert "- The last rounds leave no epoch." in text


def test_the_best_recipe_is_the_trial_without_what_the_sweep_added(grid):
    directory, made = grid
    ours = config_of(directory.study, made.trials[made.best].point, 0).dump()
    recipe = Config.load(directory.path / "best.yaml").dump()
    assert (ours["data"].pop("validation"), recipe["data"].pop("validation")) == (0.1, None)
    assert (ours["engine"].pop("executor"), recipe["engine"].pop("executor")) == ("local", "ray")
    assert recipe == ours
    comment = (directory.path / "best.yaml").read_text().partition("rounds:")[0]
    assert f"trial {made.best}, {made.trials[made.best].label}." in comment
    assert "(seeds 0, 1), chosen by held-out training samples." in comment
    assert "is measured on the test set" in comment


def test_the_front_has_a_recipe_for_each_member(front):
    directory, _ = front
    content = json.loads((directory.path / "results.json").read_text())
    assert content["front"][0] == content["best"]
    for number in content["front"]:
        point = content["trials"][number]["point"]
        config = Config.load(directory.path / f"pareto-{number}.yaml")
        assert (config.rounds, config.training.optimizer.lr) == (point["rounds"], point["training.optimizer.lr"])
    text = (directory.path / "table.md").read_text()
    assert text.count("\n## ") == 4
    assert (
        text.index("## knn (%), more is better")
        < text.index("## bytes, less is better")
        < text.index("## Pareto front")
    )
    assert "chosen on the test set, as the sweep says: selection: test" in text


def test_the_same_rows_give_the_same_files_and_old_recipes_go(grid):
    directory, _ = grid
    before = files_of(directory.path)
    (directory.path / "pareto-77.yaml").write_text("rounds: 1\n")
    (directory.path / "mine.yaml").write_text("rounds: 1\n")
    write_results(directory)
    after = files_of(directory.path)
    assert after.pop("mine.yaml") == b"rounds: 1\n"
    (directory.path / "mine.yaml").unlink()
    assert after == before
    assert any(name.endswith(".png") for name in after)


def test_an_interrupted_sweep_has_results_that_say_so(swept_part, tmp_path):
    directory = StudyDirectory.open(shutil.copytree(swept_part.path, tmp_path / "part"))
    made = write_results(directory)
    assert made.best == 0
    assert "Not finished: 1 of 6 trials have ended." in made.remarks
    assert "| 1 | **" in (directory.path / "table.md").read_text()
    assert json.loads((directory.path / "results.json").read_text())["finished"] is None


def test_trials_within_two_standard_errors_of_the_best_are_counted():
    study = load_study({"recipe": "digits", "space": {"rounds": [1, 2, 3]}, "maximize": ["linear"]})
    values = zip(study.points(), (0.90, 0.88, 0.60), strict=True)
    trials = [result(study, number, point, [value]) for number, (point, value) in enumerate(values)]
    measured = [each.model_copy(update={"samples": 400}) for each in trials]
    (line,) = (line for line in _remarks(study, measured, True) if "standard errors" in line)
    assert (
        line
        == "1 of 2 other trials are within two standard errors of the best (up to 2.87 points each, by 400 pictures)."
    )
    assert not any("standard errors" in line for line in _remarks(study, trials, True))  # of how many is not known


def test_the_terminal_shows_table_remarks_and_files(grid, capsys):
    directory, made = grid
    print_results(made, directory.path)
    out = capsys.readouterr().out
    assert out.startswith("linear (%), more is better\nrounds ")
    assert f"recipe: {directory.path / 'best.yaml'}" in out
    assert f"figure: {directory.path / 'figures/linear-over-rounds.png'}" in out
    print_results(made, directory.path, "json")
    assert json.loads(capsys.readouterr().out) == json.loads((directory.path / "results.json").read_text())
    print_results(made, directory.path, "csv")
    first, *_ = made.tables
    rows = list(csv.reader(capsys.readouterr().out.splitlines()))
    assert rows[: 1 + len(first.lines)] == [first.head, *([cell.text for cell in line] for line in first.lines)]
    print_results(made, directory.path, "latex")
    mean, spread = next(cell.text for line in first.lines for cell in line if cell.best).split(" ± ")
    assert f"\\textbf{{{mean} $\\pm$ {spread}}} & " in capsys.readouterr().out
