"""`rayfed-ssl reproduce`: make a paper's table or figure, and set it beside the published one."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.reports.reproduced import Reproduced
from rayfed_ssl.reproductions.comparable import unlike
from rayfed_ssl.reproductions.definition import Reproduction
from rayfed_ssl.reproductions.loading import load_reproduction
from tune.reproductions.needed_data import absent, by_column, one_dataset
from tune.reproductions.runner import Execution, Plan, Processes, collect, finished, in_process, plan

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wish:
    """What a user asks for.

    Attributes:
        name: A reproduction's name or file.
        size: "cpu" or "paper".
        seeds: One run of each cell a seed.
        rows: Only these; None for all.
        columns: Only these; None for all.
        settings: Changes of all cells, "key=value".
        jobs: Runs at a time; above 1 each is a process of one core.
        out: Where everything goes; None names a directory under ./runs.
    """

    name: str
    size: str = "cpu"
    seeds: tuple[int, ...] = (0,)
    rows: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    settings: tuple[str, ...] = ()
    jobs: int = 1
    out: Path | None = None

    @property
    def directory(self) -> Path:
        """Where everything goes."""
        return self.out or Path("runs") / f"{Path(self.name).stem}-{self.size}"

    @property
    def command(self) -> str:
        """The command line that asks for it."""
        words = ["rayfed-ssl", "reproduce", self.name, "--size", self.size]
        words += ["--out", str(self.out)] * (self.out is not None)
        words += [word for seed in self.seeds for word in ("--seed", str(seed))] * (self.seeds != (0,))
        words += [word for row in self.rows or () for word in ("--row", row)]
        words += [word for column in self.columns or () for word in ("--column", column)]
        words += ["--jobs", str(self.jobs)] * (self.jobs > 1)
        return shlex.join([*words, *self.settings])

    @property
    def folder(self) -> Path:
        """Where runs go."""
        return self.directory / "runs"

    def resolve(self) -> tuple[Reproduction, dict[str, str], Plan]:
        """Read the file and resolve all cells whose data are there.

        Returns:
            The reproduction, the columns and cells that are left out with the reason, and the runs.

        Raises:
            ConfigError: Names or settings do not fit, or the data of no column are there.
        """
        if self.jobs < 1:
            raise ConfigError(f"--jobs is how many runs go on at a time, at least 1, got {self.jobs}")
        if len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"each seed counts once, got {', '.join(map(str, self.seeds))}")
        chosen = load_reproduction(self.name, self.size).only(self.rows, self.columns)
        one_dataset(chosen, self.settings)
        missing = absent(chosen, self.settings)
        skipped = by_column(chosen, missing)
        there = replace(chosen, cells=tuple(cell for cell in chosen.cells if (cell.row, cell.column) not in missing))
        if not there.cells:
            reasons = "\n".join(f"{column}: {reason}" for column, reason in skipped.items())
            raise ConfigError(f"the data of no column of {self.name} are there\n{reasons}")
        return there, skipped, plan(there, self.seeds, self.settings)


def reproduce(wish: Wish, say: Say) -> Reproduced:
    """Run what is missing, and write table, figure and `reproduction.json`.

    Args:
        wish: What to make.
        say: Is told the progress, a line at a time.

    Raises:
        ConfigError: Names, settings or data do not fit.
        KeyboardInterrupt: The user stopped it; the same call goes on.
    """
    shown, skipped, planned = wish.resolve()
    _refuse_other(wish)
    for column, reason in skipped.items():
        say(f"left out, {column}: {reason}")
    differing = unlike(wish.name, shown, wish.settings)
    wish.folder.mkdir(parents=True, exist_ok=True)
    launch = in_process if wish.jobs == 1 else Processes(wish.directory / "logs")
    execution = Execution(planned, wish.folder, launch, wish.jobs, say)
    execution.run()
    cells = collect(shown, planned, wish.folder, wish.seeds, execution.failures, differing)
    result = Reproduced(shown, cells, wish.seeds, wish.settings, skipped, wish.command)
    result.write(wish.directory)  # before anything is drawn, which may fail
    if shown.kind == "figure":
        from rayfed_ssl.reports.reproduction_figures import draw_reproduction

        result = replace(result, figures=draw_reproduction(result, wish.directory))
        result.write(wish.directory)
    return result


def _refuse_other(wish: Wish) -> None:
    """Keep one table from being written over another."""
    import json

    file = wish.directory / "reproduction.json"
    if not file.is_file():
        return
    try:
        there = json.loads(file.read_text())
        name, size = there["name"], there["size"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} is damaged ({error!r}): delete it, or name another directory with --out") from None
    if (name, size) != (Path(wish.name).stem, wish.size):
        raise ConfigError(f"{wish.directory} holds {name} at {size} size: name another directory with --out")


def listed(wish: Wish) -> tuple[list[str], list[list[str]]]:
    """Head and lines of what would be run: row, column, seed, run, and how far it is."""
    shown, skipped, planned = wish.resolve()
    lines = [
        [
            cell.row,
            cell.column,
            str(seed),
            name := planned.last[cell.row, cell.column, seed],
            _state(wish.folder / name),
        ]
        for cell in shown.cells
        for seed in wish.seeds
    ]
    lines += [["", column, "", "left out", reason] for column, reason in skipped.items()]
    return ["row", "column", "seed", "run", "state"], lines


def _state(directory: Path) -> str:
    if finished(directory):
        return "finished"
    return "unfinished" if (directory / "run.json").is_file() else "to do"


def present(result: Reproduced, directory: Path, as_json: bool) -> None:
    """Print the table with what a reader of it has to know, or all as JSON."""
    from tune.terminal import print_json, print_table

    if as_json:
        print_json(result.plain())
        return
    print_table(*result.table())
    lines = [*result.remarks(), f"record: {directory / 'reproduction.json'}, {directory / 'table.md'}"]
    for line in [*lines, *(f"figure: {directory / name}" for name in result.figures)]:
        typer.echo(line)
