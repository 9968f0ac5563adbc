"""Devices: how fast clients compute and send, when they are available, and how often they fail."""

import csv
import io
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import NormalDist
from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from rayfed_ssl.errors import ConfigError, nearest, plain, reason
from rayfed_ssl.foreign.parquet import DAMAGE, read_table, rows_of
from rayfed_ssl.foreign.reading import read_bytes
from rayfed_ssl.validation import AbsolutePath, UnitInterval, Validated

SECOND = 10**9
MINUTE = 60 * SECOND
DAY = 24 * 60 * MINUTE

MAX_TABLE = 8 << 20
"""Bytes of a table of devices, as CSV."""

MAX_DEVICES = 200_000
"""Rows of a table of devices."""

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Sigma = Annotated[float, Field(ge=0, le=10)]


def uniform(seed: int, *counters: int) -> float:
    """Draw a number in (0, 1) that follows from its arguments alone, whatever was drawn before (SplitMix64)."""
    mixed = seed
    for counter in counters:
        mixed = (mixed + (counter + 1) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return ((mixed >> 11) + 0.5) * 2.0**-53


@dataclass(frozen=True)
class Device:
    """A client's device.

    Attributes:
        flops: Floating-point operations a second while it trains; None where `sample_seconds` says it.
        sample_seconds: Seconds to train on one sample for one epoch.
        down_mbit: Megabits a second that it receives.
        up_mbit: Megabits a second that it sends.
        latency_ms: Added to each download and each upload.
        failure: Probability that a task fails.
        windows: When it is available, every day, as (start, length) in nanoseconds; none means always.
    """

    flops: float | None
    sample_seconds: float | None
    down_mbit: float
    up_mbit: float
    latency_ms: float = 0.0
    failure: float = 0.0
    windows: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        given = {self.flops, self.sample_seconds} - {None} or {None}
        speeds = [("flops or sample_seconds", speed) for speed in given]
        for name, value in (*speeds, ("down_mbit", self.down_mbit), ("up_mbit", self.up_mbit)):
            if value is None or not 0 < value < math.inf:
                raise ConfigError(
                    f"a device's {name} must be a number above 0, got {value}: raise it, or lower its sigma if it has one"
                )
        for name, value, high in (("latency_ms", self.latency_ms, math.inf), ("failure", self.failure, 1)):
            if not (0 <= value <= high and value < math.inf):
                bound = "from 0 to 1" if high == 1 else "of at least 0"
                raise ConfigError(f"a device's {name} must be a number {bound}, got {value}: change it")
        if any(not (0 <= start < DAY and 0 < length <= DAY) for start, length in self.windows):
            raise ConfigError(f"a device's windows must be (start, length) within a day, got {self.windows!r:.60}")

    def window(self, time: int) -> tuple[int, float] | None:
        """Find the begin and the end of the window that a time lies in; None if the device is away."""
        if not self.windows:
            return -1, math.inf
        into = [(length - gone, gone) for start, length in self.windows if (gone := (time - start) % DAY) < length]
        if not into:
            return None
        left, gone = max(into)
        return time - gone, (math.inf if left + gone >= DAY else time + left)


class Devices(Validated, ABC):
    """Where clients' devices come from."""

    @abstractmethod
    def draw(self, clients: Sequence[int], seed: int) -> tuple[Device, ...]:
        """Draw each client's device, which depends on the seed and its id alone."""


@pydantic_dataclass(frozen=True, kw_only=True)
class Even(Devices):
    """Equal devices that are always available, unless a field says otherwise."""

    flops: Positive = 1e12
    """Floating-point operations a second while a device trains, the median."""
    flops_sigma: Sigma = 0.0
    """Standard deviation of its logarithm (log-normal); 0 makes all equal."""
    down_mbit: Positive = 100.0
    """Megabits a second that a device receives, the median."""
    up_mbit: Positive = 100.0
    """Megabits a second that it sends, the median."""
    mbit_sigma: Sigma = 0.0
    """Standard deviation of both logarithms; one draw of a client scales both."""
    latency_ms: NotNegative = 0.0
    """Added to each download and each upload, the median."""
    latency_sigma: Sigma = 0.0
    """Standard deviation of its logarithm."""
    failure: UnitInterval = 0.0
    """Probability that a task fails."""
    hours: Annotated[float, Field(gt=0, le=24)] = 24.0
    """Hours that a device is available each day, in one window whose start is drawn."""

    def draw(self, clients: Sequence[int], seed: int) -> tuple[Device, ...]:
        """Draw each client's device."""
        return tuple(self._device(seed, client) for client in clients)

    def _device(self, seed: int, client: int) -> Device:
        def scaled(median: float, sigma: float, number: int) -> float:
            if not sigma or not median:
                return median
            # To six digits, as math.exp may differ in its last one between machines.
            return float(f"{median * math.exp(sigma * NormalDist().inv_cdf(uniform(seed, client, number))):.6g}")

        length = round(self.hours * 3600 * SECOND)
        start = int(uniform(seed, client, 3) * 86_400) * SECOND
        return Device(
            scaled(self.flops, self.flops_sigma, 0),
            None,
            scaled(self.down_mbit, self.mbit_sigma, 1),
            scaled(self.up_mbit, self.mbit_sigma, 1),
            scaled(self.latency_ms, self.latency_sigma, 2),
            self.failure,
            () if length >= DAY else ((start, length),),
        )


@pydantic_dataclass(frozen=True, kw_only=True)
class Phones(Even):
    """Phones that train while they charge; all numbers are assumed (docs/clock.md)."""

    flops: Positive = 1e10
    flops_sigma: Sigma = 0.6
    down_mbit: Positive = 40.0
    up_mbit: Positive = 10.0
    mbit_sigma: Sigma = 1.0
    latency_ms: NotNegative = 50.0
    latency_sigma: Sigma = 0.5
    failure: UnitInterval = 0.05
    hours: Annotated[float, Field(gt=0, le=24)] = 8.0


@pydantic_dataclass(frozen=True, kw_only=True)
class Hospitals(Even):
    """Hospitals with a GPU each; all numbers are assumed (docs/clock.md)."""

    flops: Positive = 5e12
    flops_sigma: Sigma = 0.5
    down_mbit: Positive = 300.0
    up_mbit: Positive = 100.0
    mbit_sigma: Sigma = 0.5
    latency_ms: NotNegative = 20.0
    latency_sigma: Sigma = 0.3
    failure: UnitInterval = 0.005


@pydantic_dataclass(frozen=True, kw_only=True)
class Table(Devices):
    """A CSV or Parquet file with a device a row; each client draws a row."""

    path: AbsolutePath
    """Columns `flops` or `sample_seconds`, `down_mbit`, `up_mbit`, and if wanted `latency_ms`, `failure` and `available`
    ("08:00-12:00 22:00-06:00").
    """

    def draw(self, clients: Sequence[int], seed: int) -> tuple[Device, ...]:
        """Read the table, and draw each client's row."""
        devices = [self._device(number, row) for number, row in enumerate(_read(self.path), 1)]
        return tuple(devices[int(uniform(seed, client, 4) * len(devices))] for client in clients)

    def _device(self, number: int, row: Mapping[str, object]) -> Device:
        try:
            numbers = {column: float(str(value)) for column, value in row.items() if column != "available"}
            speeds = numbers.pop("flops", None), numbers.pop("sample_seconds", None)
            return Device(*speeds, **numbers, windows=_windows(str(row.get("available") or "")))
        except ValueError as error:
            raise ConfigError(f"{self.path}, row {number}: {plain(str(error))}") from None


def _windows(text: str) -> tuple[tuple[int, int], ...]:
    """Read times of day, "08:00-12:00 22:00-06:00"."""
    windows = []
    for word in text.split():
        match = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)", word, re.ASCII)
        if match is None or int(match[3]) * 60 + int(match[4]) > 24 * 60:
            raise ValueError(f"available must be times of day such as 08:00-12:00 22:00-06:00, got {word!r}")
        start, end = (60 * (60 * int(match[part]) + int(match[part + 1])) * SECOND for part in (1, 3))
        windows.append((start, (end - start) % DAY or DAY))
    return merged(windows)


def merged(windows: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Join windows of a day, (start, length) in whole minutes, that overlap or touch, over midnight too."""
    minutes = np.zeros(DAY // MINUTE, dtype=bool)
    for start, length in windows:
        minutes[(start // MINUTE + np.arange(length // MINUTE)) % len(minutes)] = True
    if minutes.all() or not minutes.any():
        return ()
    begins = np.flatnonzero(minutes & ~np.roll(minutes, 1))
    ends = np.flatnonzero(~minutes & np.roll(minutes, 1))
    return tuple((int(begin) * MINUTE, int(((ends - begin) % len(minutes)).min()) * MINUTE) for begin in begins)


REQUIRED, OPTIONAL = ("down_mbit", "up_mbit"), ("flops", "sample_seconds", "latency_ms", "failure", "available")


def _read(path: Path) -> Sequence[Mapping[str, object]]:
    """Read the rows of a CSV or Parquet file, and refuse columns that mean nothing here."""
    try:
        if path.suffix == ".parquet":
            rows: Sequence[Mapping[str, object]] = rows_of(read_table(path, max_rows=MAX_DEVICES, any_codec=True))
        elif path.suffix == ".csv":
            text = io.StringIO(read_bytes(path, MAX_TABLE).decode("utf-8-sig"), newline="")
            reader = csv.DictReader(text, strict=True)
            if len(set(reader.fieldnames or ())) < len(reader.fieldnames or ()):
                raise ConfigError(f"{path} has two columns of one name: remove one")
            rows = list(islice(reader, MAX_DEVICES + 1))
            if len(rows) > MAX_DEVICES:
                raise ConfigError(
                    f"{path} has more than {MAX_DEVICES:,} rows: each client draws one, so take some of them"
                )
        else:
            raise ConfigError(f"a table of devices is a .csv or a .parquet file, got {path}")
    except (*DAMAGE, csv.Error) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} cannot be read as a table of devices ({reason(error)})") from None
    if not rows:
        raise ConfigError(f"{path} has no row: a table of devices needs one at least")
    for number, row in enumerate(rows, 1):
        if None in row or None in [value for name, value in row.items() if name != "available"]:
            raise ConfigError(f"{path}, row {number} has {'more' if None in row else 'fewer'} cells than the head")
    for column in rows[0]:
        if column not in REQUIRED + OPTIONAL:
            raise ConfigError(f"{path} has an unknown column {column!r:.60}{nearest(column, REQUIRED + OPTIONAL)}")
    if missing := [column for column in REQUIRED if column not in rows[0]]:
        raise ConfigError(f"{path} has no column {missing[0]!r}")
    if ("flops" in rows[0]) == ("sample_seconds" in rows[0]):
        raise ConfigError(f"{path} must have one of the columns 'flops' and 'sample_seconds'")
    return rows


DEVICES: dict[str, type[Devices]] = {"even": Even, "phones": Phones, "hospitals": Hospitals, "table": Table}


class Availability:
    """Which of many devices are available at a time; answers do not depend on earlier questions."""

    def __init__(self, devices: Sequence[Device]) -> None:
        most = max(len(device.windows) for device in devices)
        self.is_constant = most == 0
        always = ((0, DAY),)
        padded = [(device.windows or always) + ((0, 0),) * (most - len(device.windows)) for device in devices]
        windows = np.array([row[: max(1, most)] for row in padded], dtype=np.int64)
        self._starts, self._lengths = windows[..., 0], windows[..., 1]

    def at(self, time: int) -> np.ndarray:
        """Find the positions of the available devices, in ascending order."""
        if self.is_constant:
            return np.arange(len(self._starts))
        return np.flatnonzero(((time - self._starts) % DAY < self._lengths).any(axis=1))

    def next_start(self, time: int) -> int:
        """Find when the next window of any device begins."""
        waits = (self._starts - time) % DAY
        return time + int(waits[(self._lengths > 0) & (waits > 0)].min(initial=DAY))
