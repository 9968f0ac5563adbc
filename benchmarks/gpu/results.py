"""The results: one JSON file that grows unit by unit, and its table in Markdown."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.setting import Row
from rayfed_ssl.storage.filesystem import write_atomically

HEADER = "| piece | case | rate | ms | share of peak | peak memory | GPU utilization | equal bits | |"


class Results:
    """What has been measured on one machine.

    Args:
        directory: Holds results.json and results.md.
        machine: What all results have in common.
    """

    def __init__(self, directory: Path, machine: dict[str, Any]) -> None:
        self._directory = directory
        self._file = directory / "results.json"
        self._content: dict[str, Any] = {"machine": machine, "units": {}}
        if self._file.exists():
            self._content = json.loads(self._file.read_text())
            if self._content["machine"] != machine:
                raise SystemExit(f"{self._file} holds results of {self._content['machine']}: choose another --out")

    def unit(self, key: str) -> dict[str, Any]:
        """Give what is known about a unit."""
        unit: dict[str, Any] = self._content["units"].setdefault(key, {"state": "new", "rows": [], "cut_off": 0})
        return unit

    def is_done(self, key: str) -> bool:
        """Whether a unit has been measured."""
        return bool(self.unit(key)["state"] == "done")

    def begin(self, key: str) -> None:
        """Note that a unit runs now; one that ran before and did not end was cut off with its process."""
        unit = self.unit(key)
        self._update(key, state="running", cut_off=unit["cut_off"] + (unit["state"] == "running"))

    def end(self, key: str, state: str, seconds: float, rows: list[Row] | None = None, error: str = "") -> None:
        """Keep what a unit gave; "unfinished" ones continue, "failed" ones are tried again."""
        unit = self.unit(key)
        self._update(key, state=state, seconds=unit.get("seconds", 0) + seconds, error=error)
        if rows is not None:
            self._update(key, rows=rows)

    def _update(self, key: str, **values: Any) -> None:
        self.unit(key).update(values)
        write_atomically(self._file, (json.dumps(self._content, indent=1) + "\n").encode())

    def write_table(self) -> str:
        """Write the table of all units that have begun, and give it."""
        units = {key: unit for key, unit in self._content["units"].items() if unit["state"] != "new"}
        hashes = {row["sha256"] for unit in units.values() for row in unit["rows"] if "sha256" in row}
        about = ", ".join(f"{name} {value}" for name, value in self._content["machine"].items() if value is not None)
        lines = [about, "", HEADER, "|---" * (HEADER.count("|") - 1) + "|"]
        for key, unit in units.items():
            piece = key.partition("/")[0]
            lines += [_line(piece, _compared(row, hashes)) for row in unit["rows"]]
            if problem := _problem(unit):
                lines.append(_line(piece, {"case": key.partition("/")[2], "note": problem}))
        text = "\n".join(lines) + "\n"
        (self._directory / "results.md").write_text(text)
        return text


def _compared(row: Row, hashes: set[str]) -> Row:
    """Say for a run's hash whether those of all runs are equal."""
    return {"equal": len(hashes) == 1, **row} if "sha256" in row else row


def _problem(unit: dict[str, Any]) -> str:
    problems = [f"cut off {unit['cut_off']} times"] if unit["cut_off"] else []
    problems += [] if unit["state"] == "done" else [unit["state"]]
    problems += [unit["error"]] if unit.get("error") else []
    return "; ".join(problems)


def _line(piece: str, row: Row) -> str:
    def cell(name: str, format: str, scale: float = 1, unit: str = "") -> str:
        value = row.get(name)
        return "" if value is None else f"{scale * value:{format}} {unit}".strip()

    equal = {None: "", True: "yes", False: "NO"}[row.get("equal")]
    cells: Sequence[str] = (
        piece,
        row["case"],
        cell("rate", ",.0f", unit=row.get("unit", "")),
        cell("milliseconds", ".2f"),
        cell("share", ".1f", 100, "%"),
        cell("memory", ".2f", 1e-9, "GB"),
        cell("utilization", ".0f", unit="%"),
        equal,
        row.get("note", "").replace("|", "/"),
    )
    return f"| {' | '.join(cells)} |"
