"""What clients' scores on samples of their own come to."""

import math

import pytest

from rayfed_ssl.engine.round_loop import Evaluation
from rayfed_ssl.formats import standard_error
from rayfed_ssl.records.metric_rows import impossible
from rayfed_ssl.records.own_scores import differences, mean_gain, own_rows, own_scores, summarize

SCORES = {
    client: {"own_samples": 20.0, "own_global_knn": share, "own_start_knn": 0.5}
    for client, share in enumerate([0.9, 0.1, 0.5, 0.7, 0.8, 0.6, 0.65, 0.55, 0.75, 0.95, 0.2])
}


def test_the_worst_tenth_is_rounded_up_and_who_is_level_does_not_gain():
    summary = summarize(SCORES, "own_global_knn")
    assert summary["worst_tenth"] == pytest.approx((0.1 + 0.2) / 2, rel=1e-12)
    assert summary["gaining"] == pytest.approx(8 / 11, rel=1e-12)
    mean = sum(each["own_global_knn"] for each in SCORES.values()) / 11
    variance = sum((each["own_global_knn"] - mean) ** 2 for each in SCORES.values()) / 11
    assert summary["std"] == pytest.approx(variance**0.5, rel=1e-12)
    assert "gaining" not in summarize(SCORES, "own_start_knn")
    assert summarize(SCORES, "own_tuned_knn") == {}


def test_a_gain_has_the_error_of_the_clients_own_number_of_samples():
    gain, error = differences(SCORES, "own_global_knn")[0]
    assert (gain, error) == (0.9 - 0.5, standard_error(0.9, 0.5, 20))
    other = {0: {"own_samples": 20.0, "own_personal_knn": 0.4}}
    assert differences(SCORES, "own_global_knn", other, "own_personal_knn")[0][0] == 0.9 - 0.4
    assert mean_gain({0: (0.1, 0.0), 1: (0.3, 0.0)}) == (pytest.approx(0.2), pytest.approx(0.1))
    assert mean_gain({0: (0.1, 0.0)}) == (0.1, None)


def test_rows_hold_each_client_and_what_is_over_all():
    rows = own_rows([Evaluation(3, f"client-{client}", metrics, 1.0) for client, metrics in SCORES.items()])
    assert own_scores(rows, 3) == SCORES
    over_all = {row["name"]: row["value"] for row in rows if row["participant"] == "clients"}
    assert over_all["own_global_knn_gaining"] == pytest.approx(8 / 11)
    assert own_rows([]) == []


def test_a_record_with_an_impossible_score_of_a_client_is_damaged():
    rows = [{"round": 1, "participant": "client-0", "name": "own_tuned_linear", "value": 1.5}]
    assert impossible(rows, {}) == "it has 1.5 for own_tuned_linear"
    rows = [{"round": 1, "participant": "client-0", "name": "own_samples", "value": math.nan}]
    assert impossible(rows, {}) == "it has nan for own_samples"


def test_what_a_method_reports_of_a_client_is_no_score_whatever_its_name():
    assert own_scores([{"round": 1, "participant": "client-0", "name": "own_share", "value": 0.5}], 1) == {}
