"""What a summary says of a run beside its start, on fabricated scores."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rayfed_ssl import Config
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.summary import Summary, partition_text, summarize


@pytest.fixture(scope="module")
def summary(sweep: Path) -> Summary:
    return summarize(RunRecord.open(sweep / "flesd-0"))


def with_scores(summary: Summary, start: dict[str, float], **scores: dict[str, float]) -> Summary:
    named = {name.replace("_", "-"): metrics for name, metrics in scores.items()}
    return replace(summary, samples=2500, starts={"cnn": start}, scores=named)


def test_a_run_says_where_it_is_beside_its_start(summary: Summary) -> None:
    start = {"knn": 0.494, "linear": 0.782, "diag_feature_std": 0.2}
    below = with_scores(summary, start, **{"global": {"knn": 0.4, "linear": 0.671}})
    assert below.start_line() == (
        "random start: kNN 49.40%, linear 78.20%; this run is below it by 9.40 ± 1.40 points in kNN and "
        "11.10 ± 1.25 points in linear (2,500 test pictures, ± a standard error)"
    )
    above = with_scores(summary, start, **{"global": {"knn": 0.5, "linear": 0.782}})
    level = "level with it at +0.60 ± 1.41 points in kNN and +0.00 ± 1.17 points in linear"
    assert level in above.start_line()
    assert above.gain("knn") == pytest.approx(0.006)


@pytest.mark.parametrize(("samples", "is_below"), [(360, False), (1000, True), (0, True)])
def test_a_run_is_below_its_start_only_beyond_two_standard_errors(summary, samples, is_below) -> None:
    scores = with_scores(summary, {"knn": 0.894, "linear": 0.978}, **{"global": {"knn": 0.86, "linear": 0.958}})
    assert replace(scores, samples=samples).is_below_start == is_below


def test_clients_own_encoders_are_compared_in_the_mean(summary: Summary) -> None:
    clients = with_scores(summary, {"linear": 0.5}, client_0={"linear": 0.75}, client_1={"linear": 0.5})
    assert clients.start_line() == (
        "random start: linear 50.00%; this run is above it by 12.50 ± 1.39 points in linear "
        "(2,500 test pictures, ± a standard error)"
    )


def test_an_unscored_run_has_no_line_or_no_verdict(summary: Summary) -> None:
    assert replace(summary, starts={}).start_line() is None
    assert (
        replace(summary, starts={"cnn": {"knn": 0.5}}, scores={"global": {}}).start_line() == "random start: kNN 50.00%"
    )


def test_the_line_says_that_the_start_is_scored_without_new_crops(summary: Summary) -> None:
    cropped = replace(summary, config=Config.load(summary.config.dump(), "evaluation.augment=true"))
    line = with_scores(cropped, {"linear": 0.5}, **{"global": {"linear": 0.75}}).start_line()
    assert line is not None
    assert line.startswith(
        "random start: linear 50.00% (without new crops in each epoch, which the run's own probe has); this"
    )


@pytest.mark.parametrize(
    ("partition", "text"),
    [
        ("{name: pooled}", "pooled"),
        ("{name: pooled, fraction: 0.1}", "pooled, fraction 0.1"),
        ("{name: dirichlet, alpha: 0.5}", "dirichlet, alpha 0.5"),
    ],
)
def test_a_partition_is_named_with_what_tells_it_from_others(tiny, partition: str, text: str) -> None:
    assert partition_text(tiny("local", f"partition={partition}")) == text


def test_a_run_says_that_its_settings_were_changed_after_it(sweep: Path, tmp_path: Path) -> None:
    run = shutil.copytree(sweep / "flesd-0", tmp_path / "run")
    changed = f"{run}/config.yaml changed since this run began"
    assert summarize(RunRecord.open(run)).changed is None
    text = (run / "config.yaml").read_text()
    for old, new in {"seed: 0": "seed: 1", "queue_size: 32": "queue_size: 16"}.items():
        (run / "config.yaml").write_text(text.replace(old, new))
        assert changed in str(summarize(RunRecord.open(run)).changed)
    (run / "config.yaml").write_text(text.replace("every: 1", "every: 2"))  # a later evaluation may differ
    assert summarize(RunRecord.open(run)).changed is None
