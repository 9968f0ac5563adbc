"""A private run from its head to its report: what was planned, spent, recorded, compared and sought."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from rayfed_ssl import resume, run
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.progress import RunProgress
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.html.report import write_report
from rayfed_ssl.reports.summary import summarize
from tune.cli.compare import compare
from tune.cli.run_summary import print_run
from tune.studies.execution.scores import outcome_after, read_progress

Tiny = Callable[..., Config]

PRIVATE = ("method.weighting=uniform", "privacy={clip: 1.0, noise: 4.0, clip_quantile: 0.5, delta: 0.001}")


@pytest.fixture(scope="module")
def private(tiny: Tiny) -> Config:
    return tiny("fedavg", *PRIVATE)


@pytest.fixture(scope="module")
def directory(private: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(private, tmp_path_factory.mktemp("private") / "run").directory


def test_the_head_says_once_what_the_run_will_cost_and_that_noise_is_simulated(private: Config, tmp_path: Path):
    screen, federation = io.StringIO(), Federation.open(private)
    RunProgress(private, console=Console(file=screen, width=200)).introduce(federation, tmp_path)
    planned = federation.planned_epsilon()
    assert f"privacy: epsilon {planned:.3g} at delta 0.001 (client level) after 2 rounds" in screen.getvalue()
    assert "nobody drops out, weighting uniform" in screen.getvalue()
    assert screen.getvalue().count("simulates privacy") == 1


def test_the_record_has_what_was_spent_by_each_round(
    private: Config, directory: Path, capsys: pytest.CaptureFixture[str]
):
    record = RunRecord.open(directory)
    spent = [row["value"] for row in record.metrics if (row["participant"], row["name"]) == ("server", "epsilon")]
    assert 0 < spent[0] < spent[1] == Federation.open(private).planned_epsilon() == summarize(record).epsilon
    assert any("simulates privacy" in note for note in record.manifest.notes)
    print_run(summarize(record))
    assert f"privacy: epsilon {spent[1]:.3g} at delta 0.001 (client level)" in capsys.readouterr().out
    compare([directory])
    assert "epsilon" in capsys.readouterr().out
    page = write_report([directory], directory.parent / "report.html")
    assert f"epsilon {spent[1]:.3g} at delta 0.001" in Path(page).read_text()


@pytest.mark.parametrize("take", [None, "global", "mean"])
def test_epsilon_is_a_goal_of_studies_whatever_encoder_they_take(directory: Path, take: str | None):
    expected = summarize(RunRecord.open(directory)).epsilon
    assert outcome_after(directory, ["epsilon"], take, 2, whole=True).scores == {"epsilon": expected}
    assert read_progress(directory, take)["score.epsilon"] == expected


def test_a_resumed_run_has_the_same_states_and_has_spent_as_much(private: Config, directory: Path, tmp_path: Path):
    run(private, tmp_path / "run", until=1)
    resume(tmp_path / "run")
    resumed, whole = (RunRecord.open(each) for each in (tmp_path / "run", directory))
    assert resumed.manifest.rounds[-1].state_sha256 == whole.manifest.rounds[-1].state_sha256
    assert summarize(resumed).epsilon == summarize(whole).epsilon
