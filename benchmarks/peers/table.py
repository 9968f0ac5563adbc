"""From results to numbers and to the table of docs/peers.md.

python -m benchmarks.peers.table RESULTS.jsonl
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.cases import BENCHES, SYSTEMS

Row = Mapping[str, Any]
Summary = dict[str, dict[str, Any]]

OURS = "rayfed-ssl"
NAMES = {
    "plain": "plain loop",
    "ray": "bare Ray",
    "pfl": "pfl-research",
    "blazefl": "BlazeFL",
    "flower": "Flower",
    OURS: OURS,
}


def spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """Take median and range of a measurement's repeats; None without any."""
    known = [value for value in values if value is not None]
    return {"median": median(known), "low": min(known), "high": max(known), "repeats": len(known)} if known else None


def seconds(row: Row) -> float:
    """Seconds of a round: the median of a process's timed rounds."""
    return float(median(row["seconds"]))


def ideal_ratio(row: Row) -> float:
    """Makespan over the least that is possible with as many processes, given how long each client took in this run."""
    case, count = row["case"], len(row["seconds"])
    per_round = len(row["clients"]) // count
    bounds = 0.0
    for start in range(0, len(row["clients"]), per_round):
        clients = row["clients"][start : start + per_round]
        bounds += max(sum(clients) / case["actors"], *clients)
    return sum(row["seconds"]) / bounds


class Measured:
    """Rows by what was measured, for statistics in which repeats are paired."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {(row["bench"], row["name"], row["system"], row["repeat"]): row for row in rows}

    def names(self, bench: str) -> list[str]:
        """List a bench's cases in the order of their measurement."""
        return list(dict.fromkeys(name for of, name, _, _ in self._rows if of == bench))

    def rows(self, bench: str, name: str, system: str, *, complete: bool = True) -> dict[int, Row]:
        """Select the repeats of a case; those that wrote no result only where they are asked for."""
        return {
            repeat: row
            for (of, case, who, repeat), row in self._rows.items()
            if (of, case, who) == (bench, name, system) and (not complete or "seconds" in row)
        }

    def values(self, bench: str, name: str, value: Callable[[Row], float]) -> dict[str, Any]:
        """Compute a number per repeat and its spread, by system."""
        found = {who: spread(map(value, self.rows(bench, name, who).values())) for who in SYSTEMS}
        return {who: own for who, own in found.items() if own}

    def paired(
        self, first: tuple[str, str, str], second: tuple[str, str, str], value: Callable[[Row, Row], float | None]
    ) -> dict[str, float] | None:
        """Compute a number per repeat from two cases of the same repeat."""
        one, two = self.rows(*first), self.rows(*second)
        return spread(value(one[repeat], two[repeat]) for repeat in sorted(one.keys() & two.keys()))


def summarize(rows: Sequence[Row]) -> Summary:
    """Compute what the benches are about, by line of the table and system."""
    measured = Measured(rows)
    summary: Summary = {}
    for bench in ("B1", "B3"):
        for name in measured.names(bench):
            summary[f"{bench} {name}: s/round"] = measured.values(bench, name, seconds)
    _add_training(measured, summary)
    _add_scale(measured, summary)
    _add_faults(measured, summary)
    return {line: values for line, values in summary.items() if values}


def _add_training(measured: Measured, summary: Summary) -> None:
    summary["B2: clients/s"] = measured.values("B2", "SimCLR", lambda row: row["case"]["cohort"] / seconds(row))
    plain = ("B2", "SimCLR", "plain")
    efficiency = {
        who: measured.paired(plain, ("B2", "SimCLR", who), lambda one, two: one["core_seconds"] / two["core_seconds"])
        for who in SYSTEMS
    }
    summary["B2: CPU efficiency against the plain loop"] = {who: own for who, own in efficiency.items() if own}
    summary["B5: s/round"] = measured.values("B5", "log-normal", seconds)
    summary["B5: makespan / ideal"] = measured.values("B5", "log-normal", ideal_ratio)


def _mb_per_client(few: Row, many: Row) -> float | None:
    """Memory that a client adds; None for results from before this was measured."""
    return (many["data_mb"] - few["data_mb"]) / 900 if "data_mb" in few and "data_mb" in many else None


def _add_scale(measured: Measured, summary: Summary) -> None:
    few, many = "100 clients", "1000 clients"
    for name in (few, many):
        summary[f"B4 {name}: s/round"] = measured.values("B4", name, seconds)
    for line, value in (
        ("B4: s/round of 1,000 over 100", lambda one, two: seconds(two) / seconds(one)),
        ("B4: MB per added client", _mb_per_client),
    ):
        found = {who: measured.paired(("B4", few, who), ("B4", many, who), value) for who in SYSTEMS}
        summary[line] = {who: own for who, own in found.items() if own}


def _add_faults(measured: Measured, summary: Summary) -> None:
    summary["B6: failed clients by round"] = _each(measured, _deaths)
    summary["B7: distinct first cohorts / hashes"] = _each(measured, _seeds)
    summary["B8: seconds to exit, exit code"] = _each(measured, _exits)
    summary["B9: same hash, rounds lost"] = _each(measured, _resumed)


def _each(measured: Measured, tell: Callable[[Measured, str], str | None]) -> dict[str, Any]:
    told = {who: tell(measured, who) for who in SYSTEMS}
    return {who: text for who, text in told.items() if text}


def counted(texts: Sequence[str]) -> str | None:
    """Join what each repeat has come to; where they differ, with how many came to it."""
    counts = Counter(texts)
    if len(counts) < 2:
        return next(iter(counts), None)
    return "; ".join(f"{count} of {len(texts)}: {text}" for text, count in counts.most_common())


def _deaths(measured: Measured, system: str) -> str | None:
    undisturbed, killed = (measured.rows("B6", name, system, complete=False) for name in ("undisturbed", "killed"))
    return counted([_death(undisturbed[repeat], row) for repeat, row in killed.items() if repeat in undisturbed])


def _death(undisturbed: Row, killed: Row) -> str:
    code = "hung" if killed["code"] is None else f"exit {killed['code']}"
    deaths = [death["round"] for death in killed.get("killed", ())]
    died = f"a death in round {deaths[0]}" if deaths else "nobody seen to die"
    if "seconds" not in killed:
        return f"run lost, {code}, {died}"
    same = "same hash" if killed["weights"] == undisturbed.get("weights") else "other hash"
    return f"{' '.join(map(str, killed['failed']))}, {code}, {same}, {died}"


def _seeds(measured: Measured, system: str) -> str | None:
    rows = [row for name in measured.names("B7") for row in measured.rows("B7", name, system).values()]
    if not rows:
        return None
    cohorts, hashes = {tuple(row["cohorts"][0]) for row in rows}, {row["weights"] for row in rows}
    return f"{len(cohorts)} / {len(hashes)} of {len(rows)} runs"


def _exits(measured: Measured, system: str) -> str | None:
    rows = measured.rows("B8", "no Ray", system, complete=False).values()
    ended = [row for row in rows if row["code"] is not None]
    texts = [f"hung (over {row['exit_seconds']:.0f} s)" for row in rows if row["code"] is None]
    for code in dict.fromkeys(row["code"] for row in ended):
        seconds_to_exit = spread(row["exit_seconds"] for row in ended if row["code"] == code)
        texts += [f"{cell(seconds_to_exit)} s, {code}"]
    return "; ".join(texts) or None


def _resumed(measured: Measured, system: str) -> str | None:
    return counted([_resumption(row) for row in measured.rows("B9", "resumed", system, complete=False).values()])


def _resumption(row: Row) -> str:
    if row["rounds_repeated"] is None:
        return f"does not finish, exit {row['code']}"
    same = {True: "same hash", False: "other hash", None: "nothing undisturbed to compare with"}[row["same"]]
    return f"{same}, {row['rounds_repeated']} of 2 finished rounds lost"


def cell(value: Any) -> str:
    """Write a value of the summary: words as they are, numbers as median (range)."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    numbers = [f"{value[key]:.3g}" for key in ("median", "low", "high")]
    return numbers[0] if value["repeats"] == 1 else f"{numbers[0]} ({numbers[1]} to {numbers[2]})"


def markdown(summary: Summary) -> str:
    """Write the table: lines are measurements, columns are systems."""
    lines = [f"| | {' | '.join(NAMES[who] for who in SYSTEMS)} |", f"|---|{'---|' * len(SYSTEMS)}"]
    lines += [
        f"| {line} | {' | '.join(cell(values.get(who)) for who in SYSTEMS)} |" for line, values in summary.items()
    ]
    legend = [f"{bench}: {text}." for bench, text in BENCHES.items()]
    return "\n".join([*lines, "", *legend]) + "\n"


if __name__ == "__main__":
    print(markdown(summarize([json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()])))
