"""Speed of a local step, by encoder, number format, memory layout and compilation.

A step is what a client does: two views of a batch forward in one pass, InfoNCE, backward, Adam. The best of several
steps is reported, because neighbors on a shared machine only ever slow one down; on one CPU thread, CPU seconds are
counted, which neighbors inflate less than seconds on the clock.

    python benchmarks/models.py --encoders cnn resnet18 --batch 128 --compile
"""

import argparse
import sys
import time
from itertools import product

import torch
from torch.nn import functional as F

from rayfed_ssl.models import ENCODERS, build_model
from rayfed_ssl.models.precision import Precision, autocast, choose_precision, prepare


def images_per_second(encoder: str, precision: Precision, options: argparse.Namespace) -> tuple[float, float]:
    """Measure one setting.

    Returns:
        Images a second, each counted once though two views of it are computed, and the seconds of the first step.
    """
    torch.manual_seed(0)
    device = torch.device(options.device)
    model = build_model(encoder, channels=options.channels, size=options.size)
    model = prepare(model, precision, device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6, fused=True)
    views = torch.randn(2 * options.batch, options.channels, options.size, options.size, device=device)
    targets = torch.arange(options.batch, device=device)

    clock = time.process_time if device.type == "cpu" and options.threads == 1 else time.perf_counter

    def step() -> float:
        start = clock()
        with autocast(precision, device):
            _, projections = model(views)
        first, second = F.normalize(projections, dim=1).chunk(2)
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(first @ second.T / 0.4, targets).backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return clock() - start

    compiling = step()
    times = [step(), step()]
    while sum(times) < options.seconds:
        times.append(step())
    return options.batch / min(times), compiling


def main() -> None:
    """Print one line per encoder and setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoders", nargs="+", default=["cnn", "resnet18"], choices=list(ENCODERS))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4.0, help="per setting")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true", help="measure torch.compile too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    write = sys.stdout.write
    write(f"auto: {choose_precision(options.device)}\n")
    write(
        f"{'encoder':10} {'dtype':5} {'layout':14} {'compiled':8} {'images/s':>9} {'ratio':>6} {'first step s':>12}\n"
    )
    for encoder in options.encoders:
        base = None
        for compiled, dtype, last in product((False, True) if options.compile else (False,), ("fp32", "bf16"), (0, 1)):
            precision = Precision("bf16" if dtype == "bf16" else "fp32", bool(last), compiled)
            speed, first = images_per_second(encoder, precision, options)
            base = base or speed
            layout = "channels_last" if last else "contiguous"
            write(f"{encoder:10} {dtype:5} {layout:14} {compiled!s:8} {speed:9.0f} {speed / base:6.2f} {first:12.1f}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
