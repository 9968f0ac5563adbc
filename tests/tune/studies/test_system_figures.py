"""Figures of many systems beside a baseline: each has a name and a mark, and nothing is clipped."""

import pytest

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


@pytest.mark.parametrize("name", ["accuracy-over-bytes", "knn-over-epochs"])
def test_the_legend_names_every_system_within_the_figure(name):
    figure = dict(system_drawings(results(3)))[name]()
    figure.draw_without_rendering()
    legend = figure.axes[0].get_legend()
    assert {text.get_text() for text in legend.texts} == {*SYSTEMS, "random encoder"}
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1


@pytest.mark.parametrize("seeds", [1, 3])
def test_no_mark_is_clipped_and_one_seed_has_no_bar(seeds):
    figure = dict(system_drawings(results(seeds)))["accuracy-over-bytes"]()
    figure.draw_without_rendering()
    axes = figure.axes[0]
    for container in axes.containers:
        ((x, y),) = axes.transAxes.inverted().transform(axes.transData.transform(container.lines[0].get_xydata()))
        assert 0.02 < x < 0.98
        assert 0.02 < y < 0.98
        assert bool(container.lines[2]) == (seeds > 1)
