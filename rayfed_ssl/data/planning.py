"""What can be known of a dataset before its pictures are decoded: whether they fit, and all but their pixels."""

import shutil
from pathlib import Path

import numpy as np

from rayfed_ssl.data.decoding import WINDOW, Split
from rayfed_ssl.data.image_store import Dataset, ImageSet
from rayfed_ssl.formats import size
from rayfed_ssl.resources import free_memory


def check_room(num_pictures: int, side: int, channels: int, directory: Path) -> None:
    """Refuse, before any is decoded, pictures that memory or the directory's disk cannot hold."""
    each, text = channels * side**2, f"{num_pictures:,} pictures of {side}x{side} pixels"
    disk, free = 2 * num_pictures * each, shutil.disk_usage(directory).free  # the spooled pixels, and the store
    memory, available = 2 * min(WINDOW, num_pictures) * each, free_memory()
    advice = "lower data.size or data.train_limit"
    if disk > free:
        raise ValueError(f"{text} take {size(disk)} of disk to decode, but {directory} has {size(free)} free: {advice}")
    if memory > available:
        raise ValueError(f"{text} take {size(memory)} of memory to decode, but {size(available)} are free: {advice}")


def planned(name: str, train: Split, test: Split, classes: tuple[str, ...], shape: tuple[int, int, int]) -> Dataset:
    """Describe a dataset before its pictures [C, H, W] are decoded; blank ones take no memory."""
    return Dataset(name, _blank(train, classes, shape), _blank(test, classes, shape), fingerprint="")


def _blank(split: Split, classes: tuple[str, ...], shape: tuple[int, int, int]) -> ImageSet:
    images = np.broadcast_to(np.uint8(0), (len(split.labels), *shape))
    if split.groups is None:
        return ImageSet(images, split.labels, classes)
    names, groups = np.unique(split.groups, return_inverse=True)
    return ImageSet(images, split.labels, classes, groups=groups.astype(np.int64), group_names=tuple(map(str, names)))
