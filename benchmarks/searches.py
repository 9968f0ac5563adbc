"""Compare searches of one space: the best score that each had found after so many rounds of training.

python -m benchmarks.searches SWEEP... [--figure best.png]

Rounds are counted over all trials and seeds in the order of trial numbers, with those of trials that were stopped early.
"""

import argparse
from pathlib import Path
from statistics import fmean
from typing import Any

from tune.sweeps.execution.directory import SweepDirectory
from tune.sweeps.execution.trial_table import read_rows


def best_over_rounds(directory: SweepDirectory) -> list[tuple[int, float]]:
    """List the rounds spent and the best mean score so far, after each complete trial."""
    score, rows = directory.sweep.goals[0].score, read_rows(directory.path / "trials.parquet")
    spent, best, found = 0, float("-inf"), []
    for number in sorted({row["trial"] for row in rows}):
        mine: list[dict[str, Any]] = [row for row in rows if row["trial"] == number]
        spent += sum(row["round"] for row in mine)
        if mine[0]["state"] == "complete":
            best = max(best, fmean(row[f"score.{score}"] for row in mine))
            found.append((spent, best))
    return found


def main() -> None:
    """Print the table, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    opened = [SweepDirectory.open(path) for path in options.sweeps]
    curves = {directory.record.name: best_over_rounds(directory) for directory in opened}
    for name, curve in curves.items():
        print(name)
        for spent, best in curve:
            print(f"  {spent:6} rounds  {best:.4f}")
    if options.figure is not None:
        draw(curves, options.figure)


def draw(curves: dict[str, list[tuple[int, float]]], path: Path) -> None:
    """Draw a step for each sweep."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, curve in curves.items():
        axes.step([spent for spent, _ in curve], [100 * best for _, best in curve], where="post", label=name)
    axes.set(xlabel="rounds of all trials", ylabel="best accuracy so far [%]")
    axes.legend()
    figure.savefig(path, dpi=144)


if __name__ == "__main__":
    main()
