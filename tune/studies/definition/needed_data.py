"""Whether the datasets are there that a study's cells need."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.datasets import dataset_info, find_dataset
from rayfed_ssl.data.public_data import PublicDataset, parse_public
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.evaluation.protocols import Transfer
from rayfed_ssl.machine.processor import check_process
from tune.studies.definition.schema import COLUMN, ROW
from tune.studies.definition.study import Study
from tune.studies.definition.trial_configs import config_of, run_of

Dataset = tuple[str, Path | None, bool]
"""A dataset, its directory, and whether it may be downloaded."""

Missing = dict[tuple[str, str], str]
"""Row and column of a cell -> why it is not run."""


def one_dataset(study: Study) -> None:
    """Refuse settings that put columns of several datasets on one."""
    if not any(text.startswith(("data.name=", "data.path=", "data=")) for text in study.overrides):
        return
    plain = study.model_copy(update={"overrides": ()})
    names = sorted({config_of(plain, point, 0).data.name for point in study.points()})
    if len(names) > 1:
        raise ConfigError(
            f"the columns of {study.name} are on {', '.join(names)}, which cannot all be one dataset: choose the columns of "
            "one with --column"
        )


def absent(study: Study) -> Missing:
    """Find the cells of which a dataset is not there, with the reason and how to get it.

    Raises:
        NotPortableError: A cell has engine.cpu=portable, and this process lacks its variables.
        ConfigError: A cell's settings do not fit, or this process cannot compute it.
    """
    missing, why = Missing(), cache(_missing)
    for point in study.points():
        try:
            run = run_of(study, point, 0)
            check_process(run.config.engine.cpu)
            needed = [*(_needed_by(run.first.config) if run.first else ()), *_needed_by(run.config)]
        except ValueError as error:
            raise ConfigError(f"{study.label(point)}: {error}") from None
        if reason := next(filter(None, (why(*dataset) for dataset in needed)), None):
            how = study.columns[point[COLUMN]].obtain
            missing[point[ROW], point[COLUMN]] = reason + (f"; {how}" if how else "")
    return missing


def by_column(study: Study, missing: Missing) -> dict[str, str]:
    """Name what is left out: a column where all its cells are for one reason, else "row, column"."""
    named: dict[str, str] = {}
    for column in study.axes[COLUMN]:
        reasons = {row: missing.get((row, column)) for row in study.axes[ROW]}
        first, *others = set(reasons.values())
        if first and not others:
            named[column] = first
        else:
            named |= {f"{row}, {column}": why for row, why in reasons.items() if why}
    return named


def _needed_by(config: Config) -> Iterator[Dataset]:
    yield config.data.name, config.data.path, config.data.download
    public = parse_public(config.public) if config.public is not None else None
    if isinstance(public, PublicDataset):
        yield public.name, public.path, config.data.download
    for protocol in config.evaluation.chosen:
        if isinstance(protocol, Transfer) and protocol.dataset:
            name, _, path = protocol.dataset.partition(":")
            yield name, Path(path) if path else None, False


def _missing(name: str, path: Path | None, download: bool) -> str | None:
    try:
        if not download or dataset_info(name).needs_path:
            find_dataset(name, path, False)
    except ValueError as error:
        return str(error)
    return None
