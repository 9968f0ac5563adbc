"""Optuna's own figures of a sweep, from `study.journal`: history, importances, parallel coordinates, slices, the front."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from tune.sweeps.definition.schema import Goal, Sweep
from tune.sweeps.results.trial_results import TrialResult

MIN_TRIALS = 4
"""Complete trials from which on importances are computed."""

Drawing = tuple[str, Callable[[], Figure]]


def optuna_drawings(sweep: Sweep, trials: Sequence[TrialResult], journal: Path) -> Iterator[Drawing]:
    """Give the figures that have a meaning, by name.

    Args:
        sweep: Whose.
        trials: Its trials.
        journal: Optuna's storage.
    """
    complete = [trial for trial in trials if all(goal.score in trial.measured for goal in sweep.goals)]
    if len(complete) < 2 or not journal.is_file():
        return
    several = len(sweep.goals) > 1
    for index, goal in enumerate(sweep.goals):
        ending = f"-{goal.score}" if several else ""
        for name in _names(sweep, complete, goal):
            yield name + ending, _drawing(name, sweep, journal, index)
    if len(sweep.goals) == 2:
        yield "pareto", _drawing("pareto", sweep, journal, None)


def _names(sweep: Sweep, complete: Sequence[TrialResult], goal: Goal) -> Iterator[str]:
    first = goal == sweep.goals[0]
    if len(sweep.goals) == 1:
        yield "history"
    varied = [name for name in sweep.space.names if len({str(trial.point[name]) for trial in complete}) > 1]
    values = {trial.measured[goal.score].mean for trial in complete}
    if len(varied) > 1 and len(complete) >= MIN_TRIALS and len(values) > 1:
        yield "importances"
    if first and len(sweep.space.names) > 1:
        yield "parallel-coordinates"
    yield "slices"


def _drawing(name: str, sweep: Sweep, journal: Path, goal: int | None) -> Callable[[], Figure]:
    def draw() -> Figure:
        with _without_windows(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna calls all of these experimental
            return _draw(name, sweep, _load(sweep, journal), goal)

    return draw


def _load(sweep: Sweep, journal: Path) -> Any:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.load_study(study_name=sweep.name, storage=JournalStorage(JournalFileBackend(str(journal))))


def _draw(name: str, sweep: Sweep, study: Any, goal: int | None) -> Figure:
    from optuna.importance import FanovaImportanceEvaluator
    from optuna.visualization import matplotlib as plots

    about: dict[str, Any] = {}
    if goal is not None:
        # Of one goal Optuna takes the value itself, and knows whether more is better.
        of_several = len(sweep.goals) > 1
        about = {"target_name": sweep.goals[goal].score}
        about |= {"target": lambda trial: trial.values[goal]} if of_several else {}
    if name == "history":
        return _figure_of(plots.plot_optimization_history(study, **about), (8, 4.2))
    if name == "importances":
        evaluator = FanovaImportanceEvaluator(seed=0)
        return _figure_of(plots.plot_param_importances(study, evaluator, **about), (7, 3.6))
    num = len(sweep.space.names)
    if name == "parallel-coordinates":
        return _readable(_figure_of(plots.plot_parallel_coordinate(study, **about), (4.0 + 2.4 * num, 4.8)))
    if name == "slices":
        return _figure_of(plots.plot_slice(study, **about), (2.5 + 3.2 * num, 4.2))
    return _figure_of(plots.plot_pareto_front(study, target_names=[one.score for one in sweep.goals]), (7, 4.2))


def _figure_of(drawn: Any, size: tuple[float, float]) -> Figure:
    """Take the figure that Optuna has drawn off Matplotlib's list of windows.

    Args:
        drawn: Its axes, one or several.
        size: Width and height in inches.
    """
    import matplotlib.pyplot as plt
    import numpy as np

    figure: Figure = np.ravel(drawn)[0].figure
    plt.close(figure)
    figure.set_size_inches(*size)
    return figure


def _readable(figure: Figure) -> Figure:
    """Show the palest of the parallel lines on gray, and move the scale of their colors off the names on the last axis."""
    names = [tick.get_text() for axes in figure.axes for tick in axes.get_yticklabels()]
    letters = max(
        (8 if "$" in name else len(name) for name in names), default=0
    )  # a power of ten is written as a formula
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
