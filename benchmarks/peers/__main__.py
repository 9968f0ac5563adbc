"""Run the benches against the peers; see benchmarks/peers/README.md.

python -m benchmarks.peers --data DIRECTORY [--only B1 B2] [--systems flower rayfed-ssl] [--repeats 5] [--out DIRECTORY]
"""

import argparse
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import cases, faults, table
from benchmarks.peers.launch import ROOT, Environments, run_cases

LIMIT = 180.0
"""Seconds that one case may take."""

Key = tuple[str, str, str, int]


class Results:
    """Results on disk, one JSON object a line, so that what is there already is not measured again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self.keys: set[Key] = {(row["bench"], row["name"], row["system"], row["repeat"]) for row in self.rows}

    def add(self, bench: str, name: str, system: str, repeat: int, found: dict[str, Any]) -> None:
        """Write a result down."""
        row = {"bench": bench, "name": name, "system": system, "repeat": repeat, **found}
        self.rows.append(row)
        self.keys.add((bench, name, system, repeat))
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def missing(self, listed: Sequence[cases.Fields], system: str, repeat: int) -> list[cases.Fields]:
        """Select what is not there yet."""
        return [one for one in listed if (one["bench"], one["name"], system, repeat) not in self.keys]


def batches(options: argparse.Namespace) -> Iterator[tuple[list[cases.Fields], int]]:
    """List the cases of B1 to B7 in groups that share a process, each with its number of repeats."""
    groups: list[tuple[list[cases.Fields], int]] = [
        ([one for one in cases.timed(options.data) if one["bench"] in ("B1", "B3")], options.repeats),
        ([one for one in cases.timed(options.data) if one["bench"] in ("B2", "B5")], options.repeats),
        *(([one], options.repeats) for one in cases.scale(options.data)),
        *(([one], options.repeats) for one in cases.killed(options.data)),
        *(([one], 1) for one in cases.seeded(options.data)),  # which are repeats of each other
    ]
    for listed, repeats in groups:
        if chosen := [one for one in listed if one["bench"] in options.only]:
            yield chosen, repeats


def measure(options: argparse.Namespace, results: Results, environments: Environments) -> None:
    """Run what is missing, the systems in turn."""
    listed = list(batches(options))
    for repeat in range(options.repeats):
        for chosen, repeats in listed:
            for system in options.systems:
                fits = [one for one in chosen if system in cases.systems_of(one["bench"])]
                missing = results.missing(fits, system, repeat) if repeat < repeats else []
                if missing:
                    _run(system, missing, repeat, results, environments)
        for system in options.systems:
            _faults(system, repeat, options, results, environments)


def _run(system: str, missing: list[cases.Fields], repeat: int, results: Results, environments: Environments) -> None:
    found, ended = run_cases(system, missing, environments, LIMIT * len(missing))
    how = {"code": ended.code, "whole_seconds": ended.seconds}
    for one in missing:
        mine: dict[str, Any] = {"killed": []}
        for line in found:
            if (line["case"]["bench"], line["case"]["name"]) == (one["bench"], one["name"]):
                mine |= line  # who was killed is told before the result, and without one too
        lost = {} if "seconds" in mine else {"lost": ended.stderr}
        results.add(one["bench"], one["name"], system, repeat, {**how, **lost, **mine})
        told = "lost" if lost else " ".join(f"{seconds:.3f}" for seconds in mine["seconds"])
        _tell(f"{one['bench']} {one['name']:<20} {system:<10} repeat {repeat + 1}: {told}")


def _faults(
    system: str, repeat: int, options: argparse.Namespace, results: Results, environments: Environments
) -> None:
    for one, measured in (
        (cases.without_ray(options.data), faults.without_ray),
        (cases.resumed(options.data), faults.kill_and_resume),
    ):
        bench = one["bench"]
        if bench in options.only and system in cases.systems_of(bench) and results.missing([one], system, repeat):
            results.add(bench, one["name"], system, repeat, found := measured(system, one, environments))
            _tell(f"{bench} {system} repeat {repeat + 1}: {found}")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Measure, then make the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="directory of CIFAR-10's Parquet files")
    parser.add_argument("--only", nargs="+", default=list(cases.BENCHES), choices=list(cases.BENCHES))
    parser.add_argument("--systems", nargs="+", default=list(cases.SYSTEMS), choices=list(cases.SYSTEMS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_const", dest="repeats", const=1, help="one repeat")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "peers")
    parser.add_argument("--environments", type=Path, default=ROOT / ".bench", help="what setup.sh made")
    parser.add_argument("--code", type=Path, default=ROOT, help="another checkout of rayfed-ssl to measure")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is cleared away
    options.data = str(Path(options.data).resolve())
    options.out.mkdir(parents=True, exist_ok=True)
    results = Results(options.out / "results.jsonl")
    environments = Environments(Path(sys.executable), options.environments.resolve(), options.code.resolve())
    if missing := [system for system in options.systems if not environments.python(system).exists()]:
        print(f"left out, as {environments.peers} has no environment: {', '.join(missing)}", file=sys.stderr)
    options.systems = [system for system in options.systems if system not in missing]
    measure(options, results, environments)
    summary = table.summarize(results.rows)
    (options.out / "summary.json").write_text(json.dumps(summary, indent=1))
    (options.out / "table.md").write_text(table.markdown(summary))
    print(table.markdown(summary))


if __name__ == "__main__":
    main()
