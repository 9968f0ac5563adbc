"""Images per second of one augmented view on one CPU thread, ours in batches against torchvision's image by image.

Run it on a quiet machine: python benchmarks/augmentation_speed.py [--seconds 2]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import v2

from rayfed_ssl.data.augmentation import augment
from rayfed_ssl.data.view_recipes import VIEWS


def torchvision_view(images: list[Any], *, tensors: bool) -> list[Any]:
    """Make FLESD's CIFAR views as its authors do, on PIL images, or with transforms.v2 on uint8 tensors."""
    library = v2 if tensors else transforms
    scale = v2.ToDtype(torch.float32, scale=True) if tensors else transforms.ToTensor()
    view = library.Compose(
        [
            library.RandomResizedCrop(32, scale=(0.2, 1.0)),
            library.RandomApply([library.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            library.RandomGrayscale(p=0.2),
            library.RandomHorizontalFlip(),
            scale,
            library.Normalize([0.5] * 3, [0.5] * 3),
        ]
    )
    return [view(image) for image in images]


def report(label: str, num: int, seconds: float, work: Callable[[], object]) -> None:
    """Repeat the work for some seconds and print images per second of processor time, the median repetition and the best.

    Processor time and not the clock, as other programs on the machine would count otherwise.
    """
    work()
    end = time.perf_counter() + seconds
    times: list[float] = []
    while time.perf_counter() < end or len(times) < 3:
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    print(f"{label:<36}{num:>7}{num / statistics.median(times):>12,.0f}{num / min(times):>12,.0f}", flush=True)


def main() -> None:
    """Print one line per pipeline and batch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each line is measured")
    seconds = parser.parse_args().seconds
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (1024, 3, 32, 32), dtype=torch.uint8, generator=generator)
    print(f"{'view of 3 x 32 x 32 pixels':<36}{'batch':>7}{'images/s':>12}{'best':>12}")
    for name, pair in VIEWS.items():
        for num in (256, 512, 1024) if name == "flesd-cifar" else (512,):
            report(f"ours, {name}", num, seconds, partial(augment, images[:num], pair.second, generator))
    few = images[:256]
    pil = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in few]
    report("torchvision on PIL, flesd-cifar", 256, seconds, partial(torchvision_view, pil, tensors=False))
    report("transforms.v2, tensors, flesd-cifar", 256, seconds, partial(torchvision_view, list(few), tensors=True))


if __name__ == "__main__":
    main()
