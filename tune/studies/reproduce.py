"""`rayfed-ssl reproduce`: a paper's table or figure as a sweep with a variant for each cell."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.records.run_record import RunRecord
from tune.studies.definition.comparable import other_data, unlike
from tune.studies.definition.needed_data import absent, by_column, one_dataset
from tune.studies.definition.table_cells import Cell, Reproduction, load_reproduction
from tune.studies.execution.directory import SweepDirectory
from tune.studies.execution.request import Say, SweepRequest
from tune.studies.results.reproduction_results import CellResult, ReproductionResults, measured
from tune.studies.search.search import Search, Trial
from tune.terminal import echo, print_json, print_table


@dataclass(frozen=True)
class ReproductionRequest(SweepRequest):
    """What a user asks for.

    Attributes:
        rows: Only these, as `columns`; None for all.
    """

    size: str = "cpu"
    seeds: tuple[int, ...] = (0,)
    rows: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None

    @property
    def directory(self) -> Path:
        """Where everything goes."""
        return self.out or Path("runs") / f"{Path(self.name).stem}-{self.size}"

    @property
    def command(self) -> str:
        """The command line that asks for it."""
        options = ["--size", self.size]
        options += [option for seed in self.seeds for option in ("--seed", str(seed))] * (self.seeds != (0,))
        options += [option for row in self.rows or () for option in ("--row", row)]
        options += [option for column in self.columns or () for option in ("--column", column)]
        return self.command_line("reproduce", options)

    def resolve(self) -> tuple[Reproduction, dict[str, str], SweepDirectory]:
        """Read the file and resolve all cells whose data are there.

        Returns:
            The reproduction, the columns and cells that are left out with the reason, and the sweep over its cells.
        """
        if self.jobs < 1:
            raise ConfigError(f"--jobs is the number of parallel runs, at least 1, got {self.jobs}")
        if len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"each seed counts once, got {', '.join(map(str, self.seeds))}")
        chosen = load_reproduction(self.name, self.size).only(self.rows, self.columns)
        one_dataset(chosen, self.settings)
        missing = absent(chosen, self.settings)
        skipped = by_column(chosen, missing)
        reproduction = replace(
            chosen, cells=tuple(cell for cell in chosen.cells if (cell.row, cell.column) not in missing)
        )
        if not reproduction.cells:
            reasons = (f"{column}: {reason}" for column, reason in skipped.items())
            raise ConfigError(f"the data of no column of {self.name} are there", *reasons)
        return reproduction, skipped, self._sweep_of(reproduction)

    def _sweep_of(self, reproduction: Reproduction) -> SweepDirectory:
        """Write the sweep: a variant for each cell, and no goal, as cells have scores of their own."""
        variants = {f"{cell.row} | {cell.column}": _variant(cell) for cell in reproduction.cells}
        file: dict[str, Any] = {
            "title": f"{reproduction.file.title}, {reproduction.size} size",
            "set": {"engine.executor": "local" if self.on_tune else "ray"},
            "space": {"cell": {"variants": variants}},
            "seeds": list(self.seeds),
            "maximize": [],
            "selection": "test",
        }
        return SweepDirectory.of(self.directory, reproduction.name, file, self.settings, self.command)


def _variant(cell: Cell) -> dict[str, Any]:
    variant = {"recipe": cell.recipe, "set": dict(cell.settings)}
    return variant if cell.then is None else variant | {"then": cell.then.model_dump(by_alias=True)}


def reproduce(request: ReproductionRequest, say: Say, on_ray_death: Say | None = None) -> ReproductionResults:
    """Run what is missing, and write table, figure and `reproduction.json`; after Ctrl-C the same call resumes it."""
    reproduction, skipped, directory = request.resolve()
    for column, reason in skipped.items():
        say(f"left out, {column}: {reason}")
    differing = unlike(request.name, reproduction, request.settings)
    with directory.locked():
        _refuse_other(request, reproduction)
        directory.save()
        search = request.run(directory, say, on_ray_death)
    cells = [
        _result(cell, trial, directory.runs, reproduction.file.unit, differing.get((cell.row, cell.column)))
        for cell, trial in zip(reproduction.cells, search.trials, strict=True)
    ]
    other = other_data(request.name, reproduction, request.settings)
    results = ReproductionResults.of(
        reproduction, cells, request.seeds, request.settings, skipped, request.command, other
    )
    results.write(request.directory)  # before the figure, which may fail
    if reproduction.file.kind == "figure":
        from tune.studies.results.reproduction_figures import draw_reproduction

        figures = draw_reproduction(reproduction, results, request.directory)
        results = results.model_copy(update={"figures": figures})
        results.write(request.directory)
    return results


def _refuse_other(request: ReproductionRequest, reproduction: Reproduction) -> None:
    """Keep one table from being written over another."""
    if (request.directory / "sweep.json").is_file():
        other = SweepDirectory.open(request.directory).record
        title = f"{reproduction.file.title}, {reproduction.size} size"
        if (other.name, other.file.get("title")) != (reproduction.name, title):
            raise ConfigError(
                f"{request.directory} holds {other.name} ({other.file.get('title')}): name another directory with --out"
            )


def _result(cell: Cell, trial: Trial, runs: Path, unit: str, differs: str | None) -> CellResult:
    """Read a cell's numbers from the runs of its trial."""
    values: list[float | None] = []
    failures = {}
    for seed, run in trial.runs.items():
        finished = is_finished(runs / run.name)
        value = measured(cell, runs / run.name, unit) if finished else None
        values.append(value)
        if finished and value is None:
            failures[str(seed)] = f"{run.name} has no score {cell.score!r}" + (f" of {cell.take}" if cell.take else "")
        elif value is None:
            failures[str(seed)] = trial.failures.get(seed) or "was not run"
    return CellResult.of(cell, [f"{runs.name}/{name}" for name in trial.names], values, failures, differs)


def is_finished(run: Path) -> bool:
    """Whether a run has ended."""
    return (run / "run.json").is_file() and RunRecord.open(run, tables=False).manifest.finished is not None


def list_runs(request: ReproductionRequest) -> tuple[list[str], list[list[str]]]:
    """Head and lines of what would be run: row, column, seed, run, and its state."""
    reproduction, skipped, directory = request.resolve()
    search, lines = Search(directory.sweep), []
    while search.next() is not None:
        pass
    for cell, trial in zip(reproduction.cells, search.trials, strict=True):
        for seed, run in trial.runs.items():
            lines.append([cell.row, cell.column, str(seed), run.name, _state(directory.runs / run.name)])
    lines += [["", column, "", "left out", reason] for column, reason in skipped.items()]
    return ["row", "column", "seed", "run", "state"], lines


def _state(run: Path) -> str:
    if is_finished(run):
        return "finished"
    return "unfinished" if (run / "run.json").is_file() else "to do"


def print_result(results: ReproductionResults, directory: Path, as_json: bool) -> None:
    """Print the table with what a reader of it has to know, or all as JSON."""
    if as_json:
        print_json(results.model_dump(mode="json"))
        return
    echo(results.title)
    print_table(*results.table())
    lines = [*results.remarks(), f"record: {directory / 'reproduction.json'}, {directory / 'table.md'}"]
    for line in [*lines, *(f"figure: {directory / name}" for name in results.figures)]:
        echo(line)
