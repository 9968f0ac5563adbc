"""Pictures in directories: which files there are, and of which class each is."""

import csv
import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from rayfed_ssl.data.decoding import picture_suffixes
from rayfed_ssl.errors import nearest, printable
from rayfed_ssl.foreign.reading import read_bytes

ANNOTATIONS, METADATA = "val_annotations.txt", "metadata.csv"

SITE = "site"
"""The column that a folder has without a metadata.csv: the directory above a picture's class."""

SIDE = (".", "@eaDir", "__MACOSX")
"""How directories begin that hold thumbnails and the like of systems, the latter two of Synology and of macOS."""

Passed = Counter[tuple[str, str]]
"""How many files or directories were not taken, by what they are, singular and plural."""


def passed_over(passed: Passed) -> tuple[str, ...]:
    """Say in one line what was not taken; nothing if all was."""
    parts = [f"{number:,} {names[number > 1]}" for names, number in passed.most_common() if number]
    more = [f"{len(parts) - MOST_REASONS} other kinds"] if len(parts) > MOST_REASONS else []
    return (f"passed over: {', '.join(parts[:MOST_REASONS] + more)}",) if parts else ()


MOST_REASONS = 20


def pass_over(passed: Passed, file: str) -> None:
    """Count a file that is not taken by its suffix, or as hidden."""
    if file.startswith("."):
        passed["hidden file", "hidden files"] += 1
        return
    suffix = os.path.splitext(file)[1].lower()
    kind = printable(suffix)[:12] if suffix else "without a suffix"
    passed[f"file {kind}", f"files {kind}"] += 1


def first_directory(root: Path, file: Path) -> str:
    """Name the first directory on the way from a directory to a file; of a name that is no UTF-8 the bytes are escaped."""
    return os.fsencode(file.relative_to(root).parts[0]).decode(errors="backslashreplace")


def by_class(root: Path, passed: Passed, *, level: int = 0) -> list[tuple[str, Path]]:
    """List (class, file); the class is the first directory, or stands in Tiny-ImageNet's val_annotations.txt.

    At level 1 it is the second directory, below that of a site. What is not taken is counted in `passed`.

    Raises:
        ValueError: That file does not say which class any picture has.
    """
    if not root.is_dir():
        return []
    annotations, pictures = root / ANNOTATIONS, list(walk(root, picture_suffixes(), passed))
    if annotations.is_file():
        with suppress(ValueError):  # a line without a tab, or no text at all
            label = dict(
                line.split("\t")[:2]
                for line in read_bytes(annotations).decode("utf-8-sig").splitlines()
                if line.strip()
            )
            if named := [(label[file.name], file) for _, file in pictures if file.name in label]:
                unnamed = f"that {ANNOTATIONS} does not name"
                passed[f"picture {unnamed}", f"pictures {unnamed}"] += len(pictures) - len(named)
                return named
        raise ValueError(f"{annotations} must name pictures of {root}, one a line, each with a tab and its class")
    if level:
        parts = [file.relative_to(root).parts for _, file in pictures]
        pictures = [(way[1] if len(way) > 2 else "", file) for way, (_, file) in zip(parts, pictures, strict=True)]
    # A name may be no UTF-8, and records and figures take nothing else.
    labeled = [(os.fsencode(label).decode(errors="backslashreplace"), file) for label, file in pictures if label]
    beside, empty = "beside the directories of classes", "without pictures"
    passed[f"picture {beside}", f"pictures {beside}"] += len(pictures) - len(labeled)
    directories = {folder.name for folder in root.iterdir() if not folder.name.startswith(SIDE) and folder.is_dir()}
    filled = {first_directory(root, file) for _, file in labeled} if level else {label for label, _ in pictures}
    passed[f"directory {empty}", f"directories {empty}"] += len(directories - filled)
    return labeled


def metadata_column(table: Path, files: Sequence[Path], column: str) -> np.ndarray:
    """Read a column of metadata.csv for pictures, which its `file_name` names from its own directory: integers or strings.

    Raises:
        ValueError: There is no such column, or it leaves out a picture.
    """
    try:
        rows = csv.DictReader(io.StringIO(read_bytes(table).decode("utf-8-sig"), newline=""))
        if not {"file_name", column} <= {*(names := rows.fieldnames or ())}:
            near = nearest(column, names) if column not in names else ""
            listed = ", ".join(names) or "none"
            raise ValueError(f"{table} needs the columns file_name and {column}, got {listed}{near}")
        values = {os.path.normpath(str(row["file_name"])): row[column] or "" for row in rows}
    except csv.Error as error:
        raise ValueError(f"{table} cannot be read ({error}): write it with columns separated by commas") from None
    texts = [values.get(os.path.relpath(file, table.parent), "") for file in files]
    if "" in texts:
        raise ValueError(f"{table} has no {column} for {files[texts.index('')]}: add it")
    are_numbers = all(text.isdecimal() and str(int(text)) == text for text in texts)  # 007 and 7 are two sites
    return np.array([int(text) for text in texts] if are_numbers else texts)


def walk(root: Path, suffixes: tuple[str, ...] | None, passed: Passed | None = None) -> Iterator[tuple[str, Path]]:
    """List files below a directory, each after its first directory, in a fixed order and without hidden ones.

    Those that are not listed are counted in `passed`.

    Raises:
        ValueError: A directory is there twice, through a link that leads to no directory above it.
    """
    seen, passed = dict[str, str](), Counter() if passed is None else passed
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
        visible = sorted(name for name in subdirectories if not name.startswith(SIDE))
        passed["hidden directory", "hidden directories"] += len(subdirectories) - len(visible)
        subdirectories[:] = visible
        for name in sorted(names):
            if not name.startswith(".") and (suffixes is None or name.lower().endswith(suffixes)):
                yield first, Path(directory, name)
            else:
                pass_over(passed, name)


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


def is_saved(path: Path) -> bool:
    """Whether `save_to_disk` of Hugging Face's datasets has written a directory, so that nothing is fetched."""
    return any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))


def saved_hint(path: Path) -> str:
    """Say what reads such a directory; empty for others."""
    return "it was written by save_to_disk: set data.name=hub" if is_saved(path) else ""
