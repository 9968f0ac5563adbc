"""Every law for every method, and for the variants of a method that take another path through its code."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rayfed_ssl.config.schema import Config
from tests.laws import laws, privacy
from tests.laws.conftest import Reference
from tests.laws.variants import VARIANTS

everywhere = pytest.mark.parametrize("variant", VARIANTS)
Find = Callable[[str], Reference]

LEAST_SPREAD = 0.005
"""A collapsed encoder is at 0. Encoders with batch-norm lie at 0.06 and above here; VGG-9, to which 8 x 8 digits look much
alike before it has been trained for long, at 0.014."""


@everywhere
def test_inputs_are_not_written(tiny: Callable[..., Config], variant: str):
    laws.check_inputs_are_not_written(tiny(*VARIANTS[variant]))


@everywhere
def test_the_seed_decides_and_nothing_else(reference: Find, variant: str):
    laws.check_seed_decides(*reference(variant))


@everywhere
def test_resuming_after_any_round_changes_nothing(reference: Find, variant: str, tmp_path: Path):
    config, whole, _ = reference(variant)
    laws.check_resume(config, whole, tmp_path)


@everywhere
def test_the_order_of_completion_is_irrelevant(reference: Find, variant: str):
    config, _, played = reference(variant)
    laws.check_order(config, played)


@everywhere
def test_a_client_may_drop_out(reference: Find, variant: str):
    config, _, played = reference(variant)
    laws.check_dropout(config, played)


@everywhere
def test_uploads_are_folded_one_by_one(reference: Find, variant: str):
    config, _, played = reference(variant)
    laws.check_uploads_are_folded(config, played)


@everywhere
def test_randomness_comes_from_the_engine(reference: Find, variant: str):
    config, _, played = reference(variant)
    laws.check_randomness_is_the_engines(config, played)


@everywhere
def test_what_is_sent_is_plain_and_of_a_known_kind(reference: Find, variant: str):
    privacy.check_messages(reference(variant).played)


@everywhere
def test_no_client_sees_another_clients_images(reference: Find, variant: str):
    config, _, played = reference(variant)
    privacy.check_isolation(config, played)


@everywhere
def test_only_the_cohort_trains(reference: Find, variant: str):
    config, whole, _ = reference(variant)
    laws.check_cohorts(config, whole)


@everywhere
def test_encoders_are_finite_and_not_collapsed(reference: Find, variant: str):
    config, _, played = reference(variant)
    laws.check_encoders(config, played, LEAST_SPREAD)


@everywhere
def test_losses_fall(tiny: Callable[..., Config], variant: str):
    name, *overrides = VARIANTS[variant]
    epochs = 12 if "objective=moco" in overrides else 6  # a queue longer than a shard is filled first
    longer = [f"training.epochs={epochs}"] + ["method.distil_epochs=8"] * name.startswith("flesd")
    laws.check_loss_falls(tiny(name, *overrides, *longer))


@everywhere
def test_what_goes_up_is_what_the_method_says(reference: Find, variant: str):
    config, _, played = reference(variant)
    privacy.check_rules(config, played)
