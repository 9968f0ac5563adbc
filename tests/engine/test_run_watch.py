"""Warnings of a run: each kind once, as soon as the numbers show it, and none for a healthy run."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl import Config, resume, run
from rayfed_ssl.engine.round_loop import ClientReport, Evaluation, Observer, RoundOutcome, ServerReport
from rayfed_ssl.engine.run_watch import RoundLosses, RunWarning, RunWatch, below_start, probe_remarks
from rayfed_ssl.formats import standard_error
from rayfed_ssl.objectives import MoCo
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage.checkpoints import RunState, Stored

NOWHERE = Stored("none", "0")
HEALTHY = {"loss_first": 4.0, "loss": 3.5, "steps": 60, "feature_std": 0.4, "weight_growth": 1.2}


def outcome(round: int, *clients: dict[str, float]) -> RoundOutcome:
    """A round whose clients report these numbers."""
    reports = tuple(ClientReport(number, NOWHERE, metrics, (), 1.0) for number, metrics in enumerate(clients))
    return RoundOutcome(RunState(round, NOWHERE), reports, ServerReport(NOWHERE, {}, 1.0), 1.0)


def watch(*rounds: Sequence[dict[str, float]], of: int = 4, std: float = 0.17, **options: Any) -> list[RunWarning]:
    """Warnings of a run with these rounds, each a list of clients' numbers."""
    given: list[RunWarning] = []
    follower = RunWatch(of, lambda name: "cnn", options.pop("chance", None), (), 1000, given.append, **options)
    follower.on_start_scored({"cnn": {"diag_feature_std": std}})
    for number, clients in enumerate(rounds, 1 + len(options.get("losses", {}))):
        follower.on_round_end(outcome(number, *clients))
    return given


def test_a_healthy_run_gives_no_warning() -> None:
    later = HEALTHY | {"loss_first": 3.5, "loss": 3.4}
    assert watch([HEALTHY, HEALTHY], [later, later], [later, later], chance=math.log(64)) == []


def test_collapse_is_seen_in_its_round_and_told_once() -> None:
    collapsed = HEALTHY | {"feature_std": 0.004}
    (warning,) = watch([HEALTHY, HEALTHY], [HEALTHY, collapsed], [collapsed, collapsed])
    assert (warning.kind, warning.round) == ("collapse", 2)
    assert "client-1: standard deviation 0.004" in warning.message
    assert "training.drop_last=true" in warning.message


def test_an_encoder_that_starts_with_narrow_features_is_no_collapse_until_they_narrow() -> None:
    assert watch([HEALTHY | {"feature_std": 0.008}], std=0.009) == []
    assert [warning.kind for warning in watch([HEALTHY | {"feature_std": 0.004}], std=0.009)] == ["collapse"]


@pytest.mark.parametrize(
    ("metrics", "kinds"),
    [
        ({"diag_feature_std": 0.3, "diag_effective_rank": 1.2}, ["collapse"]),
        ({"diag_feature_std": 0.3, "diag_effective_rank": 9.0}, []),
        ({"knn": 0.6, "linear": 0.1, "linear_pseudo_r2": 0.2}, ["probe"]),
        ({"knn": 0.6, "linear": 0.55, "linear_pseudo_r2": 0.2}, []),
    ],
)
def test_scored_encoders_are_looked_at(metrics: dict[str, float], kinds: list[str]) -> None:
    given: list[RunWarning] = []
    follower = RunWatch(4, lambda name: "cnn", None, (), 1000, given.append)
    for _ in range(2):
        follower.on_evaluated([Evaluation(4, "global", metrics, 1.0)])
    assert [(warning.kind, warning.round) for warning in given] == [(kind, 4) for kind in kinds]
    assert all("global" in warning.message for warning in given)


STILL = {"loss_first": 4.15, "loss": 4.16, "steps": 60}


def test_a_loss_at_its_start_is_told_after_a_hundred_steps_and_named_chance() -> None:
    assert watch([STILL], of=9, chance=math.log(64)) == []
    (warning,) = watch([STILL], [STILL], [STILL], of=9, chance=math.log(64))
    assert (warning.kind, warning.round) == ("loss", 2)
    assert warning.message.startswith(
        "after 120 steps of a client the loss is still at its start (4.150, now 4.160), which is chance"
    )
    assert "which is chance" not in watch([STILL], [STILL], of=9, chance=math.log(640))[0].message


def test_short_runs_are_judged_at_half_of_their_rounds() -> None:
    short = STILL | {"steps": 8}
    assert [warning.round for warning in watch([short], [short], [short], [short], [short], of=6)] == [3]


def test_a_loss_is_not_judged_by_a_few_steps() -> None:
    brief = STILL | {"steps": 5}
    assert [warning.round for warning in watch([brief], [brief], [brief], [brief], [brief], of=5)] == [4]


def test_one_epoch_alone_has_no_loss_to_compare_with() -> None:
    epoch = {"loss_first": 4.0, "loss": 4.0, "steps": 200}
    assert watch([epoch], of=9) == []
    assert [warning.round for warning in watch([epoch], [epoch], of=9)] == [2]
    assert [warning.round for warning in watch([epoch | {"loss": 4.01}], of=9)] == [1]


def test_a_loss_that_has_moved_once_is_not_at_its_start() -> None:
    moved = STILL | {"loss": 4.0}
    assert watch([STILL | {"steps": 20}], [moved], [STILL], [STILL], of=9) == []


def test_losses_are_judged_from_the_round_in_which_a_queue_is_full() -> None:
    rising, falling = STILL | {"steps": 120}, STILL | {"loss": 3.9, "steps": 120}
    assert watch([rising], [falling], of=9, to_fill=8) == []
    (warning,) = watch([falling], [rising], of=9, to_fill=8)
    assert (warning.kind, warning.round) == ("loss", 2)
    assert watch([rising], of=9, to_fill=8, losses={1: RoundLosses(4.0, 3.9, 60.0)}) != []
    assert [warning.round for warning in watch([rising], [rising], [rising], of=9, to_fill=100, share=0.5)] == [3]


def test_mocos_queue_is_filled_by_the_keys_of_its_views() -> None:
    assert [MoCo(queue_size=513, symmetric=both).num_to_fill for both in (True, False)] == [257, 513]
    assert [MoCo(queue_size=7, symmetric=both).chance_loss(4) / math.log(8) for both in (True, False)] == [2, 1]


def test_rounds_before_a_resume_count_and_their_warnings_are_not_repeated() -> None:
    before = {1: RoundLosses(4.15, 4.16, 60.0)}
    assert [warning.round for warning in watch([STILL], of=9, losses=before)] == [2]
    assert watch([STILL], of=9, losses=before, given=[RunWarning("loss", 1, "")]) == []


def test_weights_that_explode_are_a_divergence() -> None:
    (warning,) = watch([HEALTHY, HEALTHY | {"weight_growth": 3e5}])
    assert warning.kind == "divergence"
    assert "client-1: its weights are 3e+05 times as large" in warning.message


def test_a_probe_that_did_not_learn_or_lies_far_below_knn_is_named_with_a_remedy() -> None:
    knn = {"knn": 0.6}
    flesd = {"linear-flesd": 0.58, "linear-flesd_best": 0.6, "linear-flesd_pseudo_r2": 0.01}
    (flat,) = probe_remarks(knn | flesd, (), 1000)
    assert flat.startswith(
        "linear-flesd says little about the encoder: its training loss has hardly moved (pseudo-R² 0.010)"
    )
    linear = knn | {"linear": 0.45, "linear_pseudo_r2": 0.3}
    (low,) = probe_remarks(linear, (), 1000)
    assert low.startswith("linear says little about the encoder: it is 15.0 points below kNN: scale its features")
    (scaled,) = probe_remarks(linear, ("linear",), 1000)
    assert scaled.endswith("below kNN: change its learning rate or train it for more epochs")
    (diverged,) = probe_remarks(knn | {"linear": 0.45, "linear_pseudo_r2": -0.3}, (), 1000)
    assert diverged.endswith("the probe has diverged (pseudo-R² -0.300): lower its learning rate")


@pytest.mark.parametrize(
    ("knn", "linear", "kinds"), [(0.4, 0.5, ["start"]), (0.4, 0.7, []), (0.6, 0.5, []), (None, 0.5, [])]
)
def test_an_encoder_below_its_start_in_both_scores_is_told_with_its_steps(
    knn: float | None, linear: float, kinds: list[str]
) -> None:
    given: list[RunWarning] = []
    follower = RunWatch(1, lambda name: "cnn", None, (), 1000, given.append)
    follower.on_start_scored({"cnn": {"knn": 0.5, "linear": 0.6}})
    follower.on_round_end(outcome(1, HEALTHY, HEALTHY))
    scores = {"linear": linear} | ({} if knn is None else {"knn": knn})
    follower.on_evaluated([Evaluation(0, "global", scores, 1.0)])
    assert given == []  # before the last round there is time to rise
    follower.on_evaluated([Evaluation(1, "global", scores, 1.0)])
    assert [warning.kind for warning in given] == kinds
    if kinds:
        assert (
            "below its start by 10.0 ± 2.2 points in kNN and 10.0 ± 2.2 points in the linear probe (1,000 test pictures, "
            "± a standard error) after 60 steps of a client: train longer in a new run, with training.total_steps=500"
            in given[0].message
        )


def test_none_and_all_right_have_the_error_of_one_picture() -> None:
    assert standard_error(0.0, 1.0, 0) == 0.0
    assert standard_error(1.0, 0.0, 9) == pytest.approx(standard_error(8 / 9, 1 / 9, 9))
    assert standard_error(0.5, 0.5, 100) == pytest.approx(math.sqrt(0.5 / 100))


def test_an_encoder_within_two_standard_errors_of_its_start_is_not_below_it() -> None:
    start, now = {"knn": 0.5, "linear": 0.6}, {"knn": 0.4, "linear": 0.5}
    assert below_start("global", now, start, 60, 150) is None
    assert below_start("global", now, start, 60, 250).endswith("training.total_steps=500")
    assert below_start("global", now, start, 60, 250, 2000).endswith("training.total_steps=2000")


def test_a_gap_below_knn_within_two_standard_errors_is_no_remark() -> None:
    metrics = {"knn": 0.6, "linear": 0.45, "linear_pseudo_r2": 0.3}  # the error of the difference is 0.7 / sqrt(M)
    assert probe_remarks(metrics, (), 60) == []
    assert len(probe_remarks(metrics, (), 120)) == 1


class Told(Observer):
    """Warnings as the user sees them."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_warning(self, message: str) -> None:
        self.messages.append(message)


def test_a_run_that_learns_nothing_says_so_while_it_goes_on_and_in_its_record(
    tiny: Callable[..., Config], tmp_path: Path
) -> None:
    still = "rounds=6", "training.optimizer.lr=1e-12", "training.views=digits", "training.epochs=4", "partition=iid"
    told = Told()
    run(tiny("fedavg", *still), tmp_path / "run", observer=told, until=3)
    warnings = RunRecord.open(tmp_path / "run").manifest.warnings
    assert [(warning.kind, warning.round) for warning in warnings] == [("loss", 3)]
    assert told.messages == [warnings[0].message]
    repeated, resumed = Told(), Told()
    resume(tmp_path / "run", observer=repeated, until=3, round=2)
    assert repeated.messages == told.messages
    resume(tmp_path / "run", observer=resumed, until=4)
    assert resumed.messages == []
    assert RunRecord.open(tmp_path / "run").manifest.warnings == warnings
