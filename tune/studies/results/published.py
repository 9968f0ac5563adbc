"""A study's cells beside the published numbers: the table in the paper's layout, and the agreement in order."""

import math
from collections.abc import Sequence
from itertools import combinations

from rayfed_ssl.config.schema import Config
from tune.studies.definition.comparable import other_data, unlike
from tune.studies.definition.schema import COLUMN, ROW
from tune.studies.definition.study import Study
from tune.studies.definition.trial_configs import run_of
from tune.studies.results.results import Agreement, TableCell, TableLine, TableResult, TrialResult

CAUTION = (
    "cpu size: far fewer, smaller photographs and fewer epochs than in the paper, and mostly a small CNN. These numbers "
    "are comparable with each other, and with the published ones in their order alone."
)


def scale_of(unit: str) -> float:
    """What a score is multiplied by in a table of a unit."""
    return 100.0 if unit == "percent" else 1.0


def with_published(study: Study, trials: Sequence[TrialResult]) -> list[TrialResult]:
    """Add the published numbers and our differences from those that are of the same dataset and score."""
    differing, added = unlike(study), []
    for trial in trials:
        cell = study.cell(trial.point)
        reason = differing.get((trial.point[ROW], trial.point[COLUMN]))
        value = trial.values.get(cell.score or "")
        comparable = cell.published if reason is None else None
        difference = None if value is None or comparable is None else scale_of(study.unit) * value.mean - comparable
        changes = {"published": cell.published, "unlike": reason, "difference": difference}
        added.append(trial.model_copy(update=changes))
    return added


def published_table(study: Study, trials: Sequence[TrialResult], skipped: Sequence[str]) -> TableResult:
    """Lay out the table: a cell holds mean ± std, the published number and the difference."""
    places = {(trial.point[ROW], trial.point[COLUMN]): trial for trial in trials}
    columns = [column for column in study.axes[COLUMN] if column not in skipped]
    lines = [
        TableLine(label=row, cells=[_cell(study, places.get((row, column))) for column in columns])
        for row in study.axes[ROW]
    ]
    title = f"Ours, the paper's, and the difference ({'%' if study.unit == 'percent' else study.unit})"
    remark = "Each cell: ours, mean ± standard deviation over seeds [published; difference]."
    return TableResult(goal=study.score or "", title=title, head=["", *columns], lines=lines, remarks=[remark])


def _cell(study: Study, trial: TrialResult | None) -> TableCell:
    if trial is None:
        return TableCell(text="")
    value = trial.values.get(trial.score or "")
    mean, std = (None, None) if value is None else (value.mean, value.std)
    return TableCell(text=describe(study, trial), trial=trial.number, mean=mean, std=std)


def describe(study: Study, trial: TrialResult) -> str:
    """Write a cell for people: "71.20 ± 0.31 [75.6; -4.4]"."""
    value, scale = trial.values.get(trial.score or ""), scale_of(study.unit)
    if value is None:
        ours = "failed" if trial.reason else "-"
    else:
        ours = f"{scale * value.mean:.2f}" + ("" if value.std is None else f" ± {scale * value.std:.2f}")
        ours += f" ({len(value.each)} of {len(trial.seeds)} seeds)" * (len(value.each) < len(trial.seeds))
    if trial.published is None:
        return ours
    difference = "" if trial.difference is None else f"; {trial.difference:+.1f}"
    return f"{ours} [{trial.published:g}{difference}]"


def agreement_of(study: Study, trials: Sequence[TrialResult]) -> Agreement:
    """Compare the order of the trials whose numbers are comparable with that of the published numbers."""
    compared = [
        (trial.point[COLUMN], trial.published + trial.difference, trial.published)
        for trial in trials
        if trial.published is not None and trial.difference is not None
    ]
    names = dict.fromkeys(column for column, _, _ in compared)
    within = {name: kendall([(a, b) for column, a, b in compared if column == name]) for name in names}
    return Agreement(cells=len(compared), kendall=kendall([(a, b) for _, a, b in compared]), columns=within)


def kendall(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Kendall's rank correlation tau-b of pairs; None where one side has fewer than two different values."""
    agree = tied_left = tied_right = 0
    for (a, b), (c, d) in combinations(pairs, 2):
        left, right = (a > c) - (a < c), (b > d) - (b < d)
        agree += left * right
        tied_left += left == 0
        tied_right += right == 0
    number = len(pairs) * (len(pairs) - 1) // 2
    scale = math.sqrt((number - tied_left) * (number - tied_right))
    return agree / scale if scale else None


def title_with_data(study: Study) -> str:
    """The title, with the datasets that stand in for the table's."""
    return ", ".join([study.heading, *(f"with {data}" for data in other_data(study))])


def published_remarks(study: Study, trials: Sequence[TrialResult], agreement: Agreement) -> list[str]:
    """What a reader of the table has to know, a line each."""
    lines = [CAUTION] * (study.size == "cpu") + _training_notes(study)
    if kinds := list(dict.fromkeys(trial.unlike for trial in trials if trial.unlike is not None)):
        note = "No difference and no part in the order where ours are of another dataset or score than the published"
        lines.append(f"{note}: {'; '.join(kinds)}.")
    if agreement.kendall is not None:
        within = ", ".join(f"{name} {tau:+.2f}" for name, tau in agreement.columns.items() if tau is not None)
        order = f"Order, Kendall's tau-b over {agreement.cells} cells: {agreement.kendall:+.2f}"
        lines.append(order + (f"; by column: {within}" if within else ""))
    return lines


def _training_notes(study: Study) -> list[str]:
    """Say what the runs of each row train with: objective, optimizer, learning rate and views; equal rows share a line."""
    by_row: dict[str, dict[str, None]] = {}
    for point in study.points():
        run = run_of(study, point, 0)
        by_row.setdefault(point[ROW], {})[_training(run.first.config if run.first else run.config)] = None
    by_text: dict[str, list[str]] = {}
    for row, texts in by_row.items():
        by_text.setdefault("; or ".join(texts), []).append(row)
    return [f"Training of {', '.join(rows)}: {text}." for text, rows in by_text.items()]


def _training(config: Config) -> str:
    objective, optimizer = config.dump()["objective"], config.training.optimizer
    name = objective.pop("name")
    choices = [f"{key} {value}" for key, value in objective.items() if key == "temperature" or isinstance(value, str)]
    name += f" ({', '.join(choices)})" if choices else ""
    views = config.training.views or "the dataset's"
    return f"{name}, {type(optimizer).__name__} at {optimizer.lr:g}, batches of {config.training.batch}, views {views}"
