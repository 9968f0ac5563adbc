"""`trials.parquet`: a row for each trial and seed of a study.

trial      number, from 0
state      waiting, complete, stopped (early) or failed
reason     why it was stopped or failed, in one line; else empty
seed       null where the settings are impossible, as such a trial has no run
run        its run's directory, relative to the sweep's
round      the last round that is recorded; rounds: of a whole run
seconds    that rounds took, without evaluation
bytes, bytes_up, bytes_down   that crossed clients' boundaries so far
samples    test pictures, or held-out ones, that scores are of
finished   whether the run has ended and is scored
state_sha256   digest of all states after the last round
param.KEY  a column for each parameter: its value as JSON
score.NAME a column for each score of the sweep's encoder (`take`) after the run's last scored round, in [0, 1];
           those of targets (score.time_to:0.45) are seconds and bytes, infinite where not reached, and those of whom a rule
           left out (score.hostile_found, score.honest_lost) clients a round
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rayfed_ssl.formats import Unit
from rayfed_ssl.privacy.robust import LEFT_OUT
from tune.studies.definition.schema import BYTES, EPSILON, TARGET, is_audit

Row = dict[str, Any]

NO_ROUNDS: Row = {
    "round": 0,
    "finished": False,
    "state_sha256": None,
    "samples": 0,
    "seconds": 0.0,
    "bytes": 0,
    "bytes_up": 0,
    "bytes_down": 0,
}


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Write the table; it is replaced as a whole."""
    flat = [
        {name: value for name, value in row.items() if name != "point"}
        | {f"param.{name}": json.dumps(value) for name, value in row["point"].items()}
        for row in rows
    ]
    columns = dict.fromkeys(name for row in flat for name in row)
    draft = path.with_suffix(".tmp")
    pq.write_table(pa.table({name: [row.get(name) for row in flat] for name in columns}), draft)
    draft.replace(path)


def unit_of(score: str) -> Unit:
    """Name a score's unit: "bytes", "seconds", "percent" of a score in [0, 1], or "" for diagnostics, audits and counts."""
    if target := TARGET.fullmatch(score):
        return "seconds" if target[1] == "time" else "bytes"
    if score in BYTES:
        return "bytes"
    return "" if score in (EPSILON, *LEFT_OUT) or is_audit(score) or score.startswith("diag_") else "percent"
