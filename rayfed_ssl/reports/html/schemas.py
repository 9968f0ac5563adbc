"""What the report needs of `reproduction.json` and `diagnostics.json`, so that a damaged file is told before it is drawn.

Other keys may be there; `rayfed_ssl/reproduction.py` and `reports/diagnose.py` say what the files mean.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class _Cell(_Part):
    row: str
    column: str
    published: float | None = None
    mean: float | None = None
    std: float | None = None
    difference: float | None = None
    ours: list[float | None] | None = None
    runs: list[str | None] | None = None
    failures: dict[str, Any] | None = None


class _Agreement(_Part):
    kendall: float | None = None
    columns: dict[str, float | None] | None = None


class ReproductionFile(_Part):
    """`reproduction.json`: a table's rows and columns, and a cell for each place that was tried."""

    rows: list[str]
    columns: list[str]
    cells: list[_Cell]
    seeds: list[int] | None = None
    source: dict[str, Any] | None = None
    skipped: dict[str, Any] | None = None
    agreement: _Agreement | None = None
    notes: list[Any] | None = None
    figures: list[str] | None = None


class _Matrix(_Part):
    encoders: list[str]
    values: list[list[float | None]]
    range: list[float | None] | None = None
    title: str | None = None
    unit: str | None = None

    @model_validator(mode="after")
    def _check(self) -> "_Matrix":
        if {len(self.values), *map(len, self.values)} != {len(self.encoders)}:
            raise ValueError("as many rows and columns as encoders are needed")
        if self.range and len(self.range) != 2:
            raise ValueError("a range is two numbers")
        return self


class _Quartiles(_Part):
    encoders: list[str]
    lower: float | None
    median: float | None
    upper: float | None


class _Negatives(_Part):
    clients: list[int]
    local: list[float] | None = None
    fused: list[float] | None = None
    remote: list[float] | None = None

    @model_validator(mode="after")
    def _check(self) -> "_Negatives":
        if any(found and len(found) != len(self.clients) for found in (self.local, self.fused, self.remote)):
            raise ValueError("as many shares as clients are needed")
        return self


class DiagnosticsFile(_Part):
    """`diagnostics.json`: matrices over pairs of encoders, and what was measured of each."""

    matrices: dict[str, _Matrix]
    encoders: dict[str, dict[str, Any]] | None = None
    angles: list[_Quartiles] | None = None
    false_negatives: _Negatives | None = None
    notes: list[Any] | None = None


def damage(content: Any, schema: type[BaseModel]) -> str | None:
    """Say in a few words what is wrong with a file's content first, or None where nothing is."""
    try:
        schema.model_validate(content)
    except ValidationError as error:
        mistake = error.errors()[0]
        where = ".".join(map(str, mistake["loc"]))
        if mistake["type"] == "missing":
            return f"there is no {where!r} in it"
        what = mistake["msg"].removeprefix("Value error, ")
        return f"{where}: {what[0].lower()}{what[1:]}" if where else "it is no table of keys and values"
    return None
