"""Which of our numbers can be set against the published ones: those of the same dataset and score."""

from collections.abc import Sequence

from rayfed_ssl.data.datasets import DATASETS
from rayfed_ssl.evaluation.protocols import Transfer
from rayfed_ssl.reproductions.definition import Cell, Reproduction, load_reproduction


def unlike(name: str, reproduction: Reproduction, settings: Sequence[str]) -> dict[tuple[str, str], str]:
    """Find the cells whose number is not of what the published one is of.

    A published number is of the dataset and score of the cell at the paper's size, unless the file has `published_score`.
    Files that the user names (parquet, folder) are taken for the dataset that they stand in for.

    Args:
        name: The reproduction's name or file.
        reproduction: Its cells.
        settings: The user's changes of them.

    Returns:
        Row and column -> what ours is of for what, "cifar10 for cifar100".
    """
    published = {}
    if "paper" in reproduction.file.sizes:
        published = {(cell.row, cell.column): cell for cell in load_reproduction(name, "paper").cells}
    differing = {}
    for cell in reproduction.cells:
        if cell.published is None:
            continue
        theirs = published.get((cell.row, cell.column), cell)
        pairs = zip(_datasets(cell, settings), _datasets(cell, ()), _datasets(theirs, ()), strict=True)
        terms = [(_standing_for(*three), three[2]) for three in pairs]
        terms.append((_kind(cell.score), _kind(reproduction.file.published_score or theirs.score)))
        if reasons := [f"{ours} for {paper}" for ours, paper in terms if ours != paper]:
            differing[cell.row, cell.column] = ", ".join(reasons)
    return differing


def _datasets(cell: Cell, settings: Sequence[str]) -> tuple[str | None, str | None]:
    """What the number is measured on, and what is transferred to."""
    first = cell.config(0, *settings)
    last = cell.second(first, None, *settings) or first
    targets = [p.dataset for p in last.evaluation.chosen if isinstance(p, Transfer) and p.name == cell.score]
    return last.data.name, targets[0].partition(":")[0] if targets and targets[0] else None


def _standing_for(given: str | None, own: str | None, theirs: str | None) -> str | None:
    """Name the dataset that is meant: files stand for what the size has, and the size's for the paper's."""
    meant = own if _is_files(given) else given
    return theirs if _is_files(meant) else meant


def _is_files(dataset: str | None) -> bool:
    return dataset in DATASETS and DATASETS[dataset].needs_path


def _kind(score: str) -> str:
    """Name a score without whose linear probe it is."""
    name = score.removesuffix("_best")
    return ("linear" if name.split("-")[0] == "linear" else name) + score[len(name) :]
