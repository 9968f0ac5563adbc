"""Figures of a search: trials in their order, along all parameters and over each, and which parameters decide (Optuna)."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rayfed_ssl.reports.figures import BLUE, ORANGE
from rayfed_ssl.reports.html.figure import MUTED, PAPER
from tune.studies.definition.search_plan import Goal
from tune.studies.definition.space import Range, value_text
from tune.studies.definition.study import Study
from tune.studies.results.axes import axis_of, label_x_axis, positions, scale_of, text_of, title_of
from tune.studies.results.results import TrialResult
from tune.studies.results.table import key_of, keys_of
from tune.studies.results.trial_results import best_of

MIN_TRIALS = 4
"""Complete trials from which on importances are computed."""

Drawing = tuple[str, Callable[[], Figure]]
"""A file's name without its ending, and what draws the figure."""

Heights = tuple[list[float], list[tuple[float, str]]]
"""Where each trial crosses an axis, in [0, 1], and the axis's labels at their heights."""


def search_drawings(study: Study, trials: Sequence[TrialResult], journal: Path) -> Iterator[Drawing]:
    """Give the figures that have a meaning for these trials, by name; `journal` is Optuna's storage."""
    complete = [trial for trial in trials if all(goal.score in trial.values for goal in study.goals)]
    if len(complete) < 2:
        return
    varied = [name for name in study.space.names if len({key_of(trial, name) for trial in complete}) > 1]
    for index, goal in enumerate(study.goals):
        ending = f"-{goal.score}" if len(study.goals) > 1 else ""
        if len(study.goals) == 1:
            yield "history", partial(draw_history, study, complete, goal)
        if len(varied) > 1 and len(complete) >= MIN_TRIALS and len(set(_values(complete, goal))) > 1:
            yield f"importances{ending}", partial(draw_importances, study, journal, index)
        if index == 0 and len(study.space.names) > 1:
            yield f"parallel-coordinates{ending}", partial(draw_parallel, study, complete, goal)
        yield f"slices{ending}", partial(draw_slices, study, complete, goal)


def _values(trials: Sequence[TrialResult], goal: Goal) -> list[float]:
    return [scale_of(goal) * trial.values[goal.score].mean for trial in trials]


def draw_history(study: Study, trials: Sequence[TrialResult], goal: Goal) -> Figure:
    """Draw each trial's value, and the best so far."""
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    numbers, values = [trial.number for trial in trials], _values(trials, goal)
    best = list(accumulate(values, max if goal.maximize else min))
    axes.step(numbers, best, where="post", color=ORANGE, label="best so far")
    axes.plot(numbers, values, "o", color=BLUE, label="trial")
    axes.set(xlabel="trial", ylabel=axis_of(goal))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside lower left", ncols=2)
    figure.suptitle(title_of(study), fontsize=10)
    return figure


def draw_importances(study: Study, journal: Path, goal: int) -> Figure:
    """Draw the share of a goal's variance that each parameter explains, by Optuna's fANOVA."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    optuna_study = optuna.load_study(study_name=study.name, storage=JournalStorage(JournalFileBackend(str(journal))))
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    shares = optuna.importance.get_param_importances(
        optuna_study, evaluator=evaluator, target=lambda trial: trial.values[goal]
    )
    figure = Figure(figsize=(6, 1.4 + 0.4 * len(shares)), layout="constrained")
    axes = figure.add_subplot()
    bars = axes.barh(list(shares), [100 * share for share in shares.values()], color=BLUE)
    axes.bar_label(bars, fmt="%.0f", padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.1)
    axes.set(xlabel=f"share of the variance of {study.goals[goal].score} (%)")
    figure.suptitle(title_of(study), fontsize=10)
    return figure


def draw_slices(study: Study, trials: Sequence[TrialResult], goal: Goal) -> Figure:
    """Draw the trials' values over each parameter."""
    names, values, best = study.space.names, _values(trials, goal), best_of(trials, [goal])
    across = min(len(names), 3)
    down = -(-len(names) // across)
    figure = Figure(figsize=(max(4.5, 3.2 * across), 3.4 * down), layout="constrained")
    grid = figure.subplots(down, across, sharey=True, squeeze=False).ravel()
    for index, axes in enumerate(grid):
        if index >= len(names):
            axes.set_visible(False)
            continue
        xs = positions(study, trials, names[index])
        for trial, value in zip(trials, values, strict=True):
            color, marker = (ORANGE, "D") if trial is best else (BLUE, "o")
            axes.plot(xs[key_of(trial, names[index])], value, marker, color=color, zorder=3 if trial is best else 2)
        axes.margins(x=0.12)
        label_x_axis(axes, study, names[index], xs)
        axes.set_ylabel(axis_of(goal) if index % across == 0 else "")
    figure.suptitle(f"{title_of(study)}; diamond: the best trial", fontsize=10)
    return figure


def draw_parallel(study: Study, trials: Sequence[TrialResult], goal: Goal) -> Figure:
    """Draw each trial as a line across an axis for each parameter and one for the goal."""
    columns = [_of_parameter(study, trials, name) for name in study.space.names] + [_of_goal(trials, goal)]
    titles = [*(name.replace(".", ".\n") for name in study.space.names), axis_of(goal)]
    texts = [text for _, labels in columns for _, text in labels] + [
        line for title in titles for line in title.split("\n")
    ]
    longest, best = max(map(len, texts)), best_of(trials, [goal])
    figure = Figure(figsize=(1.5 + max(1.4, 0.085 * longest) * len(columns), 4), layout="constrained")
    axes = figure.add_subplot()
    for place, (_, labels) in enumerate(columns):
        axes.axvline(place, color=MUTED, linewidth=0.8)
        for height, text in labels:
            note = axes.annotate(text, (place, height), (4, 0), textcoords="offset points", fontsize=8, va="center")
            note.set(zorder=4, bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 1})
    for index, trial in enumerate(trials):
        color, width, alpha, order = (ORANGE, 2.0, 1.0, 3) if trial is best else (BLUE, 1.0, 0.5, 2)
        heights = [crossed[index] for crossed, _ in columns]
        axes.plot(range(len(columns)), heights, color=color, linewidth=width, alpha=alpha, zorder=order)
    axes.set_xticks(range(len(columns)), titles)
    axes.set(yticks=[], xlim=(-0.1, len(columns) - 0.6))
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    figure.suptitle(f"{title_of(study)}; thick: the best trial", fontsize=10)
    return figure


def _of_parameter(study: Study, trials: Sequence[TrialResult], name: str) -> Heights:
    parameter = study.space.parameters.get(name)
    if isinstance(parameter, Range):
        values = [float(json.loads(key_of(trial, name) or "0")) for trial in trials]
        return _along(values, *parameter.ends, is_log=parameter.is_log)
    keys = keys_of(study, trials, name)
    height = {key: index / (len(keys) - 1) if len(keys) > 1 else 0.5 for index, key in enumerate(keys)}
    return [height[key_of(trial, name)] for trial in trials], [(y, text_of(key)) for key, y in height.items()]


def _of_goal(trials: Sequence[TrialResult], goal: Goal) -> Heights:
    values = _values(trials, goal)
    return _along(values, min(values), max(values), is_log=False)


def _along(values: Sequence[float], low: float, high: float, *, is_log: bool) -> Heights:
    """Place numbers between two ends, which are labeled."""
    if low == high:
        return [0.5] * len(values), [(0.5, value_text(float(low)))]
    function: Callable[[float], float] = math.log if is_log else float
    heights = [(function(value) - function(low)) / (function(high) - function(low)) for value in values]
    return heights, [(0.0, value_text(float(low))), (1.0, value_text(float(high)))]
