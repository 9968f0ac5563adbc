"""What `compare` draws and notes: a mark for each system, nothing clipped, and differing data."""

from dataclasses import replace

import pyarrow as pa
import pytest
from matplotlib.container import ErrorbarContainer

from rayfed_ssl.clock.schedule import SCHEDULE
from rayfed_ssl.randomness.seeds import SERVER
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.clock_figure import schedule_figure, tasks_of, waiting_spans
from rayfed_ssl.reports.figures import comparison_figure
from rayfed_ssl.reports.style import dodged, mark_style, new_axes, scale_megabytes
from rayfed_ssl.reports.summary import score_differences, summarize


@pytest.fixture(scope="module")
def summaries(sweep):
    return [summarize(RunRecord.open(sweep / name)) for name in ("flesd-0", "flesd-1", "local-0")]


def changed(summary, section, **values):
    part = getattr(summary.config, section).model_copy(update=values)
    return replace(summary, config=summary.config.model_copy(update={section: part}))


def test_each_system_has_its_own_mark_and_name(summaries):
    other = changed(summaries[0], "model", encoder="resnet18")
    figure = comparison_figure([*summaries, replace(other, bytes_up=2 * other.bytes_up)])
    axes = figure.axes[0]
    names = ["flesd model.encoder=cnn", "local-0", "flesd-0 model.encoder=resnet18"]
    assert [text.get_text() for text in figure.legends[0].texts] == names
    assert [len(line.get_xdata()) for line in axes.lines] == [2, 1, 1]
    assert len({(line.get_marker(), line.get_color()) for line in axes.lines}) == 3


def test_no_mark_is_clipped(summaries):
    figure = comparison_figure(summaries)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    for line in axes.lines:
        places = axes.transAxes.inverted().transform(axes.transData.transform(line.get_xydata()))
        assert (places > 0.03).all()
        assert (places < 0.97).all()


def test_runs_of_equal_bytes_are_bars_with_two_standard_errors(summaries):
    first, second, _ = summaries
    other = replace(changed(second, "privacy", noise=0.5, clip=1.0), bytes_up=first.bytes_up + 1, samples=400)
    axes = comparison_figure([replace(first, samples=400), other]).axes[0]
    labels = [tick.get_text() for tick in axes.get_yticklabels()]
    assert labels == ["flesd-0 privacy.clip=null privacy.noise=0.0", "flesd-1 privacy.clip=1.0 privacy.noise=0.5"]
    assert axes.get_xlim()[0] == 0
    share = first.headline("linear")
    bars = next(container for container in axes.containers if isinstance(container, ErrorbarContainer))
    low, high = bars.lines[2][0].get_segments()[0][:, 0]
    assert high - low == pytest.approx(400 * (share * (1 - share) / 400) ** 0.5)


def test_equal_bytes_stand_beside_each_other_and_an_axis_does_not_enlarge_what_is_no_difference():
    assert dodged([5.0, 10.0, 10.01, 10.0]) == pytest.approx([5.0, 9.7, 10.01, 10.3])
    _, axes = new_axes()
    scale_megabytes(axes, [100.0, 100.1])
    assert axes.get_xlim()[0] == 0


def test_runs_on_other_data_are_noted(summaries):
    first, second, _ = summaries
    assert score_differences(summaries) is None
    assert score_differences([first, replace(second, fingerprint="0" * 64)]) == (
        f"the runs differ in fingerprint {first.fingerprint[:12]} and 000000000000: their accuracies do not compare"
    )
    resized = replace(changed(second, "data", name="cifar10", size=16), fingerprint="0" * 64)
    note = score_differences([first, resized])
    assert "data.size null and 16, dataset digits and cifar10" in note
    rescored = changed(second, "evaluation", train_limit=50)
    note = score_differences([first, rescored])
    assert note == "the runs differ in evaluation.train_limit null and 50: their accuracies do not compare"
    probe = first.config.evaluation.linear
    probed = changed(second, "evaluation", linear=replace(probe, epochs=probe.epochs + 1))
    assert score_differences([first, probed]) == (
        f"the runs differ in evaluation.linear.epochs {probe.epochs} and {probe.epochs + 1}: their accuracies do not compare"
    )
    note = score_differences([first, replace(rescored, fingerprint="0" * 64)])
    assert f"fingerprint {first.fingerprint[:12]} and 000000000000, evaluation.train_limit null and 50" in note


def test_marks_of_twenty_systems_differ_in_shape_or_fill():
    styles = [mark_style(index) for index in range(84)]
    assert len({(style["marker"], style["markerfacecolor"] == "none") for style in styles[:24]}) == 24
    assert len({(style["marker"], style["markerfacecolor"] == "none", style["color"]) for style in styles}) == 84


def test_virtual_time_in_which_no_device_works_is_found_and_shaded():
    rows = [(2, 0, "asked"), (5, 0, "uploaded"), (4, 1, "asked"), (6, 1, "gone"), (9, 2, "asked"), (10, 2, "uploaded")]
    rows += [(6, SERVER, "aggregated"), (12, SERVER, "aggregated"), (13, 0, "asked"), (15, 0, "gone")]
    columns = {"time": [10**9 * time for time, _, _ in rows], "client": [client for _, client, _ in rows]}
    columns |= {"event": [event for _, _, event in rows]}
    events = pa.table({name: columns.get(name, [1] * len(rows)) for name in SCHEDULE.names}).cast(SCHEDULE)
    assert (waiting_spans(events) / 10**9).tolist() == [[0, 2], [6, 9], [10, 12]]
    axes = schedule_figure(events, tasks_of(events), "title").axes[0]
    (shaded,) = (found for found in axes.collections if found.get_label() == "no device is at work")
    assert [path.vertices[:, 0].min() for path in shaded.get_paths()] == [0, 6, 10]
