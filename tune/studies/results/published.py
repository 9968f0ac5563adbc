"""A study's cells beside the published numbers: the table in the paper's layout, and the agreement in order.

Ours can be set against those of the same dataset and score.
"""

from collections.abc import Sequence

from rayfed_ssl.data.datasets import DATASETS
from rayfed_ssl.reports.table import Cell, Table
from tune.studies.definition.schema import COLUMN, ROW
from tune.studies.definition.study import Study
from tune.studies.definition.trial_configs import config_of
from tune.studies.results.results import Agreement, TrialResult

CAUTION = (
    "cpu size: far fewer, smaller photographs and fewer epochs than in the paper, and mostly a small CNN. These numbers "
    "are comparable with each other, and with the published ones in their order alone."
)


def scale_of(unit: str) -> float:
    """What a score is multiplied by in a table of a unit."""
    return 100.0 if unit == "percent" else 1.0


def with_published(study: Study, trials: Sequence[TrialResult]) -> list[TrialResult]:
    """Add the published numbers and our differences from those that are of the same dataset and score."""
    reason, added = unlike(study), []
    for trial in trials:
        published, mean = study.cell(trial.point).published, trial.mean(trial.score)
        difference = None
        if mean is not None and published is not None and reason is None:
            difference = scale_of(study.unit) * mean.mean - published
        changes = {"published": published, "unlike": None if published is None else reason, "difference": difference}
        added.append(trial.model_copy(update=changes))
    return added


def published_table(study: Study, trials: Sequence[TrialResult], skipped: Sequence[str]) -> Table:
    """Lay out the table: a cell holds mean ± std, the published number and the difference."""
    cells = {}
    for trial in trials:
        value = trial.mean(trial.score)
        cell = Cell(text=describe(study, trial), mean=None if value is None else value.mean)
        cells[trial.point[ROW], trial.point[COLUMN]] = cell
    columns = [column for column in study.axes[COLUMN] if column not in skipped]
    rows = [[row, *(cells.get((row, column), "") for column in columns)] for row in study.axes[ROW]]
    title = f"Ours, the paper's, and the difference ({'%' if study.unit == 'percent' else study.unit})"
    remark = "Each cell: ours, mean ± standard deviation over seeds [published; difference]."
    return Table.of(title, ["", *columns], rows, goal=study.score or "", remarks=[remark])


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


def unlike(study: Study) -> str | None:
    """Say why a study's numbers are not compared with the published ones; None where they are.

    The file says it, at this size or at all; a user's setting may name another dataset besides. Files that it names
    (parquet, folder) are taken for the dataset that they stand in for.
    """
    stated = study.at_size.unlike or study.unlike
    if not any(text.startswith("data") for text in study.overrides) or not study.points():
        return stated
    plain = study.model_copy(update={"overrides": ()})
    paper = plain.model_copy(update={"size": "paper"}) if "paper" in study.sizes else plain
    ours, meant, published = (config_of(each, each.points()[0], 0).data.name for each in (study, plain, paper))
    if ours == meant or (ours in DATASETS and DATASETS[ours].needs_path):
        return stated
    others = [part for part in (stated or "").split(", ") if part and not part.endswith(f" for {published}")]
    return ", ".join([f"{ours} for {published}"] * (ours != published) + others) or None
