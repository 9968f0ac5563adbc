"""A study's goals may be what attacks on a run's uploads reach."""

import math
from pathlib import Path

import pytest

from rayfed_ssl.records.audit_rows import read_audit
from tests.small_recipes import small
from tune.studies.execution.scores import read_progress
from tune.studies.execution.segments import outcome_of

SCORES = ("linear", "embedding-norm.auc")


def test_a_run_is_audited_where_a_goal_is_an_attacks_number(tmp_path: Path):
    config = small("fedsimclr", "privacy.held_out=0.5", "clients.number=2", "rounds=1")
    outcome = outcome_of(config, tmp_path / "run", 1, SCORES, None)
    areas = [row["value"] for row in read_audit(tmp_path / "run") if row["metric"] == "auc"]
    assert outcome.scores["embedding-norm.auc"] == pytest.approx(sum(areas) / len(areas), rel=1e-15)
    assert read_progress(tmp_path / "run", None)["score.embedding-norm.auc"] == outcome.scores["embedding-norm.auc"]


def test_an_attack_that_does_not_fit_has_no_number(tmp_path: Path):
    config = small("flesd", "privacy.held_out=0.5", "rounds=1")
    outcome = outcome_of(config, tmp_path / "run", 1, ("linear", "embedding-norm.auc", "rmia.auc"), None)
    assert math.isnan(outcome.scores["rmia.auc"])
    assert math.isfinite(outcome.scores["embedding-norm.auc"])


def test_a_run_that_cannot_be_audited_is_a_trial_that_failed(tmp_path: Path):
    outcome = outcome_of(small("fedsimclr", "rounds=1"), tmp_path / "run", 1, SCORES, None)
    assert outcome.failure is not None
    assert "no held-out samples to compare with" in outcome.failure
