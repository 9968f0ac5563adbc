"""What a report is about: runs, directories of runs, and reproductions of a paper's tables."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.record import Row, RunRecord
from rayfed_ssl.reports.compare import Summary, summarise


@dataclass(frozen=True, eq=False)
class ReportedRun:
    """A run as the report reads it.

    Attributes:
        name: The directory's own name; two runs of one name are told apart by their parents'.
        directory: Where it lies.
        record: Its record.
        summary: The same in numbers.
        evaluations: Rows that `rayfed-ssl evaluate --protocol` has added.
        diagnostics: RUN/diagnostics.json (`reports/diagnose.py` says what is in it), or None.
    """

    name: str
    directory: Path
    record: RunRecord
    summary: Summary
    evaluations: tuple[Row, ...] = ()
    diagnostics: dict[str, Any] | None = None


@dataclass(frozen=True)
class Reproduction:
    """Where a reproduction lies, and its `reproduction.json` (`rayfed_ssl/reproduction.py` says what is in it)."""

    directory: Path
    content: dict[str, Any]


@dataclass(frozen=True)
class Sources:
    """All that a report is about.

    Attributes:
        words: The directories by name, as on the command line.
        runs: Runs in the order in which they were named, none twice.
        reproductions: Tables and figures of papers.
        left_out: One line for each run of a sweep that could not be read.
    """

    words: tuple[str, ...]
    runs: tuple[ReportedRun, ...]
    reproductions: tuple[Reproduction, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass
class _Found:
    runs: dict[Path, str] = field(default_factory=dict)
    """Directories of runs, each with why it may be left out ("" where it may not: the user named it)."""
    reproductions: list[Reproduction] = field(default_factory=list)


def open_sources(directories: Sequence[Path]) -> Sources:
    """Open runs, sweeps and reproductions.

    Raises:
        ConfigError: A directory holds none of them, or a run that was named is damaged.
    """
    found = _Found()
    for directory in directories:
        _find(directory, found)
    runs, left_out = [], []
    for directory, sweep in found.runs.items():
        try:
            runs.append(_open_run(directory))
        except ConfigError as error:
            if not sweep:
                raise
            left_out.append(str(error))
    if not runs:
        raise ConfigError("\n".join(left_out))
    words = tuple(directory.resolve().name for directory in directories)
    return Sources(words, _told_apart(runs), tuple(found.reproductions), tuple(left_out))


def _find(directory: Path, found: _Found) -> None:
    if (directory / "run.json").is_file():
        found.runs[directory.resolve()] = ""
    elif (directory / "reproduction.json").is_file():
        content = _read_json(directory / "reproduction.json", "cells")
        found.reproductions.append(Reproduction(directory, content))
        for cell in content["cells"]:
            for run in cell.get("runs") or []:
                if run and (directory / run).is_dir():
                    found.runs.setdefault((directory / run).resolve(), directory.name)
    else:
        children = sorted(directory.iterdir()) if directory.is_dir() else []
        inner = [child for child in children if any((child / f"{kind}.json").is_file() for kind in _KINDS)]
        if not inner:
            raise ConfigError(
                f"{directory} holds no run, sweep or reproduction: name a directory that rayfed-ssl wrote"
            )
        for child in inner:
            if (child / "run.json").is_file():
                found.runs.setdefault(child.resolve(), directory.name)
            else:
                _find(child, found)


_KINDS = ("run", "reproduction")


def _open_run(directory: Path) -> ReportedRun:
    record, summary = RunRecord.open(directory), summarise(directory)
    evaluations: list[Row] = []
    if (path := directory / "evaluations.parquet").is_file():
        try:
            evaluations = pq.read_table(path).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(f"{path} is damaged ({error}): remove it and evaluate again") from None
    path = directory / "diagnostics.json"
    diagnostics = _read_json(path, "matrices") if path.is_file() else None
    return ReportedRun(directory.name, directory, record, summary, tuple(evaluations), diagnostics)


def _read_json(path: Path, key: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is damaged ({error}): make it anew") from None
    if not isinstance(content, dict) or key not in content:
        raise ConfigError(f"{path} is damaged (there is no {key!r} in it): make it anew")
    return content


def _told_apart(runs: Sequence[ReportedRun]) -> tuple[ReportedRun, ...]:
    names = [run.name for run in runs]
    return tuple(
        run
        if names.count(run.name) == 1
        else ReportedRun(
            f"{run.directory.parent.name}/{run.name}",
            run.directory,
            run.record,
            run.summary,
            run.evaluations,
            run.diagnostics,
        )
        for run in runs
    )
