"""`rayfed-ssl benchmark`: tune each system, then compare all of them."""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rayfed_ssl.errors import ConfigError, nearest
from rayfed_ssl.reading import read_json
from tune.studies.definition.benchmark_file import BenchmarkFile, comparison_sweep, load_benchmark, search_sweep, slug
from tune.studies.definition.trial_configs import config_of
from tune.studies.execution.directory import SweepDirectory
from tune.studies.execution.request import Say, SweepRequest
from tune.studies.results.benchmark_collect import write_benchmark
from tune.studies.results.benchmark_results import BenchmarkResults
from tune.studies.results.summary import write_results
from tune.studies.results.trial_results import best_of, read_results
from tune.studies.search.check import check_sweep


@dataclass(frozen=True)
class BenchmarkRequest(SweepRequest):
    """What a user asks for.

    Attributes:
        seeds: How many seeds, or None for the file's number.
        systems: Run only these; None for all.
        trust: Whether to go on in a directory that somebody else has made.
    """

    seeds: int | None = None
    systems: tuple[str, ...] | None = None
    trust: bool = False

    @property
    def directory(self) -> Path:
        """Where everything goes."""
        return self.out or Path("runs") / f"benchmark-{Path(self.name).stem}"

    def systems_of(self, file: BenchmarkFile) -> tuple[str, ...]:
        """Name the systems to run."""
        for name in self.systems or ():
            if name not in file.systems:
                raise ConfigError(f"{self.name} has no system {name!r}{nearest(name, file.systems)}")
        return tuple(name for name in file.systems if self.systems is None or name in self.systems)

    def command_of(self, system: str, seeds: int) -> str:
        """The command line that asks for one system."""
        return replace(self, systems=(system,), seeds=seeds).command

    @property
    def command(self) -> str:
        """The command line that asks for it."""
        options = ["--seeds", str(self.seeds)] if self.seeds is not None else []
        options += [option for system in self.systems or () for option in ("--system", system)]
        return self.command_line("benchmark", options)


def run_benchmark(request: BenchmarkRequest, say: Say, on_ray_death: Say | None = None) -> BenchmarkResults:
    """Run what is missing and write the results of all that is there; after Ctrl-C the same call resumes it.

    Raises:
        ConfigError: The file or a setting does not fit, the directory holds another benchmark, or a search found nothing.
    """
    file = load_benchmark(request.name)
    runner = _Runner(request, file, say, on_ray_death)
    names = request.systems_of(file)
    for name in names:
        runner.check(name)
    for name in names:
        runner.compare(name, runner.search(name) if file.systems[name].tune else {})
    return write_benchmark(request.directory, file, request.command, request.command_of)


@dataclass
class _Runner:
    """Runs the sweeps of a benchmark's systems."""

    request: BenchmarkRequest
    file: BenchmarkFile
    say: Say
    on_ray_death: Say | None

    @property
    def seeds(self) -> list[int]:
        """The seeds that are asked for."""
        return list(range(self.file.seeds if self.request.seeds is None else self.request.seeds))

    def check(self, name: str) -> None:
        """Refuse a system that cannot be run, before hours are spent on another."""
        if self.file.systems[name].tune:
            searched = self._sweep("search", name, search_sweep(self.file, name)).sweep
            for point in searched.space.grid():
                config_of(searched, point, self.file.search.seed)
        compared = self._sweep("comparison", name, comparison_sweep(self.file, name, {}, self.seeds)).sweep
        for point in compared.space.grid():
            config_of(compared, point, 0)
        check_sweep(compared)

    def search(self, name: str) -> dict[str, Any]:
        """Run a system's search; returns the point that is best on the held-out samples."""
        self.say(f"search for {name}")
        sweep = self._sweep("search", name, search_sweep(self.file, name))
        self._run(sweep)
        best = best_of(read_results(sweep, sweep.sweep), sweep.sweep.goals)
        if best is None:
            raise ConfigError(
                f"no trial of {name} was completed: see {sweep.path / 'table.md'}, then run the command again"
            )
        return dict(best.point)

    def compare(self, name: str, chosen: dict[str, Any]) -> None:
        """Run a system on all splits; seeds that it has already stay."""
        self.say(f"{name} on {', '.join(self.file.splits)}")
        path, seeds = self.request.directory / "comparison" / slug(name), set(self.seeds)
        if (path / "sweep.json").is_file():
            seeds |= set(SweepDirectory.open(path).sweep.seeds)
        self._run(self._sweep("comparison", name, comparison_sweep(self.file, name, chosen, sorted(seeds))))

    def _sweep(self, kind: str, name: str, file: dict[str, Any]) -> SweepDirectory:
        """Open or describe one of the benchmark's sweeps; a sweep with other points keeps the runs that it has."""
        path = self.request.directory / kind / slug(name)
        sweep = SweepDirectory.of(path, slug(name), file, self.request.settings, self.request.command)
        if (path / "sweep.json").is_file():
            old = SweepDirectory.open(path, trust=self.request.trust)
            if old.record.file.get("title") != file["title"]:
                raise ConfigError(f"{path} holds {old.record.file.get('title')!r}: name another directory with --out")
            if (old.record.file, old.record.overrides) == (sweep.record.file, sweep.record.overrides):
                old.check_trusted()
                return old
        return sweep

    def _run(self, sweep: SweepDirectory) -> None:
        if sweep.is_complete() and _is_written(sweep):
            return
        with sweep.locked():
            sweep.save()
            self.request.run(sweep, self.say, self.on_ray_death)
            write_results(sweep)


def _is_written(sweep: SweepDirectory) -> bool:
    """Whether the results of a complete sweep, and not earlier ones, are there."""
    file = sweep.path / "results.json"
    with suppress(OSError, ValueError, LookupError, TypeError):  # damaged results are written anew
        return bool(read_json(file)["finished"] == sweep.record.finished)
    return False
