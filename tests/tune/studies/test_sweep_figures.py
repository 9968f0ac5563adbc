"""Figures of sweeps: which are drawn, what is in them, and that they are the same each time."""

import shutil
import warnings

import matplotlib
import pytest

from tests.tune.studies.swept import ended, result
from tune.studies.definition.files import load_study
from tune.studies.results.figures import draw_curves, draw_study, draw_trade_off
from tune.studies.results.summary import summarize_study

CURVE = {
    "recipe": "digits",
    "title": "A curve",
    "seeds": 2,
    "rows": {"A": None, "B": None},
    "space": {"rounds": [4, 1, 2, 10], "clients.number": [2, 3]},
    "figure": {"x": "rounds", "lines": "row", "panels": "clients.number"},
}


def curve(**others):
    sweep = load_study({**CURVE, **others})
    points = [
        {"rounds": rounds, "row": row, "clients.number": number}
        for rounds in (4, 1, 2, 10)
        for row in "AB"
        for number in (2, 3)
    ]
    values = [[0.2 + 0.01 * n, 0.3 + 0.01 * n] for n in range(len(points))]
    return sweep, [result(sweep, n, point, values[n]) for n, point in enumerate(points)]


def test_a_curve_has_a_panel_a_line_and_a_point_for_each_value():
    sweep, trials = curve()
    figure = draw_curves(sweep, trials, sweep.goals[0], "A curve")
    assert [axes.get_title() for axes in figure.axes] == ["clients.number=2", "clients.number=3"]
    assert [axes.get_ylabel() for axes in figure.axes] == ["linear (%)", ""]
    for axes in figure.axes:
        assert (axes.get_xscale(), axes.get_xlabel()) == ("log", "rounds")
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2", "4", "10"]
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["A", "B"]
    line, _, (bars,) = figure.axes[1].containers[1]
    assert list(line.get_xdata()) == [1, 2, 4, 10]
    assert list(line.get_ydata()) == pytest.approx([32, 36, 28, 40])
    lengths = [segment[1][1] - segment[0][1] for segment in bars.get_segments()]
    assert lengths == pytest.approx([2 * 10 / 2**0.5] * 4)


def test_a_point_is_the_best_over_what_is_not_shown_and_trials_without_result_are_left_out():
    sweep, trials = curve(figure={"x": "rounds", "lines": "row"})
    trials[0] = ended(sweep, 0, trials[0].point, "stopped")
    (axes,) = draw_curves(sweep, trials, sweep.goals[0], "A curve").axes
    assert list(axes.containers[0][0].get_ydata()) == pytest.approx([30, 34, 26, 38])
    assert axes.get_title() == ""


@pytest.mark.parametrize(
    ("values", "scale", "labels"),
    [
        ([0, 0.01, 0.1, 1], "symlog", ["0", "0.01", "0.1", "1"]),
        ([1, 2, 3], "linear", ["1", "2", "3"]),
        ([-1, 1, 10, 100], "linear", ["-1", "1", "10", "100"]),
        (["a", "b"], "linear", ["a", "b"]),
    ],
)
def test_an_axis_is_logarithmic_where_positive_values_span_much(values, scale, labels):
    sweep = load_study({"recipe": "digits", "space": {"method.mu": values}, "figure": {"x": "method.mu"}})
    trials = [result(sweep, n, {"method.mu": value}, [0.5]) for n, value in enumerate(values)]
    (axes,) = draw_curves(sweep, trials, sweep.goals[0], "mu").axes
    assert axes.get_xscale() == scale
    assert [tick.get_text() for tick in axes.get_xticklabels()] == labels


def test_the_front_is_stepped_over_bytes():
    sweep = load_study({"recipe": "digits", "space": {"rounds": [1, 2, 4]}, "maximize": "knn", "minimize": "bytes"})
    values = {1: (0.5, 1_000_000), 2: (0.4, 2_000_000), 4: (0.75, 10_000_000)}
    trials = [
        result(sweep, n, {"rounds": rounds}, {"knn": [knn], "bytes": [moved]})
        for n, (rounds, (knn, moved)) in enumerate(values.items())
    ]
    (axes,) = draw_trade_off(sweep, trials, sweep.goals, "Costs").axes
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale()) == ("bytes (MB)", "knn (%)", "log")
    steps = axes.lines[0]
    assert (list(steps.get_xdata()), list(steps.get_ydata())) == ([1, 10], [50, 75])
    assert sorted(text.get_text() for text in axes.texts) == ["trial 0", "trial 2"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["Pareto front", "1", "2", "4"]


def test_a_grid_is_drawn_without_a_word(swept_grid, tmp_path):
    before, results = dict(matplotlib.rcParams), summarize_study(swept_grid)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert draw_study(swept_grid.study, results, tmp_path) == (
            [f"figures/linear-over-rounds.{e}" for e in ("png", "svg")],
            [],
        )
    assert all(path.stat().st_size > 5000 for path in (tmp_path / "figures").iterdir())
    assert dict(matplotlib.rcParams) == before
    first = {path: path.read_bytes() for path in (tmp_path / "figures").iterdir()}
    shutil.rmtree(tmp_path / "figures")
    draw_study(swept_grid.study, results, tmp_path)
    assert {path: path.read_bytes() for path in (tmp_path / "figures").iterdir()} == first
