"""The directory of a study. Reading it loads neither Ray, torch nor Optuna."""

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from filelock import FileLock, Timeout
from pydantic import ConfigDict, Field

from rayfed_ssl.config.strict import StrictModel, parse
from rayfed_ssl.errors import BusyError, ConfigError, UntrustedError, reason
from rayfed_ssl.foreign.own_files import refuse_links_out
from rayfed_ssl.foreign.reading import read_json
from rayfed_ssl.foreign.signatures import is_signed, sign
from tune.studies.definition.files import load_study
from tune.studies.definition.study import Study


class TrialRecord(StrictModel):
    """A trial so far: its point, the names of its runs by seed, their rounds, its state, and why it ended so."""

    point: dict[str, Any]
    runs: list[Annotated[str, Field(pattern=r"^[^/]*[^/.][^/]*$")]] = Field([])
    rounds: int | None = None
    state: Literal["waiting", "complete", "stopped", "failed"] = "waiting"
    reason: str = ""


class StudyRecord(StrictModel):
    """`study.json`: what was asked for, with which versions, and how far it is.

    Attributes:
        size: One of the file's sizes.
        only_rows: The rows that are asked for, as `only_columns`; None for all.
        skipped: Column, or "row, column" for a cell alone -> why it is not run.
        left_out: Row and column of each cell that is not run.
        inherited: Settings from another study, and `inherited_from` a line that says where they come from.
        directory: Directory that relative paths start from.
        finished: When all trials had ended.
        trials: Those so far.
        failures: Run and round -> why a segment failed, for those that later points were chosen from.
        signature: Of what is to be run, by the user who made the sweep; see `rayfed_ssl.foreign.signatures`.
    """

    model_config = ConfigDict(frozen=False)

    format: Literal[2] = 2
    name: str
    file: dict[str, Any]
    overrides: list[str] = Field([])
    size: str | None = None
    only_rows: list[str] | None = None
    only_columns: list[str] | None = None
    skipped: dict[str, str] = Field({})
    left_out: list[Annotated[tuple[str, str], Field(strict=False)]] = Field([])
    inherited: dict[str, Any] = Field({})
    inherited_from: str = ""
    directory: str
    command: str
    versions: dict[str, Any]
    started: str
    finished: str | None = None
    trials: list[TrialRecord] = Field([])
    failures: dict[str, str] = Field({})
    signature: str | None = None

    @property
    def asked(self) -> bytes:
        """What is to be run."""
        chosen = [self.size, self.only_rows, self.only_columns, self.left_out]
        return json.dumps([self.file, self.overrides, chosen, self.inherited, self.directory]).encode()


@dataclass
class StudyDirectory:
    """A sweep on disk; `trusted` is whether this user has made it here, or trusts who made it."""

    path: Path
    record: StudyRecord
    trusted: bool = True

    @property
    def runs(self) -> Path:
        """Directory of the runs."""
        return self.path / "runs"

    @property
    def study(self) -> Study:
        """What was asked for; a ConfigError if this version reads its file differently."""
        record = self.record
        study = load_study(record.file, *record.overrides, name=record.name, size=record.size)
        more: dict[str, Any] = {"settings": study.settings | record.inherited, "directory": Path(record.directory)}
        more |= {"left_out": tuple(record.left_out), "trusted": self.trusted}
        return study.model_copy(update=more).only(record.only_rows, record.only_columns)

    @classmethod
    def open(cls, path: Path, *, trust: bool = False) -> "StudyDirectory":
        """Read a sweep's directory; with `trust`, the sweep of somebody else may be run."""
        file = path / "study.json"
        refuse_links_out(path)
        if not file.is_file():
            raise ConfigError(
                f"{path} holds no study, as there is no study.json in it: name a directory of rayfed-ssl sweep"
            )
        try:
            content = read_json(file)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} is damaged ({reason(error)}): start a new study") from None
        record = parse(StudyRecord, content, f"{file} is damaged")
        return cls(path, record, trust or is_signed(file, record.asked, record.signature))

    def check_trusted(self) -> None:
        """Refuse to run the sweep of somebody else, which says what is imported and where runs write."""
        if not self.trusted:
            raise UntrustedError(
                f"{self.path} is not a study that you have made here: to run it, add --trust, or start it anew"
            )

    def create(self) -> None:
        """Start it; a ConfigError if the directory holds anything but the lock of a start."""
        path = self.path
        if path.exists() and (not path.is_dir() or any(file != path / "lock" for file in path.iterdir())):
            resume = f"resume it with `rayfed-ssl sweep --resume {shlex.quote(str(path))}`"
            what_to_do = resume if (path / "study.json").is_file() else "name another one with --out"
            raise ConfigError(f"{path} is not an empty directory: {what_to_do}")
        with self.locked():
            self.save()

    @classmethod
    def of(
        cls, path: Path, name: str, file: dict[str, Any], overrides: Sequence[str], command: str, **more: Any
    ) -> "StudyDirectory":
        """Describe a study that starts now, with `more` entries of its record; writes nothing."""
        from rayfed_ssl.machine.environment import environment

        try:
            plain = json.loads(json.dumps(file))
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{name}: cannot be written as JSON ({' '.join(str(error).split())}): correct the file"
            ) from None
        record = StudyRecord(
            name=name,
            file=plain,
            overrides=list(overrides),
            directory=str(Path.cwd()),
            command=command,
            versions=environment()["versions"],
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            **more,
        )
        return cls(path, record)

    def save(self) -> None:
        """Write study.json."""
        from rayfed_ssl.storage.filesystem import write_atomically

        self.path.mkdir(parents=True, exist_ok=True)
        if self.trusted:
            self.record.signature = sign(self.path / "study.json", self.record.asked)
        write_atomically(self.path / "study.json", (self.record.model_dump_json(indent=1) + "\n").encode())
        self.runs.mkdir(exist_ok=True)

    def add_seeds(self, setting: str) -> None:
        """Have every trial run under more seeds; those that it has already change nothing.

        Args:
            setting: "seeds=N", or a list that begins with the seeds so far; the command that makes the sweep gets it too.

        Raises:
            ConfigError: Seeds would be left out, later points were chosen from the means over the seeds so far, the sweep
                is part of a benchmark, or another process runs it.
        """
        before, words = self.study, shlex.split(self.record.command)
        if words[:2] == ["rayfed-ssl", "benchmark"]:
            raise ConfigError(f"{self.path} belongs to a benchmark: name more with --seeds in `{self.record.command}`")
        command = shlex.join([*(word for word in words if not word.startswith("seeds=")), setting])
        changes = {"overrides": [*self.record.overrides, setting], "command": command, "finished": None}
        asked = self.record.model_copy(update=changes)
        seeds = replace(self, record=asked).study.seeds
        if seeds == before.seeds:
            return
        so_far = f"{self.path} has run the seeds {list(before.seeds)}"
        if seeds[: len(before.seeds)] != before.seeds:
            raise ConfigError(f"{so_far}, and {setting} leaves some out or reorders them: give those first, then more")
        if before.adapts:
            raise ConfigError(f"{so_far} and chosen by their means; with {setting} it would have chosen other trials")
        with self.locked():
            self.record = asked
            self.save()

    def forget_last_failures(self) -> dict[str, str]:
        """Drop the failures of the last generation, which no later point follows from, and give the others."""
        record = self.record
        earlier = max(0, (len(record.trials) - 1) // self.study.generation) * self.study.generation
        names = {name for trial in record.trials[:earlier] for name in trial.runs}
        record.failures = {key: why for key, why in record.failures.items() if key.rpartition("@")[0] in names}
        return record.failures

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running this sweep; may be nested.

        Raises:
            BusyError: Another process runs it.
            ConfigError: A link in the directory leads out of it.
        """
        refuse_links_out(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            lock = self._lock.acquire(blocking=False)
        except Timeout:
            raise BusyError(f"another process is running {self.path}: wait for it or stop it") from None
        with lock:
            yield

    @cached_property
    def _lock(self) -> FileLock:
        return FileLock(self.path / "lock")

    def __getstate__(self) -> dict[str, Any]:
        # Ray Tune pickles this object, and a lock belongs to its process.
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def is_running(self) -> bool | None:
        """Whether a process runs this sweep; None where the lock cannot be read."""
        if not (self.path / "lock").is_file():
            return False
        try:
            with FileLock(self.path / "lock", blocking=False):
                return False
        except Timeout:
            return True
        except OSError:  # it belongs to another user, or lies on a file system without locks
            return None
