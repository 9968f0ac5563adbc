"""What a report says first of a run, on fabricated curves."""

from dataclasses import replace

import pytest

from rayfed_ssl.objectives import BYOL
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.summary import CurvePoint, summarize
from rayfed_ssl.reports.verdict import verdict


@pytest.fixture(scope="module")
def summary(sweep):
    return summarize(RunRecord.open(sweep / "flesd-0"))


def run_with(summary, curve, start=0.5):
    points = tuple(CurvePoint(round, 0, 0.0, knn) for round, knn in enumerate(curve, 1))
    summary = replace(summary, num_clients=2, samples=1_000_000)
    return replace(summary, curve=points, starts={"cnn": {"knn": start}}, scores={"global": {"knn": curve[-1]}})


@pytest.mark.parametrize(
    ("curve", "trend", "advice"),
    [
        ([0.55, 0.56, 0.57, 0.60], "kNN still rises: +3.00 ± 0.07 points in the last third", "More rounds may"),
        (
            [0.55, 0.60, 0.60, 0.605],
            "kNN has leveled off: +0.50 ± 0.07 points in the last third",
            "More rounds will hardly",
        ),
        ([0.55, 0.60, 0.60, 0.55], "kNN still falls: -5.00 ± 0.07 points in the last third", "Fewer rounds may do."),
        ([0.41, 0.42, 0.43, 0.45], "kNN still rises: +2.00 ± 0.07 points", "training.total_steps=500."),
        ([0.55, 0.60, 0.65], "Too few rounds are scored to say whether kNN has converged.", ""),
    ],
    ids=["rising", "level", "falling", "rising-below", "short"],
)
def test_the_trend_is_that_of_the_last_third_and_says_what_to_do(summary, curve, trend, advice):
    steps = [{"round": 1, "participant": "client-0", "name": "steps", "value": 4.0}]
    text = verdict(run_with(summary, curve), steps)
    side = "above" if curve[-1] > 0.5 else "below"
    assert text.startswith(
        f"After 2 steps of a client this run is {side} its random start by {100 * abs(curve[-1] - 0.5):.2f} ± 0.07 points "
        "in kNN (1,000,000 test pictures, ± a standard error). "
        f"{trend}"
    )
    assert advice in text
    assert (advice == "") == text.endswith("converged.")


def test_within_two_standard_errors_nothing_rises_or_is_below_and_byol_needs_2000_steps(summary):
    curve = [0.41, 0.42, 0.43, 0.45]
    level = verdict(replace(run_with(summary, curve), samples=300), [])
    assert "level with its random start at -5.00 ± 4.07 points in kNN (300 test pictures" in level
    assert level.endswith("kNN moved +2.00 ± 4.05 points in the last third of its rounds, within two standard errors.")
    config = summary.config.model_copy(update={"objective": BYOL()})
    steps = [{"round": 1, "participant": "client-0", "name": "steps", "value": 4.0}]
    assert verdict(replace(run_with(summary, curve), config=config), steps).endswith("training.total_steps=2000.")


def test_without_a_curve_the_loss_tells_and_steps_are_counted(summary):
    losses = [4.0, 3.0, 2.0, 1.0]
    metrics = {"loss": losses, "steps": [5.0] * 4}
    rows = [
        {
            "round": round,
            "participant": participant,
            "name": name,
            "value": value * (2 if participant == "server" else 1),
        }
        for name, values in metrics.items()
        for round, value in enumerate(values, 1)
        for participant in (("client-0", "client-1") if name == "steps" else ("client-0", "server"))
    ]
    text = verdict(run_with(summary, [0.6]), rows)
    assert text.startswith("After 20 steps of a client this run is above its random start")
    assert text.endswith("whether kNN has converged; the loss still falls, by 50.00% in the last third of the rounds.")


def test_an_unfinished_run_gets_no_advice_and_an_unbegun_one_no_verdict(summary):
    rising = replace(run_with(summary, [0.1, 0.2, 0.3, 0.4]), finished=False)
    assert verdict(rising, []).endswith("in the last third of its rounds.")
    assert verdict(replace(rising, rounds=0), []) == ""


def test_without_classes_there_is_no_accuracy_and_the_loss_tells(summary):
    bare = replace(summary, curve=(), starts={}, scores={})
    rows = [{"round": n, "participant": "client-0", "name": "loss", "value": 5.0 - n} for n in range(1, 5)]
    assert verdict(bare, rows).startswith("No accuracy is on record; the loss still falls")
