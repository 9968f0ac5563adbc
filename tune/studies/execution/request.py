"""What commands that make many runs have in common: where and how they run, and the command line that asks for it."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tune.studies.execution.directory import SweepDirectory
from tune.studies.execution.runner import run_sweep, run_sweep_here
from tune.studies.search.search import Search

Say = Callable[[str], None]


@dataclass(frozen=True)
class SweepRequest:
    """What a user asks of a command that runs sweeps.

    Attributes:
        name: What to run: a name or a file.
        settings: Changes of all runs, "key=value".
        jobs: Parallel runs; 1 runs them in this process, one after the other.
        address: A Ray to join.
        out: Where everything goes; None names a directory under ./runs.
    """

    name: str
    settings: tuple[str, ...] = ()
    jobs: int = 1
    address: str | None = None
    out: Path | None = None

    @property
    def on_tune(self) -> bool:
        """Whether runs are trials on Ray Tune."""
        return self.jobs > 1 or self.address is not None

    def command_line(self, command: str, options: Sequence[str]) -> str:
        """Write the command line that asks for it; `options` are the command's own."""
        options = [*options, *(["--out", str(self.out)] if self.out is not None else [])]
        options += ["--jobs", str(self.jobs)] * (self.jobs > 1)
        options += ["--address", self.address] if self.address is not None else []
        return shlex.join(["rayfed-ssl", command, self.name, *options, *self.settings])

    def run(self, sweep: SweepDirectory, say: Say, on_ray_death: Say | None = None) -> Search:
        """Run a sweep to its end; `on_ray_death` as in `run_sweep`."""
        if not self.on_tune:
            return run_sweep_here(sweep, say)
        return run_sweep(sweep, concurrency=self.jobs, address=self.address, say=say, on_ray_death=on_ray_death)
