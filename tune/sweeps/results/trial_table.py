"""`trials.parquet`: a row for each trial and seed of a sweep.

trial      number, from 0
state      waiting, complete, stopped (early) or failed
reason     why it was stopped or failed, in one line
seed       null where the settings are impossible, as such a trial has no run
run        its run's directory, relative to the sweep's
round      the last round that is recorded; rounds: of a whole run
seconds    that rounds took, scoring not counted
bytes, bytes_up, bytes_down   that crossed clients' boundaries so far
param.KEY  a column for each parameter: its value as JSON, or null where the trial does not have it
score.NAME a column for each score of the sweep's encoder (`take`) after the run's last scored round, in [0, 1]
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rayfed_ssl.errors import ConfigError

Row = dict[str, Any]


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Write the table; it is replaced as a whole."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: [row.get(name) for row in rows] for name in columns})
    draft = path.with_suffix(".tmp")
    pq.write_table(table, draft)
    draft.replace(path)


def read_rows(path: Path) -> list[Row]:
    """Read the table.

    Raises:
        ConfigError: There is none, or it is damaged.
    """
    try:
        rows: list[Row] = pq.read_table(path).to_pylist()
        if rows and not {"trial", "state", "reason", "seed", "run", "round", "bytes", "seconds"} <= set(rows[0]):
            raise pa.ArrowInvalid("it is no table of trials")
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{path} cannot be read ({error}): go on with the sweep, which writes it anew") from None
    return rows
