"""Runs that differ in their seed alone, together: mean, spread and number."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rayfed_ssl.config.schema import Config
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.summary import Summary


@dataclass(frozen=True)
class Spread:
    """A score over seeds.

    Attributes:
        mean: Over the runs that have the score.
        std: Sample standard deviation (n - 1); None for a single run.
        n: How many have it.
    """

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarize at least one value."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class SeedGroup:
    """Runs of one setting.

    Attributes:
        runs: In the order of their seeds.
        scores: Each run's headline by score: the global encoder's, or the mean over clients.
        minimum: Each run's lowest client by score, for runs without a global encoder.
    """

    runs: tuple[Summary, ...]
    scores: dict[str, Spread]
    minimum: dict[str, Spread]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The runs' seeds."""
        return tuple(run.config.seed for run in self.runs)


def by_seed(summaries: Iterable[Summary]) -> tuple[SeedGroup, ...]:
    """Put together the runs that differ in their seed alone, in the order in which each setting first appears.

    Runs that have done other numbers of rounds are no draws of one score, so one that was stopped stands apart.
    Engine, cadence of scoring and where the data lie do not count, as no score depends on them. Runs that began with another
    run's encoder belong together if those runs do.

    Raises:
        ConfigError: Two runs of a setting have one seed, which would count one draw twice.
    """
    groups: dict[str, list[Summary]] = {}
    for summary in summaries:
        groups.setdefault(setting(summary), []).append(summary)
    return tuple(_group(runs) for runs in groups.values())


def setting(summary: Summary) -> str:
    """Name what runs of several seeds share, with the rounds that they have done: other rounds are other scores."""
    return repr((summary.rounds, identity(summary.config, summary.fingerprint)))


def identity(config: Config, fingerprint: str) -> dict[str, Any]:
    """Give what runs of several seeds share: their settings and their data."""
    settings = config.dump()
    settings = {key: value for key, value in settings.items() if key not in ("seed", "engine")}
    settings["data"] = settings["data"] | {"path": fingerprint}
    ignored = ("every", "diagnostics")
    settings["evaluation"] = {key: value for key, value in settings["evaluation"].items() if key not in ignored}
    if config.model.start is not None:
        settings["model"] = settings["model"] | {"start": _origin(config.model.start)}
    return settings


def _origin(start: Path) -> Any:
    """Name where an encoder is from: the settings of its run and its name there, or the path where there is no run."""
    run, encoder = (start, "global") if start.is_dir() else (start.parent.parent, start.stem)
    if not (run / "run.json").is_file():
        return str(start)
    record = RunRecord.open(run)
    return encoder, identity(record.config(), record.summary["data"]["fingerprint"])


def _group(runs: Sequence[Summary]) -> SeedGroup:
    runs = sorted(runs, key=lambda run: run.config.seed)
    for before, after in pairwise(runs):
        if before.config.seed == after.config.seed:
            raise ConfigError(
                f"{before.directory} and {after.directory} are one setting with one seed, {after.config.seed}: name one"
            )
    names = dict.fromkeys(name for run in runs for scores in run.scores.values() for name in scores)
    return SeedGroup(
        tuple(runs), _spreads(runs, names, Summary.headline), _spreads(_without_global(runs), names, Summary.minimum)
    )


def _without_global(runs: Iterable[Summary]) -> list[Summary]:
    return [run for run in runs if "global" not in run.scores]


def _spreads(
    runs: Sequence[Summary], names: Iterable[str], take: Callable[[Summary, str], float | None]
) -> dict[str, Spread]:
    found = {name: [value for run in runs if (value := take(run, name)) is not None] for name in names}
    return {name: Spread.of(values) for name, values in found.items() if values}
