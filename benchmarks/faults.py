"""A night's worth of faults in minutes: the same run undisturbed and disturbed, their bits, faults, times and memory.

    uv run python benchmarks/faults.py [--rounds 200] [--rate 0.1] [--kills 4] [--seed 7] [KEY=VALUE]...

Both runs go through the command line, in processes of their own. The disturbed one meets random faults of all kinds that
a run survives, and in its first half its driver is killed by SIGKILL; a fresh process resumes it each time. Memory is the
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
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

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


def play(words: list[str], directory: Path, measured: Measured) -> int:
    """Run the command line in a process, measure it, and return its exit code."""
    start = time.monotonic()
    driver = subprocess.Popen([sys.executable, "-m", "tune.cli", *words], stdout=subprocess.DEVNULL)
    over, root = threading.Event(), psutil.Process(driver.pid)

    def watch() -> None:
        while not over.wait(SAMPLE_EVERY):
            try:
                groups = memory_of(root)
            except psutil.Error:
                return
            if groups["actors"]:
                measured.memory.append((rounds_done(directory), *(groups[name] for name in GROUPS)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = driver.wait()
    over.set()
    watcher.join()
    measured.seconds += time.monotonic() - start
    measured.processes += 1
    return code


def disturbed(settings: list[str], directory: Path, options: argparse.Namespace) -> Measured:
    """Run with random faults, and kill and resume the driver on the way."""
    measured = Measured()
    faults = ["--inject", f"random:rate={options.rate},seed={options.seed}"]
    kills = [round(options.rounds * (k + 1) / (2 * options.kills + 1)) for k in range(options.kills)]
    begin = ["run", *settings, "--out", str(directory), "--quiet"]
    for kill in (*kills, None):
        more = [] if kill is None else ["--inject", f"kill-driver:round={kill}"]
        code = play([*begin, *faults, *more], directory, measured)
        if code != (0 if kill is None else -signal.SIGKILL):
            raise SystemExit(f"the driver that should die in round {kill} ended with {code}")
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
    injected = Counter(row["kind"] for row in json.loads((place / "wild" / "run.json").read_text())["faults"])
    print(
        f"\n{sum(injected.values())} faults: " + ", ".join(f"{count} {kind}" for kind, count in injected.most_common())
    )
    same = final_state(place / "calm") == final_state(place / "wild")
    print("the same bits" if same else "OTHER BITS")
    shutil.rmtree(place)
    raise SystemExit(not same)


if __name__ == "__main__":
    main()
