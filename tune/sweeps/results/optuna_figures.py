"""Optuna's own figures of a sweep, from `study.journal`: history, importances, parallel coordinates, slices, the front."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from rayfed_ssl.reports.sweep_results import TrialResult
from tune.sweeps.definition.schema import Sweep

MIN_TRIALS = 4
"""Complete trials from which on importances are computed."""

Drawing = tuple[str, Callable[[], Figure]]
"""A file's name without its ending, and what draws the figure."""


def optuna_drawings(sweep: Sweep, trials: Sequence[TrialResult], journal: Path) -> Iterator[Drawing]:
    """Give the figures that have a meaning for these trials, by name; `journal` is Optuna's storage."""
    complete = [trial for trial in trials if all(goal.score in trial.values for goal in sweep.goals)]
    if len(complete) < 2 or not journal.is_file():
        return
    varied = [name for name in sweep.space.names if len({str(trial.point[name]) for trial in complete}) > 1]
    for index, goal in enumerate(sweep.goals):
        names = ["history"] if len(sweep.goals) == 1 else []
        values = {trial.values[goal.score].mean for trial in complete}
        if len(varied) > 1 and len(complete) >= MIN_TRIALS and len(values) > 1:
            names.append("importances")
        if index == 0 and len(sweep.space.names) > 1:
            names.append("parallel-coordinates")
        for name in [*names, "slices"]:
            yield name + (f"-{goal.score}" if len(sweep.goals) > 1 else ""), partial(_draw, name, sweep, journal, index)
    if len(sweep.goals) == 2:
        yield "pareto", partial(_draw, "pareto", sweep, journal, 0)


def _draw(name: str, sweep: Sweep, journal: Path, goal: int) -> Figure:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.visualization import matplotlib as plots

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    num, about = len(sweep.space.names), dict[str, Any](target_name=sweep.goals[goal].score)
    if len(sweep.goals) > 1:  # of one goal Optuna takes the value itself, and knows whether more is better
        about["target"] = lambda trial: trial.values[goal]
    with _without_windows(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls all of these experimental
        study = optuna.load_study(study_name=sweep.name, storage=JournalStorage(JournalFileBackend(str(journal))))
        if name == "history":
            return _figure_of(plots.plot_optimization_history(study, **about), (8, 4.2))
        if name == "importances":
            evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
            return _figure_of(plots.plot_param_importances(study, evaluator, **about), (7, 3.6))
        if name == "parallel-coordinates":
            return _readable(_figure_of(plots.plot_parallel_coordinate(study, **about), (4.0 + 2.4 * num, 4.8)))
        if name == "slices":
            return _figure_of(plots.plot_slice(study, **about), (2.5 + 3.2 * num, 4.2))
        scores = [goal.score for goal in sweep.goals]
        return _figure_of(plots.plot_pareto_front(study, target_names=scores), (7, 4.2))


def _figure_of(drawn: Any, size: tuple[float, float]) -> Figure:
    """Take the figure of axes that Optuna has drawn off Matplotlib's list of windows; `size` is in inches."""
    import matplotlib.pyplot as plt
    import numpy as np

    figure: Figure = np.ravel(drawn)[0].figure
    plt.close(figure)
    figure.set_size_inches(*size)
    return figure


def _readable(figure: Figure) -> Figure:
    """Show the palest of the parallel lines on gray, and move the scale of their colors off the names on the last axis."""
    names = [tick.get_text() for axes in figure.axes for tick in axes.get_yticklabels()]
    letters = max((8 if "$" in name else len(name) for name in names), default=0)  # "$": a power of ten, a formula
    wide = 0.09 * letters / figure.get_figwidth()
    figure.axes[0].set_facecolor("0.9")
    for axes in figure.axes:
        if axes.get_label() == "<colorbar>":
            place = axes.get_position()
            axes.set_position((place.x0 + wide, place.y0, place.width, place.height))
    return figure


@contextmanager
def _without_windows() -> Iterator[None]:
    """Draw into memory, whatever Matplotlib would draw into, and keep Optuna's style from figures that are not its own."""
    before = matplotlib.get_backend()
    matplotlib.use("agg")
    try:
        with matplotlib.rc_context():
            yield
    finally:
        matplotlib.use(before)
