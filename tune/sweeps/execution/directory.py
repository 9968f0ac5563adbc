"""The directory of a sweep. Reading it loads neither Ray, torch nor Optuna."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rayfed_ssl.errors import ConfigError
from tune.sweeps.definition.files import load_sweep, read_sweep
from tune.sweeps.definition.sweep import Sweep
from tune.sweeps.results.trial_table import read_rows

FORMAT = 1


def _plain(tree: dict[str, Any], name: str) -> dict[str, Any]:
    """Write dates and the like as text, so that what is read later is what is read now.

    Raises:
        ConfigError: It cannot be written as JSON.
    """
    try:
        text = json.dumps(tree, default=str, ensure_ascii=False)
        text.encode()
        plain: dict[str, Any] = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{name}: this cannot be kept as text ({' '.join(str(error).split())}): correct the file"
        ) from None
    return plain


_KINDS = {"format": int, "name": str, "file": dict, "overrides": list, "begun_with": dict, "home": str, "points": list}
_KINDS |= {"runs": list, "versions": dict, "started": str}


@dataclass
class SweepDirectory:
    """A sweep on disk.

    Attributes:
        path: Its directory.
        content: sweep.json.
    """

    path: Path
    content: dict[str, Any]

    @property
    def runs(self) -> Path:
        """Where runs lie."""
        return self.path / "runs"

    @property
    def sweep(self) -> Sweep:
        """What was asked for.

        Raises:
            ConfigError: This version reads its file otherwise.
        """
        sweep = load_sweep(self.content["file"], *self.content["overrides"], name=self.content["name"])
        settings = dict(sweep.settings) | self.content["begun_with"]
        return replace(sweep, settings=settings, home=Path(self.content["home"]))

    @classmethod
    def open(cls, path: Path) -> "SweepDirectory":
        """Read a sweep's directory.

        Raises:
            ConfigError: There is none, or it is damaged.
        """
        file = path / "sweep.json"
        if not file.is_file():
            raise ConfigError(f"{path} holds no sweep: there is no sweep.json in it")
        try:
            content = json.loads(file.read_text())
            if not isinstance(content, dict) or not {*_KINDS, "finished"} <= set(content):
                raise ValueError("it does not describe a sweep")
            for key, kind in _KINDS.items():
                if not isinstance(content[key], kind):
                    raise ValueError(f"its {key} is {content[key]!r}")
            if content["format"] != FORMAT:
                raise ValueError(f"it has format {content['format']}, and this version reads {FORMAT}")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} is damaged ({error}): begin a new sweep") from None
        return cls(path, content)

    @classmethod
    def create(
        cls,
        path: Path,
        source: str,
        overrides: Sequence[str],
        begun_with: Mapping[str, Any],
        command: str,
        begun_from: str = "",
    ) -> "SweepDirectory":
        """Begin a sweep's directory.

        Args:
            path: Where; new or empty.
            source: The sweep's name or file.
            overrides: The user's settings.
            begun_with: Settings from another sweep.
            command: The command line.
            begun_from: Where those come from, for a reader.

        Raises:
            ConfigError: It holds something already, the file does not fit together, or no trial of it could come to a value.
        """
        from rayfed_ssl.environment import environment
        from tune.sweeps.definition.check import check_sweep

        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            hint = f": go on with `rayfed-ssl sweep --resume {path}`" if (path / "sweep.json").is_file() else ""
            raise ConfigError(f"{path} is not an empty directory{hint or ': name another one with --out'}")
        name = Path(source).stem
        content = {
            "format": FORMAT,
            "name": name,
            "file": _plain(read_sweep(source), name),
            "overrides": list(overrides),
            "begun_with": dict(begun_with),
            "begun_from": begun_from,
            "home": str(Path.cwd()),
            "command": command,
            "versions": environment()["versions"],
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "finished": None,
            "points": [],
            "runs": [],
        }
        made = cls(path, content)
        check_sweep(made.sweep)
        made.runs.mkdir(parents=True, exist_ok=True)
        made.save()
        return made

    def save(self) -> None:
        """Write sweep.json."""
        from rayfed_ssl.storage.filesystem import write_atomically

        write_atomically(self.path / "sweep.json", (json.dumps(self.content, indent=1) + "\n").encode())

    def seen_failures(self) -> dict[str, str]:
        """Give the failures that later choices were made from, by run and round; those of the last generation are forgotten.

        So what failed for a passing reason is tried again by whoever goes on, and what others followed from stays as it was.
        """
        generation, number = self.sweep.generation, len(self.content["points"])
        earlier = self.content["runs"][: max(0, (number - 1) // generation) * generation]
        names = {name for runs in earlier for name in runs}
        known: dict[str, str] = self.content.get("failures", {})
        self.content["failures"] = {key: why for key, why in known.items() if key.rpartition("@")[0] in names}
        failures: dict[str, str] = self.content["failures"]
        return failures

    def is_complete(self) -> bool:
        """Whether nothing is left to run: it came to its end, no trial failed, and all runs are there."""
        table = self.path / "trials.parquet"
        if self.content["finished"] is None:
            return False
        try:
            rows = read_rows(table)
        except ConfigError:
            return False
        return all(row["state"] != "failed" and (self.path / row["run"] / "run.json").is_file() for row in rows)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running this sweep.

        Raises:
            ConfigError: Another one runs it.
        """
        try:
            lock = FileLock(self.path / "lock").acquire(blocking=False)
        except Timeout:
            raise ConfigError(f"another process is running {self.path}: wait for it or stop it") from None
        with lock:
            yield

    def is_running(self) -> bool | None:
        """Whether a process runs this sweep; None where the lock cannot be looked at."""
        if not (self.path / "lock").is_file():
            return False
        try:
            with FileLock(self.path / "lock", blocking=False):
                return False
        except Timeout:
            return True
        except OSError:  # it belongs to another user, or lies on a file system without locks
            return None
