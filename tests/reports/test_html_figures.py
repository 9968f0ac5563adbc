"""Figures of the report: what is drawn of diagnostics and features, how figures enter the page, the paper's table."""

import re
import resource
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from matplotlib.figure import Figure

from rayfed_ssl.analysis.diagnosis import Diagnostics
from rayfed_ssl.analysis.embedding import tsne
from rayfed_ssl.reports.figures import Line
from rayfed_ssl.reports.html.charts import Plot, bar_plot, line_plot
from rayfed_ssl.reports.html.data_plots import SampleFeatures, embedding_plot
from rayfed_ssl.reports.html.figure import FigureWriter
from rayfed_ssl.reports.html.page import score_title
from rayfed_ssl.reports.html.record_plots import client_plot, diagnostic_plots, matrix_plot, negatives_plot
from rayfed_ssl.reports.html.sources import open_sources
from rayfed_ssl.reports.style import BLUE, clean, save_figure, styled
from tests.reports.fabricated import DIAGNOSTICS


@pytest.fixture
def diagnosed():
    return Diagnostics.model_validate(DIAGNOSTICS)


def test_a_matrix_is_drawn_with_its_range_and_a_pair_without_a_number_is_empty(diagnosed):
    plot = matrix_plot("cka", diagnosed.matrices["cka"])
    figure = plot.figure
    image = figure.axes[0].images[0]
    assert image.get_clim() == (0, 1)
    assert image.get_array().mask.tolist() == [[False, True], [True, False]]
    assert [text.get_text() for text in figure.axes[0].texts] == ["1", "1"]
    assert [cell.text for cell in plot.table.lines[0]] == ["client-0", "1", "–"]


def test_false_negatives_are_drawn_and_listed(diagnosed):
    negatives = negatives_plot(diagnosed)
    widths = [[patch.get_width() for patch in bars] for bars in negatives.figure.axes[0].containers]
    assert widths == [[50, 25], [25, 12.5]]
    assert [cell.text for cell in negatives.table.lines[0]] == ["client 0", "50.00%", "25.00%"]


def features() -> SampleFeatures:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), (4, 7, 9))
    values = np.eye(5)[labels] * 3 + rng.normal(size=(20, 5)) * 0.1
    return SampleFeatures("global", values.astype(np.float32), labels, ("ant", "bee", "cow"), 2**62 + 1)


def test_classes_are_named_where_they_lie():
    sample = features()
    plot = embedding_plot(sample)
    axes = plot.figure.axes[0]
    points = np.concatenate([np.asarray(drawn.get_offsets()) for drawn in axes.collections])
    named = {text.get_text(): text.get_position() for text in axes.texts}
    assert set(named) == {"ant", "bee", "cow"}
    for label, name in enumerate(sample.classes):
        assert np.allclose(named[name], np.median(points[sample.labels == label], axis=0), atol=1e-9)


def test_names_of_classes_that_lie_in_one_place_do_not_overlap():
    rng = np.random.default_rng(0)
    names = tuple(f"a long name {label}" for label in range(12))
    values = rng.normal(size=(120, 5)).astype(np.float32)
    figure = embedding_plot(SampleFeatures("global", values, np.repeat(np.arange(12), 10), names, 0)).figure
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_an_embedding_is_seeded_and_keeps_classes_apart():
    sample = features()
    points = tsne(sample.values, sample.seed)
    assert points.shape == (20, 2)
    assert np.array_equal(points, tsne(sample.values, sample.seed))
    distances = np.linalg.norm(points[:, None] - points[None], axis=2) + np.diag(np.full(20, np.inf))
    assert (sample.labels[distances.argmin(axis=1)] == sample.labels).all()


def toy(title: str) -> Plot:
    with styled():
        figure = Figure(figsize=(2, 1))
        axes = figure.add_subplot()
        axes.plot([0, 1], color=BLUE, label=clean(title))
        axes.legend()
    return Plot("toy", title, f"A line: {title}.", figure)


def test_a_figure_takes_the_colors_of_the_page_and_keeps_its_own_in_files(tmp_path):
    figure = FigureWriter(tmp_path / "figures").render(toy('$\\frac{ "<b>&\x07'), "part", "made here")
    svg = (tmp_path / "figures" / "part-toy.svg").read_text()
    assert "var(--" not in svg
    assert "#0072b2" in svg
    assert "stroke: var(--blue)" in figure.svg
    assert not re.findall(r'style="[^"]*#(?:1b2530|4d5966|0072b2|ffffff)', figure.svg)
    assert 'aria-label="A line: $\\frac{ &quot;&lt;b&gt;&amp;' in figure.svg
    assert "<b>" not in figure.svg
    assert "\x07" not in figure.svg
    assert figure.files == ("figures/part-toy.svg", "figures/part-toy.png")


@pytest.fixture
def full_disk():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write_on_a_full_disk(folder):
    FigureWriter(folder).render(toy("line"), "part", "made here")


@pytest.mark.parametrize(
    "write", [write_on_a_full_disk, lambda folder: save_figure(toy("line").figure, folder / "part-toy.svg")]
)
def test_a_full_disk_is_an_error_that_names_the_file(tmp_path, full_disk, write):
    with pytest.raises(OSError, match=r"File too large: '.*part-toy.svg'"):
        write(tmp_path)


def test_two_figures_of_one_name_have_files_and_addresses_of_their_own(tmp_path):
    writer = FigureWriter(tmp_path / "figures")
    first, second = (writer.render(toy("line"), "A b", "made here") for _ in range(2))
    assert first.files[0] == "figures/a-b-toy.svg"
    assert second.files[0] == "figures/a-b-toy-2.svg"
    addresses = [set(re.findall(r'\bid="([^"]+)"', figure.svg)) for figure in (first, second)]
    assert not addresses[0] & addresses[1]
    references = set(re.findall(r'(?:url\(|xlink:href=")#([^")]+)', first.svg))
    assert references
    assert references <= addresses[0]


def test_range_and_quartiles_of_a_diagnostic_are_bands_of_its_one_figure():
    values = {"": 40.0, "_min": 10.0, "_max": 80.0, "_lower": 30.0, "_upper": 50.0}
    rows = [
        {"round": round, "participant": "server", "name": f"diag_angle{suffix}", "value": value + round}
        for round in (1, 2)
        for suffix, value in values.items()
    ]
    (plot,) = diagnostic_plots(rows)
    ranges = [f"mean, {name}" for name in ("minimum", "maximum", "lower quartile", "upper quartile")]
    assert plot.table.head == ["round", "mean", *ranges]
    numbers = [[cell.mean for cell in line] for line in plot.table.lines]
    assert numbers == [[1, 41, 11, 81, 31, 51], [2, 42, 12, 82, 32, 52]]
    (axes,) = plot.figure.axes
    assert len(axes.lines) == 1
    ends = [(band.get_datalim(axes.transData).y0, band.get_datalim(axes.transData).y1) for band in axes.collections]
    assert ends == [(11, 82), (31, 52)]


def test_clients_that_train_alone_have_bars_and_one_without_a_score_has_none(sweep):
    alone, together = (open_sources([sweep / name]).runs[0].summary for name in ("local-0", "flesd-0"))
    assert client_plot(together) is None
    scores = {"client-0": {"knn": 0.5, "linear": 0.25}, "client-1": {"knn": 0.75}}
    plot = client_plot(replace(alone, scores=scores))
    (axes,) = plot.figure.axes
    assert sorted(bar.get_width() for bar in axes.patches) == [25, 50, 75]
    assert plot.note == "Mean over clients: linear probe, last epoch 25.00%, kNN 62.50%."


def test_axes_of_few_equal_numbers_have_ticks_that_can_be_read():
    with styled():
        bars = bar_plot("bytes", "Bytes", "kind", ["statistics"], {"up": [160], "down": [160]}, "bytes")
        line = line_plot("loss", "Loss", "loss", [Line("loss", {1: 0.5})])
    for plot, ticks in ((bars, {"0.00000", "0.00004", "0.00008", "0.00012", "0.00016"}), (line, {"1"})):
        plot.figure.draw_without_rendering()
        (axes,) = plot.figure.axes
        low, high = axes.get_xlim()
        labels = [label for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high]
        assert {label.get_text() for label in labels} == ticks


def test_scores_say_whether_they_are_last_or_best():
    names = ["knn", "supervised", "linear", "linear_best", "linear-moco_best"]
    assert [score_title(name) for name in names] == [
        "kNN",
        "supervised classifier",
        "linear probe, last epoch",
        "linear probe, best epoch",
        "linear-moco, best epoch",
    ]


@pytest.mark.parametrize("width", ["500pt", "1.2.3pt", "...pt", "1e9pt"])
def test_a_picture_of_somebody_else_has_any_width(width, tmp_path):
    (tmp_path / "theirs.svg").write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}"></svg>')
    figure = FigureWriter(tmp_path / "figures").embed(tmp_path / "theirs.svg", "title", "alt", "origin")
    assert "data:image/svg+xml;base64," in figure.svg
