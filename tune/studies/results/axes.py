"""What the figures of a sweep share: titles, units of goals, and axes of parameters."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.ticker import LogLocator, NullLocator

from tune.studies.definition.search_plan import BYTES, Goal
from tune.studies.definition.space import Range, value_text
from tune.studies.definition.study import Study
from tune.studies.execution.trial_table import unit_of
from tune.studies.results.results import TrialResult
from tune.studies.results.table import Key, is_continuous, key_of, keys_of
from tune.studies.results.trial_results import heading

WIDE_RANGE = 8
"""Numbers that span such a factor stand on a logarithmic axis."""

LETTERS = 30
"""Letters of tick labels that fit beside each other under a panel."""


LOG_TICKS = ((0.7, (1, 1.5, 2, 3, 5, 7)), (1.5, (1, 2, 5)), (3, (1, 3)), (math.inf, (1,)))
"""Leading digits of the ticks of a logarithmic axis by the orders of magnitude, below these, that it spans."""


def title_of(study: Study) -> str:
    """Title a figure."""
    return study.heading + (f" ({study.source})" if study.source else "")


def scale_of(goal: Goal) -> float:
    """What a goal's values are multiplied by in figures: percent and megabytes."""
    return {"bytes": 1e-6, "percent": 100.0}.get(unit_of(goal.score), 1.0)


def axis_of(goal: Goal) -> str:
    """The label of a goal's axis."""
    return f"{goal.score} (MB)" if goal.score in BYTES else heading(goal.score)


def text_of(key: Key) -> str:
    """Write a parameter's value for people."""
    return "none" if key is None else value_text(json.loads(key))


def positions(study: Study, trials: Sequence[TrialResult], name: str) -> dict[Key, float]:
    """Place the values of a parameter on an axis, from left to right: numbers by their size, texts one after the other."""
    present = {key_of(trial, name) for trial in trials}
    keys = [key for key in keys_of(study, trials, name) if key is not None and key in present]
    if _are_numbers(keys):
        return dict(sorted(((key, float(json.loads(key))) for key in keys), key=lambda pair: pair[1]))
    return {key: float(place) for place, key in enumerate(keys)}


def _are_numbers(keys: Sequence[str]) -> bool:
    return all(isinstance(value := json.loads(key), int | float) and not isinstance(value, bool) for key in keys)


def label_x_axis(axes: Axes, study: Study, name: str, xs: Mapping[Key, float]) -> None:
    """Name the x axis of a panel, and write the parameter's values along it; what it shows has to be drawn."""
    axes.set_xlabel(name)
    values = list(xs.values())
    positive = [value for value in values if value > 0]
    parameter = study.space.parameters.get(name)
    wide = len(positive) > 2 and values[0] >= 0 and positive[-1] >= WIDE_RANGE * positive[0]
    is_log = _are_numbers([key for key in xs if key is not None]) and (
        parameter.is_log if isinstance(parameter, Range) else wide
    )
    if is_log:
        linear = {"linthresh": positive[0]} if len(positive) < len(values) else {}
        axes.set_xscale("symlog" if linear else "log", **linear)
    if is_continuous(study, name):
        plain_ticks(axes, is_log)
        return
    labels = [text_of(key) for key in xs]
    slanted: Any = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(values, labels, **(slanted if len(" ".join(labels)) > LETTERS else {}))
    axes.xaxis.set_minor_locator(NullLocator())


def plain_ticks(axes: Axes, is_log: bool) -> None:
    """Write numbers on the x axis without powers of ten; over orders of magnitude as many of each as fit."""
    if is_log:
        low, high = axes.get_xlim()
        digits = next(digits for decades, digits in LOG_TICKS if math.log10(high / low) < decades)
        axes.xaxis.set_major_locator(LogLocator(subs=digits))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())


def add_legend(axes: Axes, **settings: Any) -> None:
    """Add a legend that shows lines and marks as they are drawn, without the bars of their errors."""
    handles, labels = axes.get_legend_handles_labels()
    marks = [handle[0] if isinstance(handle, ErrorbarContainer) else handle for handle in handles]
    axes.legend(marks, labels, fontsize=8, title_fontsize=8, **settings)
