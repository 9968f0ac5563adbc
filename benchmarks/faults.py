"""A night's worth of faults in minutes: the same run undisturbed and disturbed, their bits, faults, times and memory.

    uv run python benchmarks/faults.py [--rounds 200] [--rate 0.1] [--kills 4] [--seed 7] [KEY=VALUE]...

Both runs go through the command line, in processes of their own. In the disturbed one, actors are killed in random rounds
and the driver in its first half, all by SIGKILL; a fresh process resumes it each time. Memory is the
sum of the proportional set sizes of the driver, Ray's processes and the actors; its slope over rounds is that of a line by
least squares through the second half, with its standard error; scoring after the last round is left out.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from rayfed_ssl.records.run_record import RunRecord

SETTINGS = [
    "method=fedema",
    "objective=byol",
    "objective.hidden=64",
    "model.projection_dim=32",
    "public=null",
    "model.encoder=cnn",
    "data.train_limit=1200",
    "data.test_limit=200",
    "clients.number=20",
    "clients.fraction=0.3",
    "partition.alpha=1.0",
    "training.epochs=1",
    "training.batch=32",
    "evaluation.every=0",
    "evaluation.linear.epochs=1",
    "engine.actors=2",
    "engine.trackers=[]",
]

SAMPLE_EVERY = 2.0
"""Seconds between two looks at memory, which cost some milliseconds of a core each."""

GROUPS = ("driver", "actors", "Ray")


@dataclass
class Measured:
    """What a run took.

    Attributes:
        memory: Rounds done and MB of driver, actors and Ray's other processes, by sample.
        seconds: Wall time of all its processes.
        processes: How many drivers it took.
    """

    memory: list[tuple[int, float, float, float]] = field(default_factory=list)
    seconds: float = 0.0
    processes: int = 0

    def slope(self, rounds: int) -> tuple[float, float]:
        """Slope of the sum over rounds in the second half, and its standard error, MB per round."""
        late = np.array(
            [(done, sum(groups)) for done, *groups in self.memory if rounds / 2 <= done < rounds], float
        ).reshape(-1, 2)
        if len(np.unique(late[:, 0])) < 3:
            return float("nan"), float("nan")
        (slope, _), covariance = np.polyfit(late[:, 0], late[:, 1], 1, cov=True)
        return float(slope), float(covariance[0, 0] ** 0.5)

    def mean(self, rounds: int) -> list[float]:
        """MB of each group over the second half."""
        return [float(np.mean([row[i] for row in self.memory if rounds / 2 <= row[0] < rounds])) for i in (1, 2, 3)]


def memory_of(root: psutil.Process) -> dict[str, float]:
    """Proportional set sizes of a driver and all it has started, MB by group."""
    found = dict.fromkeys(GROUPS, 0.0)
    for process in (root, *root.children(recursive=True)):
        try:
            words = process.cmdline()
            size = process.memory_full_info().pss / 1e6
        except psutil.Error:
            continue
        is_actor = bool(words) and words[0].startswith(("ray::ClientActor", "ray::ServerActor"))
        found["driver" if process == root else "actors" if is_actor else "Ray"] += size
    return found


def rounds_done(directory: Path) -> int:
    """Count the rounds of a record, which is replaced as a whole while the run goes on."""
    try:
        return len(json.loads((directory / "run.json").read_text())["rounds"])
    except (OSError, ValueError):
        return 0


def play(words: list[str], directory: Path, measured: Measured, kill_after: int | None = None) -> int:
    """Run the command line in a process, measure it, kill it after a round, and return its exit code."""
    start = time.monotonic()
    driver = subprocess.Popen([sys.executable, "-m", "tune.cli", *words], stdout=subprocess.DEVNULL)
    over, root = threading.Event(), psutil.Process(driver.pid)

    def watch() -> None:
        while not over.wait(SAMPLE_EVERY):
            try:
                groups = memory_of(root)
            except psutil.Error:
                return
            done = rounds_done(directory)
            if groups["actors"]:
                measured.memory.append((done, *(groups[name] for name in GROUPS)))
            if kill_after is not None and done >= kill_after:
                driver.kill()

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = driver.wait()
    over.set()
    watcher.join()
    measured.seconds += time.monotonic() - start
    measured.processes += 1
    return code


def disturbed(settings: list[str], directory: Path, options: argparse.Namespace) -> Measured:
    """Run with random deaths of actors, and kill and resume the driver on the way."""
    measured = Measured()
    rounds = np.flatnonzero(np.random.default_rng(options.seed).random(options.rounds) < options.rate) + 1
    faults = [word for round in rounds for word in ("--inject", f"kill-actor:round={round}")]
    kills = [round(options.rounds * (k + 1) / (2 * options.kills + 1)) for k in range(options.kills)]
    begin = ["run", *settings, "--out", str(directory), "--quiet"]
    for kill in (*kills, None):
        code = play([*begin, *faults], directory, measured, kill)
        if code != (0 if kill is None else -signal.SIGKILL):
            raise SystemExit(f"the driver that should die after round {kill} ended with {code}")
        begin = ["resume", str(directory), "--quiet"]
    return measured


def final_state(directory: Path) -> str:
    """Hash of a run's last round."""
    return str(json.loads((directory / "run.json").read_text())["rounds"][-1]["state_sha256"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_intermixed_args()
    settings = [*SETTINGS, *options.settings, f"rounds={options.rounds}"]
    place = Path(tempfile.mkdtemp(prefix="faults-"))
    calm = Measured()
    if play(["run", *settings, "--out", str(place / "calm"), "--quiet"], place / "calm", calm):
        raise SystemExit("the undisturbed run failed")
    wild = disturbed(settings, place / "wild", options)
    print(
        f"| run of {options.rounds} rounds | wall s | drivers | MB driver, actors, Ray | MB/round, second half | state |"
    )
    print("|---|---|---|---|---|---|")
    for name, measured in (("calm", calm), ("wild", wild)):
        slope, error = measured.slope(options.rounds)
        memory = ", ".join(f"{value:.0f}" for value in measured.mean(options.rounds))
        state = final_state(place / name)[:16]
        what = "undisturbed" if name == "calm" else "with faults"
        print(
            f"| {what} | {measured.seconds:.0f} | {measured.processes} | {memory} | {slope:+.3f} ± {error:.3f} | {state} |"
        )
    retries = [row["value"] for row in RunRecord.open(place / "wild").metrics if row["name"] == "retries"]
    print(f"\n{sum(retries):.0f} steps repeated")
    same = final_state(place / "calm") == final_state(place / "wild")
    print("the same bits" if same else "OTHER BITS")
    shutil.rmtree(place)
    raise SystemExit(not same)


if __name__ == "__main__":
    main()
