"""The rows of `trials.parquet`, from a search and the records of its runs."""

import json
import os
from pathlib import Path
from typing import Any

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.evaluation.registry import is_score
from rayfed_ssl.records.run_record import RunRecord
from tune.sweeps.execution.trial_configs import score_of
from tune.sweeps.results.trial_table import Row
from tune.sweeps.search.search import Search, Trial

Written = frozenset[tuple[str, int, int]]
"""A record's files: name, when it was written in nanoseconds, bytes."""

Known = dict[Path, tuple[Written, Row]]
"""What was read of a run's record, and what its files were then: scores come after a round's other numbers."""


def rows_of(search: Search, runs: Path, known: Known | None = None) -> list[Row]:
    """Describe all trials of a search.

    Args:
        search: Whose.
        runs: Directory of runs.
        known: What earlier calls have read; records that are as they were are not read again.
    """
    known = {} if known is None else known
    rows = []
    for trial in search.trials:
        common = _common(search, trial)
        if not trial.runs:
            rows.append(common | {"seed": None, "run": None, "rounds": None} | _nothing())
        for seed, config in trial.runs.items():
            name = trial.names[seed]
            facts = {"seed": seed, "run": f"{runs.name}/{name}", "rounds": config.rounds}
            rows.append(common | facts | _progress(runs / name, search.sweep.take, known))
    return rows


def _common(search: Search, trial: Trial) -> Row:
    values = {**trial.point, **_derived(search, trial)}
    found: Row = {"trial": trial.number, "state": trial.state, "reason": trial.reason or None}
    for name in search.sweep.space.names:
        found[f"param.{name}"] = json.dumps(values[name]) if name in values else None
    return found


def _derived(search: Search, trial: Trial) -> dict[str, Any]:
    try:
        return search.sweep.space.derived(trial.point)
    except ConfigError:
        return {}  # the trial has failed for it


def _nothing() -> Row:
    return {"round": 0, "seconds": 0.0, "bytes": 0, "bytes_up": 0, "bytes_down": 0}


def _progress(directory: Path, take: str | None, known: Known) -> Row:
    try:
        with os.scandir(directory) as entries:
            files = [(entry.name, entry.stat()) for entry in entries if entry.is_file()]
    except OSError:
        return _nothing()
    written = frozenset((name, found.st_mtime_ns, found.st_size) for name, found in files)
    if directory not in known or known[directory][0] != written:
        known[directory] = written, _read(directory, take)
    return known[directory][1]


def _read(directory: Path, take: str | None) -> Row:
    """Read from a run's record how far it is and what it has given."""
    try:
        record = RunRecord.open(directory)
    except ConfigError:
        return _nothing()
    up, down = (sum(row["bytes"] for row in record.ledger if row["direction"] == way) for way in ("up", "down"))
    took = [row["value"] for row in record.metrics if (row["participant"], row["name"]) == ("run", "seconds")]
    found: Row = {
        "round": record.last_round,
        "seconds": sum(took),
        "bytes": up + down,
        "bytes_up": up,
        "bytes_down": down,
    }
    shown = [row for row in record.metrics if is_score(row["name"]) or row["name"].startswith("diag_")]
    scored = sorted({(row["name"], row["round"]) for row in shown})
    for name, round in scored:  # ascending rounds, so that the last one stays
        value = score_of(record, name, take, round)
        if value is not None:
            found[f"score.{name}"] = value
    return found
