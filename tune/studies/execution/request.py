"""What a user asks of a command that runs a study: which part of it, where and how, and the command line that says so."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rayfed_ssl.errors import ConfigError
from tune.studies.definition.files import VERBS, load_study
from tune.studies.definition.study import Study
from tune.studies.execution.directory import StudyDirectory
from tune.studies.execution.runner import run_study, run_study_here
from tune.studies.search.search import Search

Say = Callable[[str], None]


@dataclass(frozen=True)
class StudyRequest:
    """What a user asks for.

    Attributes:
        name: What to run: a name or a file.
        kind: "reproduction" or "benchmark".
        settings: Changes of all runs, "key=value".
        jobs: Parallel runs; 1 runs them in this process, one after the other.
        address: A Ray to join.
        out: Where everything goes; None names a directory under ./runs.
        size: One of the file's sizes, for a study that has some.
        seeds: Which; None for the file's.
        rows: Only these, as `columns`; None for all.
        trust: Whether to go on in a directory that somebody else has made.
    """

    name: str
    kind: str
    settings: tuple[str, ...] = ()
    jobs: int = 1
    address: str | None = None
    out: Path | None = None
    size: str | None = None
    seeds: tuple[int, ...] | None = None
    rows: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    trust: bool = False

    @property
    def on_tune(self) -> bool:
        """Whether runs are trials on Ray Tune."""
        return self.jobs > 1 or self.address is not None

    @property
    def directory(self) -> Path:
        """Where everything goes."""
        stem = Path(self.name).stem
        return self.out or Path("runs") / (f"{stem}-{self.size}" if self.size else f"{self.kind}-{stem}")

    @property
    def command(self) -> str:
        """The command line that asks for it."""
        options = ["--size", self.size] if self.size else []
        if self.seeds is not None and self.kind == "benchmark":
            options += ["--seeds", str(len(self.seeds))]
        elif self.seeds is not None and self.seeds != (0,):
            options += [option for seed in self.seeds for option in ("--seed", str(seed))]
        row = "--system" if self.kind == "benchmark" else "--row"
        options += _repeated(row, self.rows) + _repeated("--column", self.columns)
        options += ["--out", str(self.out)] if self.out is not None else []
        options += ["--jobs", str(self.jobs)] * (self.jobs > 1)
        options += ["--address", self.address] if self.address is not None else []
        return shlex.join(["rayfed-ssl", VERBS[self.kind], self.name, *options, *self.settings])

    def command_of(self, row: str, seeds: int) -> str:
        """The command line that asks for one row."""
        return replace(self, rows=(row,), seeds=tuple(range(seeds))).command

    def load(self) -> Study:
        """Read the study, with the rows and columns that are asked for."""
        if self.jobs < 1:
            raise ConfigError(f"--jobs is the number of parallel runs, at least 1, got {self.jobs}")
        if self.seeds is not None and len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"each seed counts once, got {', '.join(map(str, self.seeds))}")
        study = load_study(self.name, *self.settings, kind=self.kind, size=self.size)
        return study.only(self.rows, self.columns)

    def run(self, study: StudyDirectory, say: Say, on_ray_death: Say | None = None) -> Search:
        """Run a study to its end; `on_ray_death` as in `run_study`."""
        if not self.on_tune:
            return run_study_here(study, say)
        return run_study(study, concurrency=self.jobs, address=self.address, say=say, on_ray_death=on_ray_death)


def _repeated(option: str, values: Sequence[str] | None) -> list[str]:
    return [word for value in values or () for word in (option, value)]
