"""What a report is about: runs, directories of runs, and tables of many runs, which a reader of theirs describes."""

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from rayfed_ssl.analysis.diagnosis import FILE, Diagnostics
from rayfed_ssl.analysis.rescoring import read_measurements
from rayfed_ssl.config.strict import Model, explain
from rayfed_ssl.errors import ConfigError, reason
from rayfed_ssl.foreign.own_files import refuse_links_out
from rayfed_ssl.foreign.reading import read_json
from rayfed_ssl.records.metric_rows import Row
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.html.figure import FigureWriter
from rayfed_ssl.reports.html.page import PageSection
from rayfed_ssl.reports.summary import Summary, summarize


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
        runs: Each run's directory, relative to `directory`.
        labels: What a run is for in the table, by its relative directory.
        section: Makes the section of the page from what writes figures, the report's command and the section's key; None
            where there is no table yet.
        left_out: Why there is no table.
    """

    directory: Path
    kind: str
    runs: Collection[str]
    labels: Mapping[str, str] = field(default_factory=dict)
    section: Callable[[FigureWriter, str, str], PageSection] | None = None
    left_out: str = ""


ReadTable = Callable[[Path], ReportedTable | None]
"""Reads the table in a directory; None where there is none."""


@dataclass
class Sources:
    """All that a report is about, and a line for each run or table in a named directory that is left out.

    `paths` says which of the runs the user has named.
    """

    names: list[str]
    runs: list[ReportedRun] = field(default_factory=list)
    tables: list[ReportedTable] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    paths: dict[Path, bool] = field(default_factory=dict)

    def add(self, directory: Path, named: bool, read_table: ReadTable) -> bool:
        """Add the run or the table in a directory; returns whether there is one, damaged or not."""
        before = len(self.paths), len(self.tables), len(self.left_out)
        if (directory / "run.json").is_file():
            self.paths[directory.resolve()] = named or self.paths.get(directory.resolve(), False)
            return True
        with self.leaving_out(directory, named):
            if (table := read_table(directory)) is not None:
                self._add_table(table)
        return (len(self.paths), len(self.tables), len(self.left_out)) != before

    @contextmanager
    def leaving_out(self, directory: Path, named: bool) -> Iterator[None]:
        """Read what a directory holds; what is damaged is an error if it was named, and else left out."""
        try:
            refuse_links_out(directory)
            yield
        except ConfigError as error:
            if named:
                raise
            self.left_out.append(str(error))

    def _add_table(self, table: ReportedTable) -> None:
        """Add a table and its runs."""
        directory = table.directory
        if outside := [run for run in table.runs if ".." in Path(run).parts or Path(run).is_absolute()]:
            raise ConfigError(
                f"{directory} names {outside[0]} as a run, which is not inside it: restore it from a copy"
            )
        if table.section is not None:
            self.tables.append(table)
        for run in table.runs:
            if (directory / run).is_dir():
                self.paths.setdefault((directory / run).resolve(), False)
        if missing := [run for run in table.runs if not (directory / run).is_dir()]:
            self.left_out.append(
                f"{len(missing)} of {len(table.runs)} runs of {directory}, which are missing (such as {missing[0]}): its "
                "table is shown without them"
            )
        self.left_out += [table.left_out] * bool(table.left_out)

    def name_runs(self) -> None:
        """Label runs by the tables that they are in, and tell runs of one name apart."""
        names, labels = [run.name for run in self.runs], defaultdict[Path, list[str]](list)
        for table in self.tables:
            for name, label in table.labels.items():
                labels[(table.directory / name).resolve()].append(label)
        for run in self.runs:
            directory = run.record.directory
            run.label = "; ".join(labels[directory])
            if names.count(run.name) > 1:
                run.name = f"{directory.parent.name}/{run.name}"


def open_sources(
    directories: Sequence[Path], *, trust: bool = False, read_table: ReadTable = lambda directory: None
) -> Sources:
    """Open runs and tables; one that was named and is damaged, or none, is a ConfigError."""
    sources = Sources([os.path.basename(os.path.realpath(directory)) for directory in directories])
    for directory in directories:
        if not sources.add(directory, True, read_table):
            children = sorted(directory.iterdir()) if directory.is_dir() else []
            if not sum(sources.add(child, False, read_table) for child in children):
                raise ConfigError(f"{directory} holds no run and no study: name a directory that rayfed-ssl wrote")
    for path, named in sources.paths.items():
        with sources.leaving_out(path, named):
            record, file = RunRecord.open(path, trust=trust), path / FILE
            diagnostics = read_model(file, Diagnostics) if file.is_file() else None
            evaluations = tuple(read_measurements(path))
            sources.runs.append(ReportedRun(path.name, record, summarize(record), evaluations, diagnostics))
    if not sources.runs and not sources.tables:
        raise ConfigError(*sources.left_out)
    sources.name_runs()
    return sources


def read_model(path: Path, model: type[Model]) -> Model:
    """Read a JSON file of ours; a ConfigError if it is damaged."""
    try:
        return model.model_validate(read_json(path))
    except (OSError, ValueError) as error:
        problem = next(explain(error, model)) if isinstance(error, ValidationError) else reason(error)
        how = " with `rayfed-ssl diagnose RUN`" if path.name == "diagnostics.json" else ""
        raise ConfigError(f"{path} is damaged ({problem}): make it anew{how}") from None
