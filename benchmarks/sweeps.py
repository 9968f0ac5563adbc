"""One sweep several times: 1, 2 and 4 trials at a time, and killed half way and resumed. All tables must be equal.

python -m benchmarks.sweeps [SWEEP] [KEY=VALUE]... [--out DIRECTORY]
"""

import argparse
import hashlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from tune.sweeps.execution.directory import SweepDirectory
from tune.sweeps.execution.trial_table import read_rows

COMMAND = [sys.executable, "-m", "tune.cli", "sweep"]


def digest(directory: Path) -> str:
    """Digest what a sweep found: its rows but for times, and the state that each run ended with."""
    rows = read_rows(directory / "trials.parquet")
    for row in rows:
        del row["seconds"]
        if row["run"] is not None:
            row["state_sha256"] = json.loads((directory / row["run"] / "run.json").read_text())["rounds"][-1][
                "state_sha256"
            ]
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]


def whole(words: list[str], out: Path, concurrency: int) -> float:
    """Run a sweep; returns its seconds."""
    began = time.perf_counter()
    subprocess.run([*COMMAND, *words, "--out", str(out), "--concurrency", str(concurrency), "--quiet"], check=True)
    return time.perf_counter() - began


def killed(words: list[str], out: Path) -> tuple[float, int]:
    """Kill a sweep when half of its runs are made, and resume it; returns its seconds, and how many runs it had then."""
    began = time.perf_counter()
    process = subprocess.Popen([*COMMAND, *words, "--out", str(out), "--quiet"])
    while not (out / "sweep.json").is_file():
        time.sleep(0.2)
    half = len(SweepDirectory.open(out).sweep.space.grid()) // 2
    while finished(out) < half and process.poll() is None:
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    if process.wait() != -signal.SIGKILL:
        sys.exit("the sweep had ended before it could be killed: take a larger one")
    made = finished(out)
    subprocess.run([*COMMAND, "--resume", str(out), "--quiet"], check=True)
    return time.perf_counter() - began, made


def finished(out: Path) -> int:
    """Count the runs that came to their end."""
    records = [json.loads(path.read_text()) for path in out.glob("runs/*/run.json")]
    return sum(record["finished"] is not None for record in records)


def main() -> None:
    """Run them all and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", default=["digits"], help="a sweep that is a grid, then settings")
    parser.add_argument("--out", type=Path, default=Path("runs") / "same-sweep")
    options = parser.parse_args()
    told, found = [], []
    for concurrency in (1, 2, 4):
        out = options.out / f"at-once-{concurrency}"
        seconds = whole(options.words, out, concurrency)
        found.append(digest(out))
        told.append(f"| {concurrency} at a time | {found[-1]} | {seconds:.0f} |")
    out = options.out / "killed"
    seconds, made = killed(options.words, out)
    found.append(digest(out))
    told.append(f"| killed after {made} runs, resumed | {found[-1]} | {seconds:.0f} |")
    print("\n".join(["| | what was found | s |", "|---|---|---|", *told]))
    if len(set(found)) > 1:
        sys.exit("the tables differ")


if __name__ == "__main__":
    main()
