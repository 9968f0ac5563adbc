"""A study's cells beside the published numbers: the table in the paper's layout, and the agreement in order.

Ours can be set against those of the same dataset and score.
"""

from collections.abc import Sequence

from rayfed_ssl.data.datasets import DATASETS
from rayfed_ssl.evaluation.protocols import Transfer
from tune.studies.definition.schema import COLUMN, ROW
from tune.studies.definition.space import Point
from tune.studies.definition.study import Study
from tune.studies.definition.trial_configs import run_of
from tune.studies.results.results import Agreement, TableCell, TableLine, TableResult, TrialResult

PAPER = "paper"
"""The size of the published settings."""

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
        published, mean = study.cell(trial.point).published, trial.mean(trial.score)
        reason = differing.get((trial.point[ROW], trial.point[COLUMN]))
        difference = None
        if mean is not None and published is not None and reason is None:
            difference = scale_of(study.unit) * mean.mean - published
        changes = {"published": published, "unlike": reason, "difference": difference}
        added.append(trial.model_copy(update=changes))
    return added


def published_table(study: Study, trials: Sequence[TrialResult], skipped: Sequence[str]) -> TableResult:
    """Lay out the table: a cell holds mean ± std, the published number and the difference."""
    cells = {}
    for trial in trials:
        value = trial.mean(trial.score)
        cell = TableCell(text=describe(study, trial), mean=None if value is None else value.mean)
        cells[trial.point[ROW], trial.point[COLUMN]] = cell
    columns = [column for column in study.axes[COLUMN] if column not in skipped]
    lines = [
        TableLine(label=row, cells=[cells.get((row, column), TableCell(text="")) for column in columns])
        for row in study.axes[ROW]
    ]
    title = f"Ours, the paper's, and the difference ({'%' if study.unit == 'percent' else study.unit})"
    remark = "Each cell: ours, mean ± standard deviation over seeds [published; difference]."
    return TableResult(goal=study.score or "", title=title, head=["", *columns], lines=lines, remarks=[remark])


def describe(study: Study, trial: TrialResult) -> str:
    """Write a cell for people: "71.20 ± 0.31 [75.6; -4.4]"."""
    value, scale = trial.mean(trial.score), scale_of(study.unit)
    if value is None:
        ours = "failed" if trial.reason else "-"
    else:
        ours = f"{scale * value.mean:.2f}" + ("" if value.std is None else f" ± {scale * value.std:.2f}")
        ours += f" ({value.n} of {len(trial.seeds)} seeds)" * (value.n < len(trial.seeds))
    if trial.published is None:
        return ours
    difference = "" if trial.difference is None else f"; {trial.difference:+.1f}"
    return f"{ours} [{trial.published:g}{difference}]"


def agreement_of(trials: Sequence[TrialResult]) -> Agreement:
    """Compare the order of the trials whose numbers are comparable with that of the published numbers."""
    by_column: dict[str, list[tuple[float, float]]] = {}
    for trial in trials:
        if trial.published is not None and trial.difference is not None:
            pair = trial.published + trial.difference, trial.published
            by_column.setdefault(trial.point[COLUMN], []).append(pair)
    pairs = [pair for column in by_column.values() for pair in column]
    within = {column: kendall(pairs) for column, pairs in by_column.items()}
    return Agreement(cells=len(pairs), kendall=kendall(pairs), columns=within)


def kendall(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Kendall's rank correlation tau-b of pairs; None where one side has fewer than two different values."""
    from scipy import stats  # takes a second to import

    if any(len({pair[side] for pair in pairs}) < 2 for side in (0, 1)):
        return None
    return float(stats.kendalltau(*zip(*pairs, strict=True)).statistic)


def published_remarks(study: Study, trials: Sequence[TrialResult], agreement: Agreement) -> list[str]:
    """What a reader of the table has to know, a line each."""
    lines = [CAUTION] * (study.size == "cpu")
    if kinds := list(dict.fromkeys(trial.unlike for trial in trials if trial.unlike is not None)):
        note = "No difference and no part in the order where ours are of another dataset or score than the published"
        lines.append(f"{note}: {'; '.join(kinds)}.")
    if agreement.kendall is not None:
        within = ", ".join(f"{name} {tau:+.2f}" for name, tau in agreement.columns.items() if tau is not None)
        order = f"Order, Kendall's tau-b over {agreement.cells} cells: {agreement.kendall:+.2f}"
        lines.append(order + (f"; by column: {within}" if within else ""))
    return lines


def unlike(study: Study) -> dict[tuple[str, str], str]:
    """Find the cells whose number is not of what the published one is of: row and column -> "cifar10 for cifar100".

    A published number is of the dataset and score of the cell at the paper's size, unless the file has `published_score`.
    Files that the user's settings name (parquet, folder) are taken for the dataset that they stand in for.
    """
    paper, differing = _at_paper(study), {}
    for point in study.points():
        cell = study.cell(point)
        if cell.published is None:
            continue
        theirs = paper.cell(point) if _has(paper, point) else cell
        ours, published = _kind(cell.score), _kind(study.published_score or theirs.score)
        if reasons := _other_data(study, paper, point) + [f"{ours} for {published}"] * (ours != published):
            differing[point[ROW], point[COLUMN]] = ", ".join(reasons)
    return differing


def _at_paper(study: Study) -> Study:
    size = PAPER if PAPER in study.sizes else study.size
    return study.model_copy(update={"size": size, "overrides": (), "left_out": ()})


def _has(study: Study, point: Point) -> bool:
    return all(point[axis] in names for axis, names in study.axes.items())


def _other_data(study: Study, paper: Study, point: Point) -> list[str]:
    """Compare what a number is measured on and transferred to; files stand for what would be there in their place."""
    at_size = _datasets(study.model_copy(update={"overrides": ()}), point)
    given = _datasets(study, point) if study.overrides else at_size
    at_paper = _datasets(paper, point) if _has(paper, point) else at_size
    meant = [b if _is_files(a) else a for a, b in zip(given, at_size, strict=True)]
    meant = [b if _is_files(a) else a for a, b in zip(meant, at_paper, strict=True)]
    return [f"{ours} for {theirs}" for ours, theirs in zip(meant, at_paper, strict=True) if ours != theirs]


def _datasets(study: Study, point: Point) -> tuple[str | None, str | None]:
    """What the number is measured on, and what is transferred to."""
    run, score = run_of(study, point, 0), study.cell(point).score
    first = run.first or run
    targets = [p.dataset for p in run.config.evaluation.chosen if isinstance(p, Transfer) and p.name == score]
    return first.config.data.name, targets[0].partition(":")[0] if targets and targets[0] else None


def _is_files(dataset: str | None) -> bool:
    return dataset in DATASETS and DATASETS[dataset].needs_path


def _kind(score: str | None) -> str:
    """Name a score without whose linear probe it is."""
    score = score or ""
    name = score.removesuffix("_best")
    return ("linear" if name.split("-")[0] == "linear" else name) + score[len(name) :]
