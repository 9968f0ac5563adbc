"""`trials.parquet`: a row for each trial and seed of a study.

trial      number, from 0
state      waiting, complete, stopped (early) or failed
reason     why it was stopped or failed, in one line
seed       null where the settings are impossible, as such a trial has no run
run        its run's directory, relative to the sweep's
round      the last round that is recorded; rounds: of a whole run
seconds    that rounds took, without evaluation
bytes, bytes_up, bytes_down   that crossed clients' boundaries so far
param.KEY  a column for each parameter: its value as JSON
score.NAME a column for each score of the sweep's encoder (`take`) after the run's last scored round, in [0, 1]
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from rayfed_ssl.errors import ConfigError, reason
from rayfed_ssl.formats import Unit
from rayfed_ssl.parquet import DAMAGE, read_table, rows_of
from tune.studies.definition.search_plan import BYTES

if TYPE_CHECKING:
    from tune.studies.search.search import Search

Row = dict[str, Any]

NO_ROUNDS: Row = {"round": 0, "seconds": 0.0, "bytes": 0, "bytes_up": 0, "bytes_down": 0}
RUN = re.compile(r"runs/[^/]*[^/.][^/]*")
"""A run's directory within its sweep's."""

COLUMNS = {"trial", "state", "reason", "seed", "run", "rounds", *NO_ROUNDS}


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Write the table; it is replaced as a whole."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: [row.get(name) for row in rows] for name in columns})
    draft = path.with_suffix(".tmp")
    pq.write_table(table, draft)
    draft.replace(path)


def read_rows(path: Path) -> list[Row]:
    """Read the table; a ConfigError if there is none, or it is damaged."""
    try:
        rows: list[Row] = rows_of(read_table(path))
        if rows and not set(rows[0]) >= COLUMNS:
            raise pa.ArrowInvalid("it is no table of trials")
        for run in {row["run"] for row in rows} - {None}:
            if not RUN.fullmatch(run):
                raise pa.ArrowInvalid(f"it names the run {run}")
    except DAMAGE as error:
        raise ConfigError(f"{path} cannot be read ({reason(error)}): resume the study, which writes it anew") from None
    return rows


@dataclass
class TrialTable:
    """Makes the rows of a search; runs that have not changed since they were read are not read again."""

    runs: Path
    _read: dict[tuple[Path, str | None, str | None], tuple[object, Row]] = field(default_factory=dict)

    def rows(self, search: "Search") -> list[Row]:
        """Describe all trials of a search."""
        rows = []
        for trial in search.trials:
            cell = search.study.cell(trial.point)
            common: Row = {"trial": trial.number, "state": trial.state, "reason": trial.reason or None}
            common |= {f"param.{name}": json.dumps(value) for name, value in trial.point.items()}
            if not trial.runs:
                rows.append(common | {"seed": None, "run": None, "rounds": None} | NO_ROUNDS)
            for seed, run in trial.runs.items():
                facts = {"seed": seed, "run": f"{self.runs.name}/{run.name}", "rounds": run.config.rounds}
                rows.append(common | facts | self._progress(self.runs / run.name, cell.take, cell.score))
        return rows

    def _progress(self, directory: Path, take: str | None, score: str | None) -> Row:
        """Read a run, unless its files are those of the last call: scores come after a round's other numbers."""
        files = sorted(file for file in directory.glob("[!.]*") if file.is_file())  # no temporary files of its writer
        written = [(file.name, stat.st_mtime_ns, stat.st_size) for file in files if (stat := file.stat())]
        key = directory, take, score
        if key not in self._read or self._read[key][0] != written:
            self._read[key] = written, read_progress(directory, take, score)
        return self._read[key][1]


def read_progress(directory: Path, take: str | None, score: str | None = None) -> Row:
    """Read from a run's record its rounds, bytes and last scores, `score` among them."""
    from rayfed_ssl.evaluation.registry import is_score
    from rayfed_ssl.records.run_record import RunRecord
    from tune.studies.execution.scores import score_of

    try:
        record = RunRecord.open(directory)
    except ConfigError:
        return NO_ROUNDS
    up, down = (sum(row["bytes"] for row in record.ledger if row["direction"] == way) for way in ("up", "down"))
    seconds = [row["value"] for row in record.metrics if (row["participant"], row["name"]) == ("run", "seconds")]
    progress: Row = {"round": record.last_round, "seconds": sum(seconds)}
    progress |= {"bytes": up + down, "bytes_up": up, "bytes_down": down}
    shown = [
        row
        for row in record.metrics
        if is_score(row["name"]) or row["name"].startswith("diag_") or row["name"] == score
    ]
    for name, round in sorted({(row["name"], row["round"]) for row in shown}):  # the last round stays
        value = score_of(record, name, take, round)
        if value is not None:
            progress[f"score.{name}"] = value
    return progress


def unit_of(score: str) -> Unit:
    """Name a score's unit: "bytes", "percent" of a score in [0, 1], or "" for a diagnostic."""
    if score in BYTES:
        return "bytes"
    return "" if score.startswith("diag_") else "percent"
