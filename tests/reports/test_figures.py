"""What `compare` draws and notes: a mark for each system, nothing clipped, and differing data."""

from dataclasses import replace

import pytest

from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.figures import comparison_figure, system_names
from rayfed_ssl.reports.style import mark_style
from rayfed_ssl.reports.summary import score_differences, summarize


@pytest.fixture(scope="module")
def summaries(sweep):
    return [summarize(RunRecord.open(sweep / name)) for name in ("flesd-0", "flesd-1", "local-0")]


def changed(summary, section, **values):
    part = getattr(summary.config, section).model_copy(update=values)
    return replace(summary, config=summary.config.model_copy(update={section: part}))


def test_each_system_has_its_own_mark_and_name(summaries):
    other = changed(summaries[0], "model", encoder="resnet18")
    figure = comparison_figure([*summaries, other])
    axes = figure.axes[0]
    names = ["flesd, cnn", "local, cnn", "flesd, resnet18"]
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


def test_systems_of_one_kind_are_named_by_their_methods(summaries):
    assert system_names(summaries) == ["flesd", "flesd", "local"]


def test_runs_on_other_data_are_noted(summaries):
    first, second, _ = summaries
    assert score_differences(summaries) is None
    assert score_differences([first, replace(second, fingerprint="0" * 64)]) == (
        f"the runs differ in fingerprint {first.fingerprint[:12]} and 000000000000: their accuracies do not compare"
    )
    resized = replace(changed(second, "data", name="cifar10", size=16), fingerprint="0" * 64)
    note = score_differences([first, resized])
    assert f"data.size {first.config.data.size} and 16, dataset digits and cifar10" in note
    rescored = changed(second, "evaluation", train_limit=50)
    note = score_differences([first, rescored])
    assert note == "the runs differ in evaluation.train_limit None and 50: their accuracies do not compare"
    note = score_differences([first, replace(rescored, fingerprint="0" * 64)])
    assert f"fingerprint {first.fingerprint[:12]} and 000000000000, evaluation.train_limit None and 50" in note


def test_marks_of_twenty_systems_differ_in_shape_or_fill():
    styles = [mark_style(index) for index in range(84)]
    assert len({(style["marker"], style["markerfacecolor"] == "none") for style in styles[:24]}) == 24
    assert len({(style["marker"], style["markerfacecolor"] == "none", style["color"]) for style in styles}) == 84
