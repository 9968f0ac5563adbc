"""Measure this simulator on one CUDA GPU, in calls of some minutes that continue where the last one ended.

    python -m benchmarks.gpu --list
    python -m benchmarks.gpu [--pieces views,steps] [--data DIR] [--out DIR] [--minutes 9] [--dry-run]

Each unit of a piece runs in a process of its own. Its results go into DIR/results.json as they come, and the table into
DIR/results.md; what it printed is in DIR/logs. A unit that is done is not run again. --dry-run runs the same code on the
CPU at about a hundredth of the size.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.gpu.pieces import PIECES
from benchmarks.gpu.results import Results
from benchmarks.gpu.setting import Outcome, Setting

LEAST_SECONDS = 20
"""No unit begins with less time left."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="list the pieces and end")
    parser.add_argument("--pieces", default=",".join(PIECES), help="names, separated by commas")
    parser.add_argument("--data", type=Path, help="directory of CIFAR-10; synthetic images without it")
    parser.add_argument("--out", type=Path, help="default: runs/gpu, or runs/gpu-dry in a dry run")
    parser.add_argument("--minutes", type=float, default=9.0, help="of this call")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--unit", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.out = (options.out or Path("runs") / ("gpu-dry" if options.dry_run else "gpu")).resolve()
    options.data = options.data and options.data.resolve()
    options.pieces = options.pieces.split(",")
    for name in options.pieces:
        if name not in PIECES:
            parser.error(f"there is no piece {name}: take {', '.join(PIECES)}")
    return options


def measure(setting: Setting, key: str, seconds: float, answer: Path) -> Outcome:
    """Run a unit in a process of its own.

    Raises:
        RuntimeError: It failed.
        TimeoutError: It was stopped as its time was up.
    """
    piece = PIECES[key.partition("/")[0]]
    log = setting.out / "logs" / f"{key.replace('/', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu", "--unit", key, "--seconds", str(seconds)]
    command += ["--out", str(setting.out), "--minutes", str(setting.minutes)]
    command += ["--dry-run"] * setting.dry_run + (["--data", str(setting.data)] if setting.data else [])
    answer.unlink(missing_ok=True)
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            code = process.wait(None if piece.resumable else seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise TimeoutError(f"stopped after {seconds:.0f} s, as the call's minutes were up") from None
    if code:
        last = log.read_text().strip().splitlines()[-1:]
        raise RuntimeError(f"exit code {code}: {' '.join(last)} (see {log})")
    return Outcome(**json.loads(answer.read_text()))


def main(arguments: list[str]) -> int:
    """Measure what is missing and print the table; gives 1 if a unit failed."""
    options = parse(arguments)
    if options.list:
        for name, piece in PIECES.items():
            print(f"{name:<12} {piece.measures}; units: {', '.join(piece.units)}")
        return 0
    if not options.dry_run and not torch.cuda.is_available():
        print("no CUDA device here: run it where there is one, or take --dry-run to try the pieces on the CPU")
        return 2
    setting = Setting(options.out, options.data, options.dry_run, options.minutes)
    answer = setting.out / "answer.json"
    if options.unit:
        torch.set_num_threads(1)  # as many as engine.threads gives an actor
        name, _, unit = options.unit.partition("/")
        answer.write_text(json.dumps(asdict(PIECES[name].units[unit](setting, options.seconds))))
        return 0
    end = time.monotonic() + 60 * options.minutes
    setting.prepare()
    results = Results(setting.out, setting.machine)
    failed = _measure_missing(setting, results, options.pieces, end)
    print(results.write_table(), end="")
    left = [key for key in _keys(options.pieces) if not results.is_done(key)]
    if left:
        print(f"\n{len(left)} units are left, which the same command continues: {', '.join(left)}")
    return int(failed)


def _keys(pieces: list[str]) -> list[str]:
    return [f"{name}/{unit}" for name in pieces for unit in PIECES[name].units]


def _measure_missing(setting: Setting, results: Results, pieces: list[str], end: float) -> bool:
    failed = False
    for key in _keys(pieces):
        start = time.monotonic()
        if results.is_done(key) or end - start < LEAST_SECONDS:
            continue
        print(f"{key} ...", file=sys.stderr, flush=True)
        results.begin(key)
        try:
            outcome = measure(setting, key, end - start, setting.out / "answer.json")
        except TimeoutError as error:
            results.end(key, "unfinished", time.monotonic() - start, error=str(error))
        except RuntimeError as error:
            results.end(key, "failed", time.monotonic() - start, error=str(error))
            failed = True
        else:
            state = "done" if outcome.finished else "unfinished"
            results.end(key, state, time.monotonic() - start, outcome.rows)
        results.write_table()
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
