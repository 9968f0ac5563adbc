"""RUN/audit.parquet: what attacks on the uploads of a round reached."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rayfed_ssl.errors import ConfigError, reason
from rayfed_ssl.foreign.reading import read_json
from rayfed_ssl.records.metric_rows import Row
from rayfed_ssl.storage.tables import rows_if_any

TABLE, PICTURES = "audit.parquet", "audit"

ATTACKS_VERSION = 2
"""Raised when an attack computes other numbers from the same settings."""

SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("attack", "kind", "metric", "settings")),
        *((name, pa.int32()) for name in ("client", "round", "targets")),
        *((name, pa.float64()) for name in ("value", "low", "high")),
    ]
)


class Reached(NamedTuple):
    """What an attack reached on the clients of a round: mean, least and most of a number; of bounds there is no most."""

    attack: str
    content: str
    metric: str
    mean: float
    lowest: float
    highest: float | None
    clients: int


def read_audit(directory: Path) -> list[Row]:
    """Read a run's audit.parquet; raises ConfigError if it is damaged."""
    return rows_if_any(directory / TABLE, SCHEMA, "delete it and audit again")


def reached(rows: Iterable[Row]) -> list[Reached]:
    """Summarize the rows of an audit over clients, in their order."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        groups.setdefault((row["attack"], row["kind"], row["metric"]), []).append(row["value"])
    return [
        # The largest of several bounds is none at 95 %.
        Reached(*names, fmean(values), min(values), None if names[2] == "epsilon" else max(values), len(values))
        for names, values in groups.items()
    ]


def audit_scores(directory: Path, round: int) -> dict[str, float]:
    """Average each number of an audit of a round over clients, as "attack.metric"."""
    numbers = reached(row for row in read_audit(directory) if row["round"] == round)
    return {f"{each.attack}.{each.metric}": each.mean for each in numbers}


def main_scores(scores: dict[str, float]) -> dict[str, float]:
    """Keep the first number of each attack."""
    firsts = {name.rpartition(".")[0]: name for name in reversed(scores)}
    return {name: value for name, value in scores.items() if name in firsts.values()}


def pictures_of(directory: Path, round: int, client_id: int, name: str, settings: str) -> Path:
    """Name the file of what an attack reconstructs of a client: with other settings, another file."""
    short = "".join(letter if letter.isalnum() or letter == "-" else "_" for letter in name)
    other = hashlib.sha256(settings.encode()).hexdigest()[:12]
    return directory / PICTURES / f"{short}-{client_id:06d}-{round:06d}-{other}.json"


def reconstructions(directory: Path, rows: Iterable[Row]) -> dict[str, tuple[int, np.ndarray, np.ndarray]]:
    """Read originals and reconstructions, uint8 [M, C, H, W] each, of each attack's first client that has some.

    Raises:
        ConfigError: A file of pictures is damaged.
    """
    pictured: dict[str, tuple[int, np.ndarray, np.ndarray]] = {}
    for row in rows:
        file = pictures_of(directory, row["round"], row["client"], row["attack"], row["settings"])
        if row["attack"] in pictured or not file.exists():
            continue
        try:
            originals, others = (np.asarray(each, dtype=np.uint8) for each in read_json(file)[:2])
            if originals.shape != others.shape or originals.ndim != 4 or originals.shape[1] not in (1, 3):
                raise ValueError("its pictures have no common shape")
            pictured[row["attack"]] = row["client"], originals, others
        except (OSError, ValueError, LookupError, TypeError, OverflowError) as error:
            raise ConfigError(f"{file} is damaged ({reason(error)}): delete it and audit again") from None
    return pictured
