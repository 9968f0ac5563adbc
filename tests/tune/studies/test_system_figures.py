"""Figures of many systems beside a baseline: each has a name and a mark, and nothing is clipped."""

from itertools import product

import pytest
from matplotlib.figure import Figure

from tune.studies.definition.files import load_study
from tune.studies.results.figures import draw_bytes
from tune.studies.results.paired_differences import RANDOM
from tune.studies.results.results import ScoreResult, TrialResult

SYSTEMS = [f"System number {index}" for index in range(20)]
STUDY = load_study({"title": "T", "rows": {name: {"recipe": "fedsimclr"} for name in SYSTEMS}, "baseline": SYSTEMS[0]})


def drawn(
    seeds: int, sent: tuple[float, ...] = (0.0, 4e7, *[7.2e8] * 19), columns: tuple[str, ...] = ("IID",)
) -> Figure:
    """Draw twenty systems of close scores, most of which send as much as each other, and a random encoder."""
    trials = []
    for (index, row), column in product(enumerate([*SYSTEMS, RANDOM]), columns):
        values = {"linear": ScoreResult.of([0.6 + 0.004 * index + 0.01 * seed for seed in range(seeds)])}
        facts = {"label": row, "state": "complete", "reason": "", "runs": [], "reached": 2, "rounds": 2}
        facts |= {"point": {"row": row, "column": column}, "seeds": list(range(seeds)), "values": values}
        trials.append(TrialResult.model_validate({"number": index, "bytes": sent[index]} | facts))
    return draw_bytes(STUDY, trials)


def test_the_legend_names_every_system_within_the_figure():
    figure = drawn(3)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.texts} == {*SYSTEMS, "random encoder"}
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1


@pytest.mark.parametrize("seeds", [1, 3])
def test_no_mark_is_clipped_and_one_seed_has_no_bar(seeds):
    figure = drawn(seeds)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    for container in axes.containers:
        ((x, y),) = axes.transAxes.inverted().transform(axes.transData.transform(container.lines[0].get_xydata()))
        assert 0.02 < x < 0.98
        assert 0.02 < y < 0.98
        assert bool(container.lines[2]) == (seeds > 1)


@pytest.mark.parametrize(
    ("sent", "ticks"),
    [([46.85e6] * 21, ["46.85"]), ([0.0] * 21, ["0"]), ([0.0, 1e8] + [1e6] * 19, ["0", "1", "10", "100"])],
    ids=["equal", "nothing", "wide"],
)
def test_equal_bytes_have_one_tick_and_all_splits_one_scale_and_legend(sent, ticks):
    figure = drawn(1, tuple(sent), ("IID", "skewed"))
    figure.draw_without_rendering()
    first, second = figure.axes
    low, high = first.get_xlim()
    assert [label.get_text() for label in first.get_xticklabels() if low <= label.get_position()[0] <= high] == ticks
    assert (first.get_xlim(), first.get_ylim()) == (second.get_xlim(), second.get_ylim())
    assert [axes.get_title() for axes in figure.axes] == ["IID", "skewed"]
    assert len(figure.legends[0].texts) == 21
