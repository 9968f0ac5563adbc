import numpy as np
import pytest

from rayfed_ssl.data.held_out import hold_out, set_apart
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from tests.small_recipes import small

SHARDS = {0: np.arange(0, 4000), 3: np.arange(5000, 9000, 2)}


def test_a_sample_is_either_trained_on_or_held_out():
    trained, held_out = hold_out(SHARDS, 0.2, 100, 0)
    for client_id, rows in SHARDS.items():
        assert np.array_equal(np.union1d(trained[client_id], held_out[client_id].rows), rows)
        assert not np.intersect1d(trained[client_id], held_out[client_id].rows).size


def test_canaries_are_held_out_by_a_fair_coin_and_others_by_the_fraction():
    _, held_out = hold_out(SHARDS, 0.2, 1000, 0)
    for client_id, held in held_out.items():
        others = np.setdiff1d(SHARDS[client_id], held.canaries)
        for rows, probability in ((held.canaries, 0.5), (others, 0.2)):
            share, spread = np.isin(rows, held.rows).mean(), (probability * (1 - probability) / len(rows)) ** 0.5
            assert abs(share - probability) < 4 * spread
        assert len(held.canaries) == 1000


def test_clients_and_seeds_flip_coins_of_their_own():
    same = {0: np.arange(1000), 1: np.arange(1000)}
    _, first = hold_out(same, 0.5, 0, 0)
    _, other = hold_out(same, 0.5, 0, 1)
    assert not np.array_equal(first[0].rows, first[1].rows)
    assert not np.array_equal(first[0].rows, other[0].rows)


def test_more_canaries_than_samples_are_refused():
    with pytest.raises(ConfigError, match=r"privacy\.canaries=2001 exceeds client 3's 2000 samples"):
        hold_out(SHARDS, None, 2001, 0)


def test_clients_do_not_train_on_what_is_held_out():
    federation = Federation.open(small("fedsimclr", "privacy.held_out=0.5"))
    whole = Federation.open(small("fedsimclr"))
    for client_id, rows in whole.shards.items():
        held = federation.held_out[client_id].rows
        assert np.array_equal(np.union1d(federation.shards[client_id], held), rows)
    assert federation.num_held_out > 0
    assert federation.num_left_out == whole.num_left_out
    assert any("held out of training" in note for note in federation.notes)


def test_a_run_without_privacy_settings_has_the_configuration_of_before():
    assert "privacy" not in small("fedsimclr").dump()
    assert small("fedsimclr", "privacy.held_out=0.5").dump()["privacy"]["held_out"] == 0.5


LABELS = np.tile(np.arange(4), 30)


def test_a_client_tests_on_a_part_of_its_samples_with_their_classes():
    shards = {0: np.arange(0, 40), 4: np.arange(40, 120)}
    trained, tested = set_apart(LABELS, shards, 0.2, 0)
    for client_id, rows in shards.items():
        assert np.array_equal(np.union1d(trained[client_id], tested[client_id]), rows)
        assert np.bincount(LABELS[tested[client_id]]).tolist() == [len(rows) // 20] * 4
    assert len(trained[0]) == 32


def test_a_test_part_follows_from_the_clients_own_samples_and_the_seed():
    both = {0: np.arange(0, 40), 4: np.arange(40, 120)}
    _, tested = set_apart(LABELS, both, 0.25, 0)
    assert np.array_equal(set_apart(LABELS, {4: both[4]}, 0.25, 0)[1][4], tested[4])
    assert not np.array_equal(set_apart(LABELS, {4: both[4]}, 0.25, 1)[1][4], tested[4])
    assert not np.array_equal(set_apart(LABELS, {3: both[4]}, 0.25, 0)[1][3], tested[4])


def test_a_client_with_a_single_sample_to_test_on_trains_on_all_and_unlabeled_samples_are_trained_on():
    labels = np.where(np.arange(120) < 60, LABELS, -1)
    shards = {0: np.arange(0, 5), 1: np.arange(5, 11), 2: np.arange(50, 120), 3: np.arange(110, 120)}
    trained, tested = set_apart(labels, shards, 0.2, 0)
    assert tested.keys() == {1, 2}
    assert (len(tested[1]), len(tested[2])) == (2, 2)
    assert labels[tested[2]].min() >= 0
    assert np.array_equal(trained[0], shards[0])
    assert np.array_equal(trained[3], shards[3])


@pytest.mark.parametrize(
    ("fraction", "message"),
    [
        (0.9, r"clients\.test_fraction=0\.9 takes 4 of client 7's 4 samples, but it needs 2 to train: lower it"),
        (0.1, r"clients\.test_fraction=0\.1 gives no client 2 labeled samples to test on: raise it"),
    ],
)
def test_a_fraction_that_leaves_too_few_to_train_or_to_test_on_is_refused(fraction: float, message: str):
    with pytest.raises(ConfigError, match=message):
        set_apart(LABELS, {7: np.arange(4)}, fraction, 0)
