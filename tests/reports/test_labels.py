"""Figures of many systems: marks that differ, labels that cover neither each other nor a mark, nothing clipped."""

from itertools import combinations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from rayfed_ssl.reports.labels import mark_style, spread
from tune.studies.results.results import StudyResults, System, SystemRun
from tune.studies.results.system_figures import system_drawings
from tune.studies.results.systems import RANDOM

SYSTEMS = [f"System number {index}" for index in range(20)]


def results(seeds: int) -> StudyResults:
    """Twenty systems of close scores, most of which send as much as each other, and a random encoder."""
    rows = []
    for index, name in enumerate([*SYSTEMS, RANDOM]):
        num_bytes, knn = (0, 40_000_000, *[720_000_000] * 19)[index], 0.5 + 0.004 * index
        runs = [
            SystemRun(
                seed=seed,
                run=f"runs/{index}-{seed}",
                scores={"linear": 0.6 + 0.004 * index + 0.01 * seed, "knn": knn},
                bytes=num_bytes,
                seconds=1.0,
                state_sha256=None,
                epochs=[0, 15, 30],
                knn=[0.3, 0.4, knn],
            )
            for seed in range(seeds)
        ]
        rows.append(System(row=name, column="IID", runs=runs))
    return StudyResults(name="n", title="T", trials=[], tables=[], systems=rows, layout={"score": "linear"})


def settled(figure: Figure):
    figure.draw_without_rendering()
    return FigureCanvasAgg(figure).get_renderer()


@pytest.mark.parametrize("name", ["accuracy-over-bytes", "knn-over-epochs"])
@pytest.mark.parametrize("seeds", [1, 3])
def test_twenty_labels_cover_neither_each_other_nor_the_edge(name, seeds):
    figure = dict(system_drawings(results(seeds)))[name]()
    renderer, axes = settled(figure), figure.axes[0]
    texts = [text for text in axes.texts if text.get_text() in SYSTEMS]
    boxes = {
        text.get_text(): Text.get_window_extent(text, renderer) for text in texts
    }  # without the lines to the points
    assert set(boxes) == set(SYSTEMS)
    overlapping = [(a, b) for (a, x), (b, y) in combinations(boxes.items(), 2) if x.overlaps(y)]
    assert overlapping == []
    assert all(figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1 for box in boxes.values())
    assert all(figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1 for box in boxes.values())


def test_no_mark_is_clipped_and_one_seed_has_no_bar():
    for seeds in (1, 3):
        figure = dict(system_drawings(results(seeds)))["accuracy-over-bytes"]()
        settled(figure)
        axes = figure.axes[0]
        for container in axes.containers:
            ((x, y),) = axes.transAxes.inverted().transform(axes.transData.transform(container.lines[0].get_xydata()))
            assert 0.02 < x < 0.98
            assert 0.02 < y < 0.98
            assert bool(container.lines[2]) == (seeds > 1)


def test_marks_of_twenty_systems_differ_in_shape_or_fill():
    styles = [mark_style(index) for index in range(84)]
    assert len({(style["marker"], style["markerfacecolor"] == "none") for style in styles[:24]}) == 24
    assert len({(s["marker"], s["markerfacecolor"] == "none", to_hex(s["color"])) for s in styles}) == 84


def test_heights_move_apart_in_their_order_and_stay_below_the_top():
    assert spread([1.0, 5.0], 1.0, 9.0) == [1.0, 5.0]
    moved = spread([8.9, 1.0, 9.0, 8.8], 1.0, 9.0)
    assert moved == [8.0, 1.0, 9.0, 7.0]
