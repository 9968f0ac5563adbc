"""Figures of a search, by Optuna: trials in their order and over each parameter, and what decides."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tune.studies.definition.study import Study
from tune.studies.results.axes import axis_of, scale_of, title_of
from tune.studies.results.results import TrialResult
from tune.studies.results.table import key_of

MIN_TRIALS = 4
"""Complete trials from which on importances are computed."""

Drawing = tuple[str, Callable[[], Figure]]
"""A file's name without its ending, and what draws the figure."""


def search_drawings(study: Study, trials: Sequence[TrialResult], journal: Path) -> Iterator[Drawing]:
    """Give the figures that have a meaning for these trials, by name; `journal` is Optuna's storage."""
    complete = [trial for trial in trials if all(goal.score in trial.values for goal in study.goals)]
    if len(complete) < 2:
        return
    varied = [name for name in study.space.names if len({key_of(trial, name) for trial in complete}) > 1]
    for index, goal in enumerate(study.goals):
        several = len({trial.values[goal.score].mean for trial in complete}) > 1
        ending = f"-{goal.score}" if len(study.goals) > 1 else ""
        if len(study.goals) == 1:
            yield "history", partial(_plot, "optimization_history", study, journal, index)
        if len(varied) > 1 and len(complete) >= MIN_TRIALS and several:
            yield f"importances{ending}", partial(_plot, "param_importances", study, journal, index)
        if varied:
            yield f"slices{ending}", partial(_plot, "slice", study, journal, index)


def _plot(kind: str, study: Study, journal: Path, index: int) -> Figure:
    """Let Optuna draw one of its figures by a goal, in the unit of the tables but for the history."""
    import numpy as np
    import optuna
    from matplotlib import pyplot
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    opened = optuna.load_study(study_name=study.name, storage=JournalStorage(JournalFileBackend(str(journal))))
    goal = study.goals[index]
    settings: dict[str, Any] = {"target_name": axis_of(goal)}
    settings["target"] = lambda trial: scale_of(goal) * trial.values[index]
    if kind == "optimization_history":
        settings = {"target_name": goal.score}  # with a target Optuna does not draw the best so far
    if kind == "param_importances":
        settings["evaluator"] = optuna.importance.FanovaImportanceEvaluator(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls these figures experimental
        draw = getattr(optuna.visualization.matplotlib, f"plot_{kind}")
        drawn: Any = draw(opened, **settings)
    figure: Figure = np.ravel(drawn)[0].get_figure()
    figure.suptitle(title_of(study), fontsize=10)
    pyplot.close(figure)
    return figure
