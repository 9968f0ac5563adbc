"""Numbers as text, the same in reports, in tables of sweeps and in the terminal."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal

from rich import filesize

Unit = Literal["percent", "bytes", "seconds", ""]
"""What a number is: a share in [0, 1] that is written in percent, bytes, seconds, or a plain number."""


def size(num_bytes: float) -> str:
    """Write bytes in the unit that fits, "1.50 MB"; a megabyte is 10^6 bytes, as in the papers."""
    return filesize.decimal(round(num_bytes), precision=2)


def percent(share: float | None, missing: str = "-") -> str:
    """Write a share in [0, 1] as "12.34%"."""
    return missing if share is None else f"{100 * share:.2f}%"


def points(difference: float | None, missing: str = "-") -> str:
    """Write a difference of two shares in percentage points, as "+1.20" or "-3.40"."""
    return missing if difference is None else f"{100 * difference:+.2f}"


def duration(seconds: float) -> str:
    """Write a time in the unit that fits: "59.9 s", "2 min 30 s", "1 h 02 min"."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def number(value: float | None, unit: str = "", missing: str = "-") -> str:
    """Write a number to four digits; None and what is not finite is missing."""
    return missing if value is None or not math.isfinite(value) else f"{value:.4g}{unit}"


def number_text(value: float, unit: Unit) -> str:
    """Write a number in its unit."""
    texts: dict[str, Callable[[float], str]] = {"percent": percent, "bytes": size, "seconds": duration, "": number}
    return texts[unit](value)


DECISIVE = 2.0
"""Standard errors of their difference within which neither of two accuracies is above the other."""


def standard_error(first: float, second: float, samples: int) -> float:
    """Standard error of the difference of two accuracies in [0, 1], each on so many test pictures.

    It is binomial and unpaired, as no results by picture are on record: of equal pictures it is rather too large. Of none or
    all it is that of one picture less or more. It is 0 where their number is not known.
    """
    if not samples:
        return 0.0
    least = (1 - 1 / samples) / samples
    return math.sqrt(sum(max(share * (1 - share), least) for share in (first, second)) / samples)


def value_text(value: Any, *, short: bool = False) -> str:
    """Show a setting as it is written in YAML, or a number with four digits at most."""
    if isinstance(value, str):
        return value
    return f"{value:.4g}" if short and isinstance(value, float) else json.dumps(value, default=str)


@dataclass(frozen=True)
class MeanStd:
    """Mean and deviation of a number over seeds.

    Attributes:
        mean: Over the runs that have the number.
        std: Sample standard deviation (n - 1); None for a single run.
        n: Number of these runs.
    """

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "MeanStd":
        """Summarize at least one value."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, len(values))

    def text(self, unit: Unit = "percent", *, symbol: bool = True, n: bool = False) -> str:
        """Write "71.20 ± 0.31%", "1.23 MB ± 4.00 kB", "0.4123 ± 0.012", or "not reached" of an infinite time.

        Args:
            unit: What the number is.
            symbol: Whether the percent sign follows.
            n: Whether "(n = 3)" follows where there are several runs.
        """
        mean, std = self.mean, self.std
        if mean == math.inf and unit in ("seconds", "bytes"):
            return "not reached"
        if unit == "percent":
            spread = "" if std is None else f" ± {100 * std:.2f}"
            text = f"{100 * mean:.2f}{spread}{'%' * symbol}"
        elif unit:
            text = number_text(mean, unit) + (f" ± {number_text(std, unit)}" if std else "")
        else:
            text = f"{mean:.4g}" + ("" if std is None else f" ± {std:.2g}")
        return text + (f" (n = {self.n})" if n and std is not None else "")
