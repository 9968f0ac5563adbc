"""Which trial a sweep's tables show, the best and the front, and how values are written."""

import random

from rayfed_ssl.reports.table import Table, form_lines, markdown_lines
from tests.tune.studies.swept import ended, result, row
from tune.studies.definition.files import load_study
from tune.studies.results.table import table_of
from tune.studies.results.trial_results import best_of, front_of, results_of


def sweep_of(space, **others):
    return load_study({"recipe": "digits", "space": space, "seeds": 2, **others})


def of(table):
    return [[cell.text for cell in line] for line in table.lines]


def test_in_csv_a_column_of_sizes_shares_or_times_is_one_of_numbers():
    shown = {
        "up": ["1.50 MB", "250.00 kB", "999 bytes", "2.00 GB", "-"],
        "kNN": ["91.30%", "-", "", "8.00%", "100.00%"],
        "virtual time": ["59.9 s", "2 min 05 s", "1 h 02 min", "–", ""],
        "rounds": ["2x1", "10x1", "1x5", "1x1", "-"],
    }
    assert list(form_lines([Table.of("", list(shown), zip(*shown.values(), strict=True))], "csv")) == [
        "up (MB),kNN (%),virtual time (s),rounds",
        "1.5,91.3,59.9,2x1",
        "0.25,,125,10x1",
        "0.000999,,3720,1x5",
        "2000,8,,1x1",
        ",100,,-",
    ]


T = sweep_of({"rounds": [1, 2, 4]})


def test_the_best_is_the_first_of_equal_ones_whatever_the_order():
    trials = [result(T, 0, {"rounds": 1}, [0.4, 0.5]), result(T, 1, {"rounds": 2}, [0.6, 0.8])]
    trials += [result(T, 2, {"rounds": 4}, [0.8, 0.6]), ended(T, 3, {"rounds": 8}, "failed")]
    for _ in range(6):
        random.Random(0).shuffle(trials)
        assert best_of(trials, T.goals).number == 1
    less = sweep_of({"rounds": [1, 2]}, minimize="diag_uniformity")
    both = [result(less, 0, {"rounds": 1}, [-1.0, -2.0]), result(less, 1, {"rounds": 2}, [-2.0, -2.0])]
    assert best_of(both, less.goals).number == 1
    assert best_of([ended(T, 0, {"rounds": 1}, "stopped")], T.goals) is None


def test_a_trial_without_a_finite_score_of_each_seed_is_no_best():
    rows = [row(T, 0, {"rounds": 1}, seed=0, **{"score.linear": 0.9}), row(T, 0, {"rounds": 1}, seed=1)]
    rows += [row(T, 1, {"rounds": 2}, seed=seed, **{"score.linear": float("nan")}) for seed in (0, 1)]
    rows += [row(T, 2, {"rounds": 4}, seed=seed, **{"score.linear": 0.1}) for seed in (0, 1)]
    assert best_of(results_of(T, rows), T.goals).number == 2


def test_the_front_is_what_no_other_trial_beats():
    two = sweep_of({"rounds": [1, 2, 4, 8]}, maximize="knn", minimize="bytes")
    values = [(0.5, 100), (0.6, 200), (0.6, 300), (0.4, 100), (0.9, 900), (0.6, 200)]
    trials = [result(two, n, {"rounds": 1}, {"knn": [knn] * 2, "bytes": [b] * 2}) for n, (knn, b) in enumerate(values)]
    assert [trial.number for trial in front_of(trials, two.goals)] == [4, 1, 0]
    assert [trial.number for trial in front_of(reversed(trials), two.goals)] == [4, 1, 0]


def test_a_table_has_the_values_of_the_file_and_the_best_of_each_column_is_bold():
    two = sweep_of(
        {"rounds": [4, 1]},
        rows={"B": None, "A": None},
        table={"rows": "rounds", "columns": "row"},
    )
    trials = [
        result(two, 0, {"row": "B", "rounds": 4}, [0.4, 0.5]),
        result(two, 1, {"row": "B", "rounds": 1}, [0.5, 0.4]),
        result(two, 2, {"row": "A", "rounds": 4}, [0.1, 0.1]),
        result(two, 3, {"row": "A", "rounds": 1}, [0.2, 0.2]),
    ]
    table = table_of(two, trials, two.goals[0])
    assert table.head == ["rounds", "B", "A"]
    assert of(table) == [["4", "45.00 ± 7.07", "10.00 ± 0.00"], ["1", "45.00 ± 7.07", "20.00 ± 0.00"]]
    assert markdown_lines(table) == [
        "| rounds | B | A |",
        "|---|---|---|",
        "| 4 | **45.00 ± 7.07** | 10.00 ± 0.00 |",
        "| 1 | 45.00 ± 7.07 | **20.00 ± 0.00** |",
    ]


def test_what_rows_and_columns_do_not_show_is_the_best_and_is_named():
    three = sweep_of(
        {"rounds": [1, 2], "clients.number": [2, 3], "training.batch": [8, 16]},
        table={"rows": "rounds", "columns": "clients.number"},
    )
    points = [{"rounds": 1, "clients.number": 2, "training.batch": batch} for batch in (8, 16)]
    trials = [result(three, n, point, [0.1 * n] * 2) for n, point in enumerate(points)]
    trials += [ended(three, 2, {"rounds": 2, "clients.number": 2, "training.batch": 8}, "failed")]
    table = table_of(three, trials, three.goals[0])
    assert table.head == ["rounds", "clients.number=2", "clients.number=3"]
    assert of(table) == [["1", "10.00 ± 0.00", "–"], ["2", "failed", "–"]]
    assert table.remarks == [
        "Each cell is the best by linear over training.batch: training.batch=16 at rounds=1, clients.number=2 (trial 1).",
    ]


def test_a_cell_without_a_complete_trial_says_why():
    states = ["failed", "stopped", "waiting"]
    trials = [
        ended(T, n, {"rounds": rounds}, state) for n, (rounds, state) in enumerate(zip((1, 2, 4), states, strict=True))
    ]
    assert of(table_of(T, trials, T.goals[0])) == [["1", "failed"], ["2", "stopped"], ["4", "waiting"]]


def test_a_range_makes_a_list_of_the_best():
    space = {"training.optimizer.lr": {"log": [0.01, 1]}, "rounds": [1, 2]}
    some = sweep_of(space, search="random", trials=30)
    trials = [
        result(some, n, {"training.optimizer.lr": 0.01 * (n + 1), "rounds": 1}, [0.01 * (n % 25)] * 2)
        for n in range(30)
    ]
    table = table_of(some, trials, some.goals[0])
    assert (table.goal, table.head) == ("linear", ["trial", "state", "rounds", "linear", "bytes a run", "why"])
    first, second, *_ = table.lines
    assert [line[0].text for line in (first, second)] == [
        f"{n}: training.optimizer.lr={lr}, rounds=1" for n, lr in ((24, 0.25), (23, 0.24))
    ]
    assert first[3].text == "24.00 ± 0.00% (n = 2)"
    assert len(table.lines) == 20
    assert table.remarks == ["The 20 best of 30 complete trials."]
