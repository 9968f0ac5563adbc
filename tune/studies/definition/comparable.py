"""Which of our numbers can be set against the published ones: those of the same dataset and score."""

from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.datasets import DATASETS
from rayfed_ssl.evaluation.protocols import Transfer
from tune.studies.definition.schema import COLUMN, ROW
from tune.studies.definition.space import Point
from tune.studies.definition.study import Study
from tune.studies.definition.trial_configs import run_of

PAPER = "paper"
"""The size of the published settings."""


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


def other_data(study: Study) -> tuple[str, ...]:
    """Say which datasets stand in for the table's, over all cells: "digits for cifar10"."""
    paper = _at_paper(study)
    return tuple(dict.fromkeys(reason for point in study.points() for reason in _other_data(study, paper, point)))


def _at_paper(study: Study) -> Study:
    size = PAPER if PAPER in study.sizes else study.size
    return study.model_copy(update={"size": size, "overrides": (), "left_out": ()})


def _has(study: Study, point: Point) -> bool:
    return all(point[axis] in names for axis, names in study.axes.items())


def _other_data(study: Study, paper: Study, point: Point) -> list[str]:
    plain = study.model_copy(update={"overrides": ()})
    at_size = _datasets(plain, point)
    given = _datasets(study, point) if study.overrides else at_size
    at_paper = _datasets(paper, point) if _has(paper, point) else at_size
    terms = [(_standing_for(*names), names[2]) for names in zip(given, at_size, at_paper, strict=True)]
    return [f"{ours} for {paper}" for ours, paper in terms if ours != paper]


def _datasets(study: Study, point: Point) -> tuple[str | None, str | None]:
    """What the number is measured on, and what is transferred to."""
    run = run_of(study, point, 0)
    first: Config = run.config if run.first is None else run.first.config
    score = study.cell(point).score
    targets = [p.dataset for p in run.config.evaluation.chosen if isinstance(p, Transfer) and p.name == score]
    return first.data.name, targets[0].partition(":")[0] if targets and targets[0] else None


def _standing_for(given: str | None, at_size: str | None, at_paper: str | None) -> str | None:
    """Name the dataset that is meant: files stand for what the size has, and the size's for the paper's."""
    meant = at_size if _is_files(given) else given
    return at_paper if _is_files(meant) else meant


def _is_files(dataset: str | None) -> bool:
    return dataset in DATASETS and DATASETS[dataset].needs_path


def _kind(score: str | None) -> str:
    """Name a score without whose linear probe it is."""
    score = score or ""
    name = score.removesuffix("_best")
    return ("linear" if name.split("-")[0] == "linear" else name) + score[len(name) :]
