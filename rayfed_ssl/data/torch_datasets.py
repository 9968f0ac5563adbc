"""Datasets of torch: torchvision's by class name, and anybody's `Dataset` that gives images, with or without labels."""

import inspect
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from pickle import UnpicklingError  # noqa: TID251  # what torch raises where it refuses to load
from typing import Any

import numpy as np
import platformdirs
from PIL import Image

from rayfed_ssl.data.decoding import Picture, Source, Split, all_gray, decode, in_channels
from rayfed_ssl.data.folders import walk
from rayfed_ssl.data.image_store import open_store, write_store
from rayfed_ssl.data.partitions import stratified_split
from rayfed_ssl.errors import ConfigError, nearest, reason
from rayfed_ssl.foreign import plugins


def find_torchvision(
    class_name: str, folder: str, splits: tuple[dict[str, Any], dict[str, Any]], path: Path, download: bool
) -> Source:
    """Find a dataset that torchvision reads; torchvision is imported only to download or to decode."""
    depth = len(Path(folder).parts)
    root = path.parents[depth - 1] if path.parts[-depth:] == Path(folder).parts else path

    def load(split: dict[str, Any]) -> Any:
        from torchvision import datasets

        with _complete(class_name, root / folder, download):
            return getattr(datasets, class_name)(str(root), **split, download=download)

    def read() -> tuple[Split, Split, tuple[str, ...]]:
        train, test = (load(split) for split in splits)
        return _torchvision_split(train), _torchvision_split(test), tuple(train.classes)

    if download and not (root / folder).is_dir():
        root.mkdir(parents=True, exist_ok=True)
        load(splits[0])
    return Source(tuple(file for _, file in walk(root / folder, None)), read, has_test=True)


@contextmanager
def _complete(class_name: str, place: Path, download: bool) -> Iterator[None]:
    """Say what to do where torchvision misses files of a dataset, or a package."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"{class_name} of torchvision needs a package that is not installed: {error}") from error
    except UnpicklingError as error:  # torch's message tells how to run what the file holds
        raise ConfigError(
            f"a file of {class_name} in {place} holds objects in place of tensors, which would run code: get it anew"
        ) from error
    except (RuntimeError, OSError) as error:
        done = "the download failed" if download else "set data.path, or data.download=true to fetch it"
        raise ConfigError(f"no complete copy of {class_name} in {place}: {done} ({reason(error)})") from error


def _torchvision_split(dataset: Any) -> Split:
    pixels, labels = np.asarray(dataset.data), getattr(dataset, "targets", None)
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    elif pixels.shape[3] == 3:
        pixels = pixels.transpose(0, 3, 1, 2)
    return Split.of_pixels(pixels, np.asarray(dataset.labels if labels is None else labels))


def check_torch(name: str, factory: Any) -> None:
    """Raise ConfigError for what is neither a torch `Dataset` nor a function that gives one, before it is called."""
    from torch.utils.data import Dataset

    if not (inspect.isclass(factory) and issubclass(factory, Dataset)):
        given = ["root", "train", "split", "download"]
        plugins.parameters("dataset", name, factory, given, "a subclass of torch.utils.data.Dataset or ")


def find_torch(name: str, factory: Callable[..., Any], path: Path, download: bool) -> Source:
    """Find a `Dataset` from outside; its module's file stands for its contents in the store's key.

    The factory gets those of the arguments root (data.path), train, split ("train" or "test") and download that it has.
    """
    parameters = inspect.signature(factory).parameters
    given: dict[str, Any] = {"root": path, "download": download}
    given = {key: value for key, value in given.items() if key in parameters}
    splits: list[dict[str, Any]] = [{}]
    if "train" in parameters:
        splits = [{"train": True}, {"train": False}]
    elif "split" in parameters:
        first = parameters["split"].default  # "trainval" of OxfordIIITPet
        splits = [{"split": first if str(first).startswith("train") else "train"}, {"split": "test"}]

    def read() -> tuple[Split, Split | None, tuple[str, ...]]:
        with plugins.named_errors("dataset", name):
            datasets = [factory(**given, **split) for split in splits]
        first, *second = (_split(name, dataset) for dataset in datasets)
        return first, next(iter(second), None), _classes(datasets[0], first, *second)

    source = inspect.getsourcefile(inspect.unwrap(factory))
    files = tuple(file for _, file in walk(path, None)) if "root" in given and path.is_dir() else ()
    return Source((*([Path(source)] if source else []), *files), read, has_test=len(splits) > 1)


def vision_names() -> list[str]:
    """Name torchvision's datasets of images."""
    from torchvision import datasets

    left_out = ("DatasetFolder", "ImageFolder", "VisionDataset", "LSUN")  # LSUN unpickles a file beside the pictures
    return [name for name in datasets.__all__ if name not in left_out]


def find_vision(class_name: str, path: Path, download: bool) -> Source:
    """Find any image dataset of torchvision by its class, in the directory that it calls root."""
    from torchvision import datasets

    if class_name not in (class_names := vision_names()):
        raise ValueError(f"torchvision has no dataset {class_name!r}{nearest(class_name, class_names)}")
    dataset = getattr(datasets, class_name)
    required = [
        name
        for name, parameter in inspect.signature(dataset).parameters.items()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    if missing := sorted(set(required) - {"root", "train", "split", "download"}):
        raise ValueError(
            f"torchvision:{class_name} needs {', '.join(missing)}: write a function that gives the dataset, and set "
            "data.name=my_module:my_function"
        )

    @wraps(dataset)
    def factory(**given: Any) -> Any:
        with _complete(class_name, path, download):
            return dataset(**given)

    if download and not any(walk(path, None)):
        path.mkdir(parents=True, exist_ok=True)
        find_torch(class_name, factory, path, True).read()  # before the store's key is made of the files
    return find_torch(f"torchvision:{class_name}", factory, path, download)


def keep(
    train: Any, test: Any = None, *, size: int | None = None, channels: int | None = None, test_fraction: float = 0.2
) -> Path:
    """Write a `Dataset` that only this process has into a store, for data.name=store and data.path.

    It gives images, PIL or tensors [C, H, W], alone or in a tuple with a label next. Without a test set `test_fraction`
    of the training samples is held out, per class.
    """
    kind = type(train).__name__
    first, second = _split(kind, train), None if test is None else _split(kind, test)
    if second is None:
        first, second = map(first.select, stratified_split(first.labels, test_fraction, 0))
    convert = partial(decode, size=size, channels=channels or (1 if all_gray(first) and all_gray(second) else 3))
    directory = platformdirs.user_cache_path("rayfed-ssl") / "stores"
    draft = directory / uuid.uuid4().hex
    write_store(draft, name=kind, classes=_classes(train, first, second), train=convert(first), test=convert(second))
    store = directory / f"{kind}-{open_store(draft).fingerprint[:24]}"
    if store.exists():
        shutil.rmtree(draft)
    else:
        draft.rename(store)
    return store


def _split(name: str, dataset: Any) -> Split:
    """Read the labels; images are read once more when they are decoded, so that they need not fit into memory."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise ValueError(f"dataset {name} must be a torch Dataset with a length, got {type(dataset).__name__}")

    def read(rows: np.ndarray) -> Iterator[tuple[str, Picture]]:
        for row in rows:
            yield f"sample {row}", _pixels(name, _sample(name, dataset, int(row))[0])

    with plugins.named_errors("dataset", name):
        rows = range(len(dataset))
    labels = [_label(name, _sample(name, dataset, row)[1]) for row in rows]
    return Split(np.array(labels, np.int64), read)


def _label(name: str, label: Any) -> int:
    if label is None:
        return -1
    try:
        if (number := int(label)) != float(label):
            raise ValueError
        return number
    except (ArithmeticError, TypeError, ValueError, RuntimeError):
        raise ValueError(f"dataset {name} must give classes as integers, or none, got {label!r:.40}") from None


def _sample(name: str, dataset: Any, row: int) -> tuple[Any, Any]:
    """Take image and label of a sample, which may be the image alone."""
    with plugins.named_errors("dataset", name):
        sample = dataset[row]
    if isinstance(sample, tuple | list):
        return sample[0], sample[1] if len(sample) > 1 else None
    if isinstance(sample, Mapping):
        raise ValueError(f"a dataset must give (image, class), got a dict with {', '.join(map(str, sample)):.100}")
    return sample, None


def _pixels(name: str, image: Any) -> np.ndarray:
    """Turn an image into uint8 or uint16 [C, H, W]: PIL, or an array of integers to 255, uint16, bool or floats to 1."""
    if isinstance(image, Image.Image):
        gray = image.mode == "L" or image.mode.startswith("I;16")
        pixels = np.asarray(in_channels(image, 1 if gray else 3))
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    pixels = np.asarray(image)
    pixels = pixels[None] if pixels.ndim == 2 else pixels
    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3):
        raise ValueError(f"dataset {name} must give images, PIL or [C, H, W] with C 1 or 3, got {list(pixels.shape)}")
    if pixels.dtype in (np.uint8, np.uint16):
        return pixels
    if pixels.dtype == bool:
        return pixels.astype(np.uint8) * np.uint8(255)
    if np.issubdtype(pixels.dtype, np.integer) and pixels.min() >= 0 and pixels.max() <= 255:
        return pixels.astype(np.uint8)
    if not (np.issubdtype(pixels.dtype, np.floating) and pixels.min() >= 0 and pixels.max() <= 1):
        raise ValueError(
            f"dataset {name} must give integers from 0 to 255, uint16, bool or floats from 0 to 1, got {pixels.dtype} from "
            f"{pixels.min()} to {pixels.max()}: leave its normalization out"
        )
    scaled: np.ndarray = np.rint(pixels * 255).astype(np.uint8)
    return scaled


def _classes(dataset: Any, *splits: Split) -> tuple[str, ...]:
    """Take the names of the classes from the dataset, or number them."""
    count = 1 + max(split.labels.max(initial=-1) for split in splits)
    return tuple(map(str, getattr(dataset, "classes", range(count))))
