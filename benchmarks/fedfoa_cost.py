"""What FedFoA's term costs a step: QR of a batch's projections, and an SVD for each other client, on this machine.

The paper's sizes are 500 samples and 256 projections. On one CPU thread CPU seconds are counted.

    python benchmarks/fedfoa_cost.py --batch 500 --width 256 --others 3
"""

import argparse
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from rayfed_ssl.methods.fedfoa import Understanding, best_basis, factorize, filled
from rayfed_ssl.models import Model


def milliseconds(step: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Take the best of several; the first is thrown away."""
    clock = time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    best = float("inf")
    for repeat in range(repeats + 1):
        start = clock()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, clock() - start) if repeat else best
    return best * 1e3


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Time the parts and the whole, in milliseconds."""
    device = torch.device(options.device)
    torch.manual_seed(0)
    features = torch.randn(options.batch, options.width, device=device)
    drawn = [filled(2 * torch.randn(options.batch, options.width, device=device)) for _ in range(options.others)]
    relations = [factorize(features)[1] for features in drawn]
    basis, relation = factorize(filled(features))
    model = Model(torch.nn.Identity(), torch.nn.Identity(), options.width)

    def term() -> Tensor:
        own = features.clone().requires_grad_()
        value = Understanding(relations, 0.01)(model, own)
        value.backward()
        return value

    steps: dict[str, Callable[[], object]] = {
        "QR": lambda: factorize(filled(features)),
        "SVD of R [n, m], here": lambda: torch.linalg.svd(relations[0] @ features.T, full_matrices=False),
        "SVD of R R^T [n, n], here": lambda: torch.linalg.svd(relations[0] @ relation.T),
        "SVD of R R^T [n, n], on the host": lambda: best_basis(basis, relation, relations[0]),
        f"the term and its gradient, {options.others} others": term,
    }
    return {name: milliseconds(step, device, options.repeats) for name, step in steps.items()}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--others", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name, value in measure(options).items():
        sys.stdout.write(f"{name:<40}{value:>9.1f} ms\n")


if __name__ == "__main__":
    main()
