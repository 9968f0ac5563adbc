"""The search: what is tried follows from the sweep and the results, whatever the order in which these come."""

import random
from statistics import fmean

import pytest

from tune.studies.definition.files import load_study
from tune.studies.search.search import Outcome, Search, Segment

RANGES = {"method.mu": {"log": [0.001, 10]}, "training.batch": {"integer": [8, 64], "log": True}}


def sweep(**change):
    tree = {
        "recipe": "fedprox",
        "set": {"rounds": 9},
        "space": RANGES,
        "search": "random",
        "trials": 12,
        "maximize": "knn",
    }
    return load_study(tree | change)


def answer(segment: Segment) -> Outcome:
    """A made-up result that depends on the settings, the seed and the round, and fails for some settings."""
    config = segment.run.config
    if config.training.batch % 7 == 0:
        return Outcome(failure="a batch of seven")
    value = (
        1 / (1 + abs(config.method.mu - 0.1))
        + 0.001 * config.training.batch
        + 0.01 * segment.seed
        + 0.02 * segment.until
    )
    return Outcome({"knn": value, "bytes": float(config.training.batch)})


def explore(search: Search, width: int, order: random.Random) -> list[tuple]:
    """Run a search with so many segments under way, which end in a random order; give the results of the trials."""
    running: list[Segment] = []
    while not search.finished:
        while len(running) < width and (segment := search.next()) is not None:
            running.append(segment)
        segment = running.pop(order.randrange(len(running)))
        search.done(segment, answer(segment))
    return [(t.number, dict(t.point), t.state, t.values, t.reached, t.reason) for t in search.trials]


KINDS = {
    "random": {},
    "tpe": {"search": "tpe", "generation": 4, "trials": 24},
    "tpe with asha": {"search": "tpe", "generation": 4, "stop": {"rule": "asha", "grace": 1, "reduction": 3}},
    "nsga2": {"search": "nsga2", "generation": 5, "minimize": "bytes", "trials": 20},
    "grid": {"search": "grid", "trials": None, "space": {"method.mu": [0.01, 0.1, 1.0], "training.batch": [8, 14, 16]}},
    "two seeds": {"seeds": 2, "stop": {"rule": "asha", "grace": 3, "reduction": 3}, "generation": 3},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_trials_whatever_runs_side_by_side_and_ends_first(kind):
    chosen = sweep(**KINDS[kind])
    first = explore(Search(chosen), 1, random.Random(0))
    for width, seed in ((2, 1), (4, 2), (9, 3)):
        assert explore(Search(chosen), width, random.Random(seed)) == first


@pytest.mark.parametrize("kind", KINDS)
def test_every_trial_ends_and_has_its_number_in_the_study(kind):
    search = Search(sweep(**KINDS[kind]))
    explore(search, 3, random.Random(0))
    states = {"complete": "COMPLETE", "stopped": "PRUNED", "failed": "FAIL"}
    assert [states[trial.state] for trial in search.trials] == [
        trial.state.name for trial in search.optuna_study.trials
    ]
    assert [trial.number for trial in search.optuna_study.trials] == list(range(search.total))
    for ours, theirs in zip(search.trials, search.optuna_study.trials, strict=True):
        if ours.state == "complete":
            assert list(ours.values) == theirs.values


def test_a_search_that_adapts_waits_for_its_generation():
    search = Search(sweep(**KINDS["tpe"]))
    segments = [search.next() for _ in range(4)]
    assert all(segment is not None for segment in segments)
    assert search.next() is None
    for segment in segments[:3]:
        search.done(segment, answer(segment))
        assert search.next() is None
    search.done(segments[3], answer(segments[3]))
    assert search.next() is not None


def test_seeds_are_repeats_and_a_trial_is_judged_by_their_mean():
    search = Search(sweep(**KINDS["two seeds"]))
    explore(search, 2, random.Random(0))
    for trial in search.trials:
        assert list(trial.runs) == [0, 1]
        assert {run.config.seed for run in trial.runs.values()} == {0, 1}
    trial = next(trial for trial in search.trials if trial.state == "complete")
    values = [answer(Segment(trial.number, seed, run, 9)).scores["knn"] for seed, run in trial.runs.items()]
    assert trial.values == (pytest.approx(fmean(values), rel=1e-12),)


def test_impossible_settings_fail_alone_and_with_their_reason():
    search = Search(sweep(search="grid", trials=None, space={"training.batch": [16, 1, 32]}))
    explore(search, 2, random.Random(0))
    assert [trial.state for trial in search.trials] == ["complete", "failed", "complete"]
    assert "training.batch" in search.trials[1].reason
    assert "\n" not in search.trials[1].reason


@pytest.mark.parametrize(
    ("goal", "score", "better"), [("linear", "knn", 0.9), ("diag_alignment", "diag_alignment", 0.1)]
)
def test_early_stopping_looks_at_the_goal_where_that_is_of_every_round(goal, score, better):
    goals = {"maximize": goal} if goal == "linear" else {"maximize": [], "minimize": goal}
    search = Search(sweep(**goals, stop={"reduction": 2}, trials=3, generation=3))
    segments = [search.next() for _ in range(3)]
    for segment, value in zip(segments, (0.5, better, 1.0 - better), strict=True):
        assert segment.scores == (score,)
        search.done(segment, Outcome({score: value}))
    assert [trial.state for trial in search.trials] == ["waiting", "waiting", "stopped"]


def test_asha_continues_the_best_of_each_rung():
    search = Search(sweep(stop={"rule": "asha", "grace": 1, "reduction": 3}, trials=9, generation=9))
    segments = [search.next() for _ in range(9)]
    for segment, value in zip(segments, (5, 4, 3, 9, 8, 7, 6, 2, 1), strict=True):
        search.done(segment, Outcome({"knn": value / 10}))
    # A trial continues that is in the best third of those so far, rounded down, and the best of fewer than three.
    assert [trial.number for trial in search.trials if trial.state == "waiting"] == [0, 3]
    assert search.trials[8].reason == "asha: knn 0.1 after round 1"


def test_a_second_run_starts_from_the_first_and_reports_its_scores():
    columns = {"A": {"then": {"recipe": "federated-finetune"}}, "B": {}}
    rows = {"FedSimCLR": {"recipe": "fedsimclr"}}
    search = Search(sweep(recipe=None, set={}, search="grid", trials=None, space={}, rows=rows, columns=columns))
    first, plain = search.next(), search.next()
    assert search.next() is None
    assert (first.run.name, first.scores, plain.scores) == (plain.run.name, (), ("knn",))
    search.done(first, Outcome())
    second = search.next()
    assert second.run.first.name == first.run.name
    assert second.run.config.method_name == "fedavg"
    search.done(second, Outcome({"knn": 0.5}))
    search.done(plain, Outcome(failure="it is broken"))
    assert [(trial.state, trial.values) for trial in search.trials] == [("complete", (0.5,)), ("failed", ())]
