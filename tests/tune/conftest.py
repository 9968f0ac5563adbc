"""A recipe on disk, two finished runs, and a way to call the command line."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from rayfed_ssl.config.schema import Config
from tune.cli.app import app
from tune.studies.execution.directory import StudyDirectory

Cli = Callable[..., Result]
Recipes = dict[str, Path]
Finished = dict[str, tuple[Path, Result]]


@pytest.fixture(scope="session")
def cli() -> Cli:
    """Call the command line in this process; output is wide enough for no table to be folded."""
    runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})
    return lambda *words: runner.invoke(app, [str(word) for word in words])


@pytest.fixture(scope="session")
def recipes(tiny: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Recipes:
    """Tiny recipes as files."""
    folder = tmp_path_factory.mktemp("recipes")
    paths = {name: folder / f"{name}.yaml" for name in ("flesd", "fedavg", "local")}
    for name, path in paths.items():
        path.write_text(yaml.safe_dump(tiny(name).dump()))
    return paths


@pytest.fixture(scope="session")
def finished(cli: Cli, recipes: Recipes, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Runs that the command line has made, with what it said."""
    folder, runs = tmp_path_factory.mktemp("runs"), {}
    for name in ("flesd", "local"):
        out = folder / name
        runs[name] = out, cli("run", recipes[name], "evaluation.every=1", "--out", out)
        assert runs[name][1].exit_code == 0, runs[name][1].output
    return runs


@pytest.fixture(scope="session")
def swept_grid(tmp_path_factory: pytest.TempPathFactory) -> StudyDirectory:
    """A finished grid of two seeds, two of its trials impossible; read-only, and without results."""
    from tests.tune.studies.swept import GRID, begin, go_on

    directory = begin(tmp_path_factory.mktemp("sweeps"), GRID, "grid")
    go_on(directory)
    return directory


@pytest.fixture(scope="session")
def swept_part(tmp_path_factory: pytest.TempPathFactory) -> StudyDirectory:
    """The same grid after three of its runs; read-only."""
    from tests.tune.studies.swept import GRID, begin, go_on

    directory = begin(tmp_path_factory.mktemp("sweeps"), GRID, "grid")
    go_on(directory, segments=3)
    return directory


@pytest.fixture(scope="session")
def swept_front(tmp_path_factory: pytest.TempPathFactory) -> StudyDirectory:
    """A finished random search with two goals; read-only, and without results."""
    from tests.tune.studies.swept import FRONT, begin, go_on

    directory = begin(tmp_path_factory.mktemp("sweeps"), FRONT, "front")
    go_on(directory)
    return directory
