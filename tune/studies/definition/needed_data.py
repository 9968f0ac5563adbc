"""Whether the datasets are there that a reproduction's cells need."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.public_data import PublicDataset, parse_public
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.evaluation.protocols import Transfer
from tune.studies.definition.table_cells import Cell, Reproduction

Dataset = tuple[str, Path | None, bool]
"""A dataset, its directory, and whether it may be downloaded."""


def one_dataset(reproduction: Reproduction, settings: Sequence[str]) -> None:
    """Refuse settings that put columns of several datasets on one."""
    if not any(text.startswith(("data.name=", "data.path=", "data=")) for text in settings):
        return
    names = sorted({cell.config(0).data.name for cell in reproduction.cells})
    if len(names) > 1:
        raise ConfigError(
            f"the columns of {reproduction.name} are on {', '.join(names)}, which cannot all be one dataset: choose the "
            "columns of one with --column"
        )


def absent(reproduction: Reproduction, settings: Sequence[str]) -> dict[tuple[str, str], str]:
    """Find the cells of which a dataset is not there, with the reason and how to get it, by row and column."""
    missing: dict[tuple[str, str], str] = {}
    checked: dict[Dataset, str | None] = {}
    obtain = {name: column.obtain for name, column in reproduction.columns.items()}
    for cell in reproduction.cells:
        for needed in _needed(cell, settings):
            if needed not in checked:
                checked[needed] = _missing(*needed)
            if reason := checked[needed]:
                how = obtain[cell.column]
                missing[cell.row, cell.column] = reason + (f"; {how}" if how else "")
                break
    return missing


def by_column(reproduction: Reproduction, cells: dict[tuple[str, str], str]) -> dict[str, str]:
    """Name what is left out: a column where all its cells are for one reason, else "row, column"."""
    named: dict[str, str] = {}
    for column in reproduction.columns:
        reasons = [cells.get((row, column)) for row in reproduction.rows]
        if reasons and reasons[0] and set(reasons) == {reasons[0]}:
            named[column] = reasons[0]
            continue
        named |= {f"{row}, {column}": why for row, why in zip(reproduction.rows, reasons, strict=True) if why}
    return named


def _needed(cell: Cell, settings: Sequence[str]) -> Iterator[Dataset]:
    try:
        first = cell.config(0, *settings)
        second = cell.second(first, None, *settings)
    except ConfigError as error:
        raise ConfigError(f"{cell.row}, {cell.column}: {error}") from None
    for config in (first, second) if second else (first,):
        yield from _needed_by(config)


def _needed_by(config: Config) -> Iterator[Dataset]:
    yield config.data.name, config.data.path, config.data.download
    if config.public is not None:
        try:
            public = parse_public(config.public)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if isinstance(public, PublicDataset):
            yield public.name, public.path, config.data.download
    for protocol in config.evaluation.chosen:
        if isinstance(protocol, Transfer) and protocol.dataset:
            name, _, path = protocol.dataset.partition(":")
            yield name, Path(path) if path else None, False


def _missing(name: str, path: Path | None, download: bool) -> str | None:
    import platformdirs

    from rayfed_ssl.data.datasets import DATASETS

    info = DATASETS.get(name)
    if info is None:
        return f"there is no dataset {name}"
    if info.needs_path and path is None:
        return f"dataset {name} has no default directory: set data.path to its directory"
    if download and not info.needs_path:
        return None
    try:
        info.find((path or platformdirs.user_cache_path("rayfed-ssl") / "datasets").resolve(), False)
    except ValueError as error:
        return str(error)
    return None
