"""Search spaces: what a file may say, what a grid holds, what a sampler is asked, and what follows from other values."""

from typing import Any

import optuna
import pytest

from rayfed_ssl.errors import ConfigError
from tune.studies.definition.files import load_study
from tune.studies.definition.space import Space


def space_of(tree: dict[str, Any]) -> Space:
    return load_study({"recipe": "digits", "space": tree, "search": "random", "trials": 2}).space


def test_the_last_parameter_of_a_grid_runs_fastest():
    grid = space_of({"rounds": [1, 2], "method.mu": [0.1, 1.0]}).grid()
    assert grid == [
        {"rounds": 1, "method.mu": 0.1},
        {"rounds": 1, "method.mu": 1.0},
        {"rounds": 2, "method.mu": 0.1},
        {"rounds": 2, "method.mu": 1.0},
    ]


def test_a_sampler_is_asked_within_the_ranges_and_as_whole_numbers_where_these_are_meant():
    space = space_of(
        {
            "a": {"uniform": [0, 1]},
            "b": {"log": [0.001, 10]},
            "c": {"integer": [64, 1024], "log": True},
            "e": [[1, 2], [3]],
        }
    )
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    points = [space.suggest(study.ask()) for _ in range(40)]
    assert all(0 <= p["a"] <= 1 and 0.001 <= p["b"] <= 10 and 64 <= p["c"] <= 1024 for p in points)
    assert all(isinstance(p["c"], int) for p in points)
    assert {tuple(p["e"]) for p in points} == {(1, 2), (3,)}
    assert min(p["b"] for p in points) < 0.1  # evenly over four orders of magnitude, not over the line


def test_lists_survive_the_study_that_keeps_them():
    space = space_of({"clients.models": [["cnn", "mlp"], ["cnn"]]})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    points = [space.suggest(study.ask()) for _ in range(20)]
    assert all(point in points for point in space.grid())
    assert all(point in space.grid() for point in points)


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ([], "space: input should be a valid dictionary"),
        ({}, "space is missing: name what is varied"),
        ({"rounds": []}, "space.rounds.values.values: tuple should have at least 1 item"),
        ({"rounds": [1, 2, 1]}, "each value counts once (1, 1.0 and true are equal), got 1 again"),
        ({"rounds": 3}, "space.rounds: must be a list of values or one of"),
        ({"rounds": {"uniform": [2, 1]}}, "the first is smaller, got [2, 1]"),
        ({"rounds": {"log": [0, 1]}}, "starts above 0, got 0"),
        ({"rounds": {"integer": [1, 1.5]}}, "has whole ends, got [1, 1.5]"),
        ({"rounds": {"uniform": [0, 1], "step": 2}}, "unknown key 'space.rounds.range.step'"),
        ({"rounds": [1, 1.0]}, "1, 1.0 and true are equal"),
        ({"rounds": {"uniform": [0, float("inf")]}}, "ends.1: input should be less than"),
        ({"rounds": {"equals": "40 // 2"}}, "must be a list of values or one of"),
    ],
)
def test_what_is_no_space_is_refused_with_what_was_got(tree, says):
    with pytest.raises(ConfigError) as refused:
        load_study({"recipe": "digits", "space": tree, "search": "random", "trials": 2})
    assert says in str(refused.value)


def test_a_grid_refuses_ranges_and_says_what_to_do():
    with pytest.raises(ConfigError, match=r"a grid needs values of method\.mu.*set search: random"):
        space_of({"method.mu": {"uniform": [0, 1]}}).grid()


def test_a_grid_that_nobody_could_run_is_refused_at_once():
    with pytest.raises(ConfigError, match="at most 10,000 points"):
        space_of({f"p{number}": list(range(9)) for number in range(12)}).grid()
    assert len(space_of({"p": list(range(100)), "q": list(range(100))}).grid()) == 10_000
