"""What a report is about: runs, directories of runs, and tables of many runs, which a reader of theirs describes."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from rayfed_ssl.analysis.diagnosis import FILE, Diagnostics
from rayfed_ssl.analysis.rescoring import read_measurements
from rayfed_ssl.config.strict import Model, explain
from rayfed_ssl.errors import ConfigError, reason
from rayfed_ssl.reading import read_json
from rayfed_ssl.records.metric_rows import Row
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.html.figure import FigureWriter
from rayfed_ssl.reports.html.page import PageSection
from rayfed_ssl.reports.summary import Summary, summarize
from rayfed_ssl.storage.own_files import refuse_links_out


@dataclass(eq=False)
class ReportedRun:
    """A run as the report reads it.

    Its name is the directory's, after its parent's where two runs have one name. Its label is what it is for in a
    table. Evaluations are rows of `rayfed-ssl evaluate --protocol`.
    """

    name: str
    record: RunRecord
    summary: Summary
    evaluations: tuple[Row, ...] = ()
    diagnostics: Diagnostics | None = None
    label: str = ""


@dataclass(frozen=True)
class ReportedTable:
    """Many runs with a table of their own: a study.

    Attributes:
        kind: "sweep", "reproduction" or "benchmark".
        runs: Each run's directory, relative to `directory`, and whether it has a number in the table.
        labels: What a run is for in the table, by its relative directory.
        section: Makes the section of the page from what writes figures, the report's command and the section's key; None
            where there is no table yet.
        left_out: Why there is no table.
    """

    directory: Path
    kind: str
    runs: Mapping[str, bool]
    labels: Mapping[str, str] = field(default_factory=dict)
    section: Callable[[FigureWriter, str, str], PageSection] | None = None
    left_out: str = ""


ReadTable = Callable[[Path], ReportedTable | None]
"""Reads the table in a directory; None where there is none."""


@dataclass
class Sources:
    """All that a report is about: what the named directories hold, and a line for each run or table that is left out.

    `paths` says which of the runs the user has named.
    """

    names: list[str]
    read_table: ReadTable = lambda directory: None
    runs: list[ReportedRun] = field(default_factory=list)
    tables: list[ReportedTable] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    paths: dict[Path, bool] = field(default_factory=dict)

    def keep(self, add: Callable[[Path], None], path: Path, named: bool) -> None:
        """Add what a directory holds; what is damaged is an error if it was named, and else left out."""
        try:
            refuse_links_out(path)
            add(path)
        except ConfigError as error:
            if named:
                raise
            self.left_out.append(str(error))

    def add(self, directory: Path) -> None:
        """Search a directory that was named, or those in it."""
        if self._add(directory, named=True):
            return
        children = sorted(directory.iterdir()) if directory.is_dir() else []
        if not sum(self._add(child, named=False) for child in children):
            raise ConfigError(f"{directory} holds no run and no study: name a directory that rayfed-ssl wrote")

    def _add(self, directory: Path, named: bool) -> bool:
        if (directory / "run.json").is_file():
            self.paths[directory.resolve()] = named or self.paths.get(directory.resolve(), False)
            return True
        before = len(self.tables), len(self.left_out), len(self.paths)
        self.keep(self._add_table, directory, named)
        return (len(self.tables), len(self.left_out), len(self.paths)) != before

    def _add_table(self, directory: Path) -> None:
        """Add a table and its runs; those that have a number there are missed where they are gone."""
        table = self.read_table(directory)
        if table is None:
            return
        if outside := [run for run in table.runs if ".." in Path(run).parts or Path(run).is_absolute()]:
            raise ConfigError(
                f"{directory} names {outside[0]} as a run, which is not inside it: restore it from a copy"
            )
        if table.section is not None:
            self.tables.append(table)
        numbers = [run for run, has_number in table.runs.items() if has_number]
        missing = [run for run in numbers if not (directory / run).is_dir()]
        for run in table.runs:
            if (directory / run).is_dir():
                self.paths.setdefault((directory / run).resolve(), False)
        if missing:
            self.left_out.append(
                f"{len(missing)} of {len(numbers)} runs of {directory}, which are missing (such as {missing[0]}): its table "
                "is shown without them"
            )
        self.left_out += [table.left_out] * bool(table.left_out)


def open_sources(
    directories: Sequence[Path], *, trust: bool = False, read_table: ReadTable = lambda directory: None
) -> Sources:
    """Open runs and tables; one that was named and is damaged, or none, is a ConfigError."""
    sources = Sources([os.path.basename(os.path.realpath(directory)) for directory in directories], read_table)
    for directory in directories:
        sources.add(directory)
    for path, named in sources.paths.items():
        sources.keep(lambda path: sources.runs.append(_open_run(path, trust)), path, named)
    if not sources.runs and not sources.tables:
        raise ConfigError(*sources.left_out)
    labels: dict[Path, list[str]] = {}
    for table in sources.tables:
        for name, label in table.labels.items():
            labels.setdefault((table.directory / name).resolve(), []).append(label)
    names = [run.name for run in sources.runs]
    for run in sources.runs:
        directory = run.record.directory
        run.label = "; ".join(labels.get(directory, ()))
        if names.count(run.name) > 1:
            run.name = f"{directory.parent.name}/{run.name}"
    return sources


def _open_run(directory: Path, trust: bool) -> ReportedRun:
    record, path = RunRecord.open(directory, trust=trust), directory / FILE
    diagnostics = read_model(path, Diagnostics) if path.is_file() else None
    return ReportedRun(directory.name, record, summarize(record), tuple(read_measurements(directory)), diagnostics)


def read_model(path: Path, model: type[Model]) -> Model:
    """Read a JSON file of ours; a ConfigError if it is damaged."""
    try:
        return model.model_validate(read_json(path))
    except (OSError, ValueError) as error:
        problem = next(explain(error, model)) if isinstance(error, ValidationError) else reason(error)
        raise ConfigError(f"{path} is damaged ({problem}): make it anew") from None
