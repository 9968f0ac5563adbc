"""Pictures in directories: which files there are, and of which class each is."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from rayfed_ssl.reading import read_bytes

PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")

ANNOTATIONS = "val_annotations.txt"


def by_class(root: Path) -> list[tuple[str, Path]]:
    """List (class, file); the class is the first directory, or stands in Tiny-ImageNet's val_annotations.txt.

    Raises:
        ValueError: That file does not say which class any picture has.
    """
    if not root.is_dir():
        return []
    annotations, pictures = root / ANNOTATIONS, walk(root, PICTURE_SUFFIXES)
    if annotations.is_file():
        with suppress(ValueError):  # a line without a tab, or no text at all
            label = dict(
                line.split("\t")[:2]
                for line in read_bytes(annotations).decode("utf-8-sig").splitlines()
                if line.strip()
            )
            if named := [(label[file.name], file) for _, file in pictures if file.name in label]:
                return named
        raise ValueError(f"{annotations} must name pictures of {root}, one a line, each with a tab and its class")
    # A name may be no UTF-8, and records and figures take nothing else.
    return [(os.fsencode(label).decode(errors="backslashreplace"), file) for label, file in pictures if label]


def walk(root: Path, suffixes: tuple[str, ...] | None) -> Iterator[tuple[str, Path]]:
    """List files below a directory, each after its first directory, in a fixed order and without hidden ones.

    Raises:
        ValueError: A directory is there twice, through a link that leads to no directory above it.
    """
    seen = dict[str, str]()
    for directory, subdirectories, names in os.walk(root, followlinks=True):
        if (before := seen.setdefault(os.path.realpath(directory), directory)) != directory:
            if not f"{directory}/".startswith(f"{before}/"):
                raise ValueError(
                    f"{directory} and {before} are one directory: remove the link, or its pictures count twice"
                )
            subdirectories.clear()  # a link to a directory above it
            continue
        # Once per directory: pathlib takes microseconds, and there may be a million files.
        first = next(iter(Path(directory).relative_to(root).parts), "")
        subdirectories[:] = sorted(name for name in subdirectories if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and (suffixes is None or name.lower().endswith(suffixes)):
                yield first, Path(directory, name)


def check_nesting(root: Path, train: Iterable[tuple[str, Path]]) -> tuple[str, ...]:
    """Say which classes may be several, as all their pictures lie in several directories further down.

    Raises:
        ValueError: There is one class, and it is such a one.
    """
    directories: dict[str, set[Path]] = {}
    for label, file in train:
        directories.setdefault(label, set()).add(file.parent)
    inner = {label: Path(os.path.commonpath(parents)) for label, parents in directories.items()}
    deep = {label: len(parents) for label, parents in directories.items() if inner[label] not in parents}
    if not deep:
        return ()
    label = max(deep, key=deep.__getitem__)
    if len(directories) == 1:
        raise ValueError(
            f"all pictures of {root} lie in directories of {inner[label].relative_to(root)}, and would be one class: did "
            f"you mean data.path={inner[label]}?"
        )
    return (
        f"classes of several directories: {len(deep)} of {len(directories)}, such as {label} with {deep[label]}; if those "
        f"are the classes, set data.path={inner[label]}",
    )
