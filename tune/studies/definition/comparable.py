"""Which of our numbers can be set against the published ones: those of the same dataset and score."""

from collections.abc import Sequence

from rayfed_ssl.data.datasets import DATASETS
from rayfed_ssl.evaluation.protocols import Transfer
from tune.studies.definition.table_cells import Cell, Reproduction, load_reproduction


def unlike(name: str, reproduction: Reproduction, settings: Sequence[str]) -> dict[tuple[str, str], str]:
    """Find the cells whose number is not of what the published one is of: row and column -> "cifar10 for cifar100".

    A published number is of the dataset and score of the cell at the paper's size, unless the file has `published_score`.
    Files that the user's settings name (parquet, folder) are taken for the dataset that they stand in for.
    """
    published = _published(name, reproduction)
    differing = {}
    for cell in reproduction.cells:
        if cell.published is None:
            continue
        theirs = published.get((cell.row, cell.column), cell)
        ours, paper = _kind(cell.score), _kind(reproduction.file.published_score or theirs.score)
        if reasons := _other_data(cell, theirs, settings) + [f"{ours} for {paper}"] * (ours != paper):
            differing[cell.row, cell.column] = ", ".join(reasons)
    return differing


def other_data(name: str, reproduction: Reproduction, settings: Sequence[str]) -> tuple[str, ...]:
    """Say which datasets stand in for the table's, over all cells: "digits for cifar10"."""
    published = _published(name, reproduction)
    reasons = (_other_data(cell, published.get((cell.row, cell.column), cell), settings) for cell in reproduction.cells)
    return tuple(dict.fromkeys(reason for of_cell in reasons for reason in of_cell))


def _published(name: str, reproduction: Reproduction) -> dict[tuple[str, str], Cell]:
    """Give the cells at the paper's size."""
    if "paper" not in reproduction.file.sizes:
        return {}
    return {(cell.row, cell.column): cell for cell in load_reproduction(name, "paper").cells}


def _other_data(cell: Cell, theirs: Cell, settings: Sequence[str]) -> list[str]:
    at_size = _datasets(cell, ())
    given = _datasets(cell, settings) if settings else at_size
    at_paper = at_size if theirs == cell else _datasets(theirs, ())
    terms = [(_standing_for(*names), names[2]) for names in zip(given, at_size, at_paper, strict=True)]
    return [f"{ours} for {paper}" for ours, paper in terms if ours != paper]


def _datasets(cell: Cell, settings: Sequence[str]) -> tuple[str | None, str | None]:
    """What the number is measured on, and what is transferred to."""
    first = cell.config(0, *settings)
    last = cell.second(first, None, *settings) or first
    targets = [p.dataset for p in last.evaluation.chosen if isinstance(p, Transfer) and p.name == cell.score]
    return last.data.name, targets[0].partition(":")[0] if targets and targets[0] else None


def _standing_for(given: str | None, at_size: str | None, at_paper: str | None) -> str | None:
    """Name the dataset that is meant: files stand for what the size has, and the size's for the paper's."""
    meant = at_size if _is_files(given) else given
    return at_paper if _is_files(meant) else meant


def _is_files(dataset: str | None) -> bool:
    return dataset in DATASETS and DATASETS[dataset].needs_path


def _kind(score: str) -> str:
    """Name a score without whose linear probe it is."""
    name = score.removesuffix("_best")
    return ("linear" if name.split("-")[0] == "linear" else name) + score[len(name) :]
