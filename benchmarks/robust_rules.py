"""Seconds and memory of robust rules beside the mean, by size and number of uploads.

    python -m benchmarks.robust_rules --megabytes 45 --uploads 10 50

Uploads lie in memory, as they do in Ray's object store on the server's machine; what is counted is what a rule adds.
"""

import argparse
import threading
import time

import psutil
import torch

from rayfed_ssl.aggregation.robust import RULES
from rayfed_ssl.aggregation.weighted_mean import weighted_mean
from rayfed_ssl.privacy.robust import combine
from rayfed_ssl.trees import Weights

LAYERS = 20


def uploads_of(megabytes: float, number: int) -> tuple[Weights, list[Weights]]:
    """Draw what clients received, and what each of them sends."""
    width = int(megabytes * 1e6 / 4 / LAYERS)
    received = {f"layer{layer}.weight": torch.randn(width) for layer in range(LAYERS)}
    return received, [{n: w + 0.01 * torch.randn(width) for n, w in received.items()} for _ in range(number)]


def measure(name: str, received: Weights, uploads: list[Weights]) -> tuple[float, float]:
    """Give seconds, and megabytes by which the process grew at most, looked at every 10 ms."""
    process, done, seen = psutil.Process(), threading.Event(), list[int]()
    before, start = process.memory_info().rss, time.perf_counter()

    def watch() -> None:
        while not done.wait(0.01):
            seen.append(process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    if name == "mean":
        weighted_mean((1.0, upload) for upload in uploads)
    else:
        combine(RULES[name](hostile=1), received, uploads, torch.Generator())
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    return seconds, (max(seen) - before) / 1e6


def main() -> None:
    """Measure, and print a row for each rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=45.0)
    parser.add_argument("--uploads", type=int, nargs="+", default=[10, 50])
    local = [name for name in RULES if name not in ("fltrust", "eminspector")]
    parser.add_argument("--rules", nargs="+", choices=local, default=local, metavar="RULE", help="%(choices)s")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for number in options.uploads:
        received, uploads = uploads_of(options.megabytes, number)
        for name in ("mean", *options.rules):
            seconds, megabytes = measure(name, received, uploads)
            print(f"{number} uploads of {options.megabytes:g} MB, {name}: {seconds:.2f} s, {megabytes:.0f} MB")


if __name__ == "__main__":
    main()
