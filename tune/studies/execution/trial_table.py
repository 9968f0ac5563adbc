"""`trials.parquet`: a row for each trial and seed of a study.

trial      number, from 0
state      waiting, complete, stopped (early) or failed
reason     why it was stopped or failed, in one line
seed       null where the settings are impossible, as such a trial has no run
run        its run's directory, relative to the sweep's
round      the last round that is recorded; rounds: of a whole run
seconds    that rounds took, without evaluation
bytes, bytes_up, bytes_down   that crossed clients' boundaries so far
samples    test pictures, or held-out ones, that scores are of
param.KEY  a column for each parameter: its value as JSON
score.NAME a column for each score of the sweep's encoder (`take`) after the run's last scored round, in [0, 1];
           those of targets (score.time_to:0.45) are seconds and bytes, infinite where not reached
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rayfed_ssl.errors import ConfigError, reason
from rayfed_ssl.foreign.parquet import DAMAGE, read_table, rows_of
from rayfed_ssl.formats import Unit
from tune.studies.definition.schema import BYTES, EPSILON, TARGET, is_audit

Row = dict[str, Any]

NO_ROUNDS: Row = {"round": 0, "seconds": 0.0, "bytes": 0, "bytes_up": 0, "bytes_down": 0, "samples": 0}
RUN = re.compile(r"runs/[^/]*[^/.][^/]*")
"""A run's directory within its sweep's."""

MAX_ROWS = 50_000  # trials times seeds
COLUMNS = {"trial", "state", "reason", "seed", "run", "rounds", *NO_ROUNDS} - {"samples"}  # earlier versions had none


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Write the table; it is replaced as a whole."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: [row.get(name) for row in rows] for name in columns})
    draft = path.with_suffix(".tmp")
    pq.write_table(table, draft)
    draft.replace(path)


def read_rows(path: Path, max_rows: int = MAX_ROWS) -> list[Row]:
    """Read the table; a ConfigError if there is none, or it is damaged or has more rows than its study can have."""
    try:
        rows: list[Row] = rows_of(read_table(path, max_rows=min(max_rows, MAX_ROWS)))
        if rows and not set(rows[0]) >= COLUMNS:
            raise pa.ArrowInvalid("it is no table of trials")
        rows = [{"samples": 0} | row for row in rows]
        for run in {row["run"] for row in rows} - {None}:
            if not RUN.fullmatch(run):
                raise pa.ArrowInvalid(f"it names the run {run}")
    except DAMAGE as error:
        raise ConfigError(f"{path} cannot be read ({reason(error)}): resume the study, which writes it anew") from None
    return rows


def unit_of(score: str) -> Unit:
    """Name a score's unit: "bytes", "seconds", "percent" of a score in [0, 1], or "" for diagnostics, audits and epsilon."""
    if target := TARGET.fullmatch(score):
        return "seconds" if target[1] == "time" else "bytes"
    if score in BYTES:
        return "bytes"
    return "" if score == EPSILON or is_audit(score) or score.startswith("diag_") else "percent"
