"""FLESD's Table 1 in small, on real photographs: every row, two alphas, several seeds, then one table.

    uv run python benchmarks/table1.py --data ../shared/data/cifar10 --out runs/table1 [--seeds 0 1] [--alphas 1 0.01]

Runs are independent single-core processes, as many at once as `--jobs`; a run that is there already is not repeated.
"""

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean

from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.rescoring import rescore
from rayfed_ssl.reports.summary import Summary, summarize

ROWS: dict[str, list[str]] = {
    "Non-FL": ["method=local", "public=null", "rounds=1", "partition=pooled"],
    "Min-Local": ["method=local", "public=null", "rounds=1"],
    "FedAvg": ["method=fedavg", "method.weighting=uniform", "public=null", "rounds=10"],
    "FedProx": ["method=fedprox", "method.weighting=uniform", "method.mu=0.001", "public=null", "rounds=10"],
    "FLESD": [],
    "FLESD-cc": ["method.name=flesd-cc"],
}


def directory(out: Path, row: str, alpha: str, seed: int) -> Path:
    """Name a run; the centralized one does not depend on alpha."""
    return out / (f"{row}-s{seed}" if row == "Non-FL" else f"{row}-a{alpha}-s{seed}").lower()


def start(data: Path, out: Path, row: str, alpha: str, seed: int, settings: list[str]) -> None:
    """Run one cell in a process of its own."""
    target = directory(out, row, alpha, seed)
    if (target / "encoders").exists():
        return
    words = ["data.name=parquet", f"data.path={data}", f"seed={seed}", "engine.executor=local", *ROWS[row], *settings]
    if row != "Non-FL":
        words.append(f"partition.alpha={alpha}")
    command = [
        sys.executable,
        "-m",
        "tune.cli",
        "run",
        "flesd-table1-cifar10-cpu",
        "-q",
        "--out",
        str(target),
        *words,
    ]
    with (out / f"{target.name}.log").open("w") as log:
        subprocess.run(command, stdout=log, stderr=log, check=False)


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--alphas", nargs="+", default=["1", "0.01"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--jobs", type=int, default=2)
    options, settings = parser.parse_known_args()
    options.out.mkdir(parents=True, exist_ok=True)
    cells = [(row, alpha, seed) for seed in options.seeds for alpha in options.alphas for row in options.rows]
    cells = list({directory(options.out, *cell): cell for cell in cells}.values())
    with ThreadPoolExecutor(options.jobs) as pool:
        for future in [pool.submit(start, options.data, options.out, *cell, settings) for cell in cells]:
            future.result()
    print_table(options.out, options.rows, options.alphas, options.seeds)


def print_table(out: Path, rows: list[str], alphas: list[str], seeds: list[int]) -> None:
    """Print accuracies by row and alpha, and what each row moved."""
    print(
        "| | rounds | " + " | ".join(f"alpha={alpha}" for alpha in alphas) + " | up per client | down per client | s |"
    )
    print("|---" * (len(alphas) + 5) + "|")
    for row in rows:
        cells, last = [], None
        for alpha in alphas:
            found = [path for seed in seeds if (path := directory(out, row, alpha, seed) / "run.json").exists()]
            summaries = [summarize(RunRecord.open(path.parent)) for path in found]
            cells.append(", ".join(accuracy(row, summary) for summary in summaries))
            last = summaries[-1] if summaries else last
        if last is not None:
            up, down = (size / last.num_clients / 1e6 for size in (last.bytes_up, last.bytes_down))
            print(f"| {row} | {last.rounds} | {' | '.join(cells)} | {up:.2f} MB | {down:.2f} MB | {last.seconds:.0f} |")
    first = next(path.parent for path in out.glob("*/run.json"))
    scores = [evaluation.metrics["linear"] for evaluation in rescore(first, initial=True)]
    print(f"| random encoder | 0 | {100 * fmean(scores):.2f} | | | | |")


def accuracy(row: str, summary: Summary) -> str:
    """Give a run's linear-probe accuracy in percent: the minimum over clients for Min-Local, with the mean."""
    if not summary.finished:
        return "unfinished"
    if row == "Min-Local":
        return f"{100 * (summary.minimum('linear') or 0):.2f} (mean {100 * (summary.headline('linear') or 0):.2f})"
    return f"{100 * (summary.headline('linear') or 0):.2f}"


if __name__ == "__main__":
    main()
