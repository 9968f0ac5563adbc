"""Benchmark files: systems at an equal budget, the search that tunes each of them, and the splits they are compared on.

A benchmark is two sweeps for each system: one searches on held-out training samples, the other runs all splits and seeds
with the settings that it chose.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Annotated, Any

from pydantic import Field, model_validator

from rayfed_ssl.config.recipes import read_shipped, shipped_names
from rayfed_ssl.config.strict import Settings, StrictModel, parse
from rayfed_ssl.errors import nearest

Values = Annotated[list[Any], Field(min_length=1)]


class System(StrictModel):
    """A row of the table.

    Attributes:
        recipe: What it runs.
        settings: What is changed in that, after the benchmark's own settings and the split's.
        tune: Values of each key that the search tries, as a grid; without any the system is not searched.
    """

    recipe: str
    settings: Settings = Field({}, alias="set")
    tune: dict[str, Values] = Field({})


class SearchPlan(StrictModel):
    """How each system is tuned, on the first split.

    Attributes:
        settings: What is changed for the search, such as fewer rounds and `data.validation`.
        seed: Of the search's runs.
    """

    settings: Settings = Field({}, alias="set")
    seed: int = 0


class BenchmarkFile(StrictModel):
    """A benchmark.

    Attributes:
        settings: What holds for all runs.
        splits: Settings of each split by its name; the first is that of the search.
        baseline: The system that all others are compared with.
        score: What is compared: "linear", "knn" or a protocol's name.
    """

    title: str
    notes: Annotated[tuple[str, ...], Field(strict=False)] = ()
    settings: Settings = Field({}, alias="set")
    splits: dict[str, Settings] = Field(min_length=1)
    search: SearchPlan = SearchPlan()
    seeds: Annotated[int, Field(ge=1)] = 3
    baseline: str
    score: str = "linear"
    systems: dict[str, System] = Field(min_length=2)

    @model_validator(mode="after")
    def _check(self) -> "BenchmarkFile":
        if self.baseline not in self.systems:
            raise ValueError(f"there is no system {self.baseline!r}{nearest(self.baseline, self.systems)}")
        trials = {name: prod(map(len, system.tune.values())) for name, system in self.systems.items() if system.tune}
        if len(set(trials.values())) > 1:
            counts = ", ".join(f"{name} {count}" for name, count in trials.items())
            raise ValueError(f"all systems are tuned by as many trials, got {counts}")
        slugs: dict[str, str] = {}
        for name in self.systems:
            other = slugs.setdefault(slug(name), name)
            if not slug(name) or other != name:
                raise ValueError(f"systems need names that differ in letters and digits, got {name!r} and {other!r}")
        return self


def benchmark_names() -> list[str]:
    """Name the benchmarks that come with the package."""
    return shipped_names("tune.studies.shipped.benchmarks")


def load_benchmark(name: str) -> BenchmarkFile:
    """Read a benchmark, one of the package's by name or another by its path."""
    tree = read_shipped("benchmark", "tune.studies.shipped.benchmarks", name)
    return parse(BenchmarkFile, tree, name)


def search_sweep(file: BenchmarkFile, name: str) -> dict[str, Any]:
    """Write the sweep that tunes a system."""
    system = file.systems[name]
    settings = file.settings | next(iter(file.splits.values())) | system.settings | file.search.settings
    return {
        "title": f"{file.title}: search for {name}",
        "recipe": system.recipe,
        "set": {key: value for key, value in settings.items() if key not in system.tune},
        "space": dict(system.tune),
        "seeds": [file.search.seed],
        "maximize": file.score,
    }


def comparison_sweep(file: BenchmarkFile, name: str, chosen: Mapping[str, Any], seeds: Sequence[int]) -> dict[str, Any]:
    """Write the sweep that runs a system on all splits.

    Args:
        file: The benchmark.
        name: The system.
        chosen: What the search chose, by key.
        seeds: Of the system on each split.
    """
    system = file.systems[name]
    # A system's settings go before the split's: the centralized one pools all samples.
    splits = {split: {"set": {**settings, **system.settings, **chosen}} for split, settings in file.splits.items()}
    return {
        "title": f"{file.title}: {name}",
        "notes": list(file.notes),
        "recipe": system.recipe,
        "set": dict(file.settings),
        "space": {"split": {"variants": splits}},
        "seeds": list(seeds),
        "maximize": file.score,
        "selection": "test",
    }


def slug(system: str) -> str:
    """Name a system's directory."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in system.lower()).split())
