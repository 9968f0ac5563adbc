"""Search spaces: what a file may say, what a grid holds, what a sampler is asked, and what follows from other values."""

from datetime import date

import optuna
import pytest

from rayfed_ssl.errors import ConfigError
from tune.sweeps.definition.arithmetic import calculate
from tune.sweeps.definition.space_files import read_space
from tune.sweeps.definition.spaces import stored


def test_the_last_parameter_of_a_grid_runs_fastest():
    grid = read_space({"rounds": [1, 2], "method.mu": [0.1, 1.0]}).grid()
    assert grid == [
        {"rounds": 1, "method.mu": 0.1},
        {"rounds": 1, "method.mu": 1.0},
        {"rounds": 2, "method.mu": 0.1},
        {"rounds": 2, "method.mu": 1.0},
    ]


def test_a_parameter_with_a_condition_is_there_only_where_it_holds():
    space = read_space(
        {
            "system": {"variants": {"A": {"recipe": "flesd"}, "B": {"recipe": "fedprox"}}},
            "method.mu": {"values": [0.1, 1.0], "when": {"system": "B"}},
        }
    )
    assert space.grid() == [{"system": "A"}, {"system": "B", "method.mu": 0.1}, {"system": "B", "method.mu": 1.0}]


def test_what_follows_from_others_is_computed_in_order():
    space = read_space(
        {
            "rounds": [4],
            "training.epochs": {"equals": "40 // rounds"},
            "training.batch": {"equals": "training.epochs * 2"},
        }
    )
    assert space.settings({"rounds": 4}) == {"rounds": 4, "training.epochs": 10, "training.batch": 20}


def test_variants_are_no_settings_themselves():
    space = read_space(
        {"system": {"variants": {"A": {"recipe": "flesd", "set": {"rounds": 3}}}}, "clients.number": [5]}
    )
    point = {"system": "A", "clients.number": 5}
    assert space.settings(point) == {"clients.number": 5}
    (variant,) = space.variant(point)
    assert (variant.recipe, variant.settings) == ("flesd", {"rounds": 3})


def test_a_sampler_is_asked_within_the_ranges_and_as_whole_numbers_where_these_are_meant():
    space = read_space(
        {
            "a": {"uniform": [0, 1]},
            "b": {"log": [0.001, 10]},
            "c": {"integer": [64, 1024], "log": True},
            "d": {"integer": [0, 10], "step": 5},
            "e": [[1, 2], [3]],
        }
    )
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    points = [space.suggest(study.ask()) for _ in range(40)]
    assert all(0 <= p["a"] <= 1 and 0.001 <= p["b"] <= 10 and 64 <= p["c"] <= 1024 for p in points)
    assert all(isinstance(p["c"], int) for p in points)
    assert {p["d"] for p in points} == {0, 5, 10}
    assert {tuple(p["e"]) for p in points} == {(1, 2), (3,)}
    assert min(p["b"] for p in points) < 0.1  # evenly over four orders of magnitude, not over the line


def test_lists_survive_the_study_that_keeps_them():
    space = read_space({"clients.models": [["cnn", "mlp"], ["cnn"]]})
    study = optuna.create_study()
    for point in space.grid():
        study.enqueue_trial(stored(point))
    assert [space.suggest(study.ask()) for _ in range(2)] == space.grid()


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ([], "space maps parameters"),
        ({}, "space maps parameters"),
        ({"rounds": []}, "needs at least one value"),
        ({"rounds": [1, 1]}, "counts once"),
        ({"rounds": 3}, "must be a list of values or one of"),
        ({"rounds": {"uniform": [2, 1]}}, "the first is smaller, got [2, 1]"),
        ({"rounds": {"uniform": [1]}}, "two numbers below"),
        ({"rounds": {"log": [0, 1]}}, "must begin above it, got 0"),
        ({"rounds": {"integer": [1, 2.5]}}, "whole numbers"),
        ({"rounds": {"integer": [1, 8], "log": True, "step": 2}}, "log or step, got both"),
        ({"rounds": {"uniform": [0, 1], "step": 2}}, "uniform takes no 'step'"),
        ({"rounds": {"uniform": [0, 1], "values": [1]}}, "must have one of"),
        ({"rounds": {"equals": "__import__('os')"}}, "no arithmetic"),
        ({"rounds": {"equals": "4 +"}}, "no arithmetic"),
        ({"mu": {"values": [1], "when": {"system": "A"}}}, "no parameter before it"),
        ({"system": ["A"], "mu": {"values": [1], "when": {"system": "C"}}}, "system has the values A, got 'C'"),
        ({"s": {"variants": {"A": {"recipes": "flesd"}}}}, "takes recipe and set"),
        ({"r": [1], "e": {"equals": "4 // r"}, "n": {"values": [1], "when": {"e": 4}}}, "follows from others (4 // r)"),
        ({"r": {"uniform": [0, 1]}, "n": {"values": [1], "when": {"r": 1}}}, "which runs over all numbers"),
        ({"rounds": [1, 1.0]}, "1, 1.0 and true are equal"),
        ({"rounds": [1, 10**35]}, "lie below 2**63"),
        ({"rounds": {"integer": [1, 10**35]}}, "two numbers below 2**63"),
        ({"rounds": [1, True]}, "1, 1.0 and true are equal"),
        ({"rounds": [float("nan")]}, "finite numbers"),
        ({"rounds": [date(2026, 1, 1)]}, "write it in quotes"),
        ({"rounds": {"uniform": [0, float("inf")]}}, "two numbers below"),
        ({"rounds": {"integer": [1, 4], "step": 9}}, "fits between both ends"),
        ({"rounds": {"equals": "round(1, ndigits=1)"}}, "no arithmetic"),
        ({"rounds": {"equals": "(" * 300 + "1" + ")" * 300}}, "no arithmetic"),
    ],
)
def test_what_is_no_space_is_refused_with_what_was_got(tree, says):
    with pytest.raises(ConfigError) as told:
        read_space(tree)
    assert says in str(told.value)
    assert "\n" not in str(told.value)


def test_a_grid_refuses_ranges_and_says_what_to_do():
    with pytest.raises(ConfigError, match=r"a grid needs values of method\.mu.*set search: random"):
        read_space({"method.mu": {"uniform": [0, 1]}}).grid()


def test_a_grid_that_nobody_could_run_is_refused_at_once():
    with pytest.raises(ConfigError, match="more than 10,000 points"):
        read_space({f"p{number}": list(range(9)) for number in range(12)}).grid()
    assert len(read_space({"p": list(range(10_000))}).grid()) == 10_000


def test_arithmetic_over_dotted_names():
    assert calculate("max(1, 2 ** 3 // training.epochs) - -1", {"training.epochs": 2}) == 5


@pytest.mark.parametrize(
    ("formula", "says"),
    [
        ("40 // rounds", "cannot be computed"),
        ("40 // round", "needs round"),
        ("rounds(3)", "no arithmetic"),
        ("(rounds - 1) ** 0.5", "cannot be computed"),
        ("1e308 * 10", "it is inf"),
        ("9 ** 9 ** 9 ** 9", "is too large"),
    ],
)
def test_arithmetic_that_fails_says_at_which_point(formula, says):
    with pytest.raises(ConfigError, match=says):
        calculate(formula, {"rounds": 0})
