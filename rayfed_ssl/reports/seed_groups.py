"""Runs that differ in their seed alone, as one: mean, deviation and number."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayfed_ssl.config.schema import Config
from rayfed_ssl.formats import MeanStd
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.summary import Summary


@dataclass(frozen=True)
class SeedGroup:
    """Runs of one setting, in the order of their seeds; in a report with a label that tells it from the others."""

    runs: tuple[Summary, ...]
    label: str = ""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The runs' seeds."""
        return tuple(run.config.seed for run in self.runs)

    @property
    def scores(self) -> dict[str, MeanStd]:
        """Each score of the global encoder, or its mean over clients, over the runs that have it."""
        return _over_seeds(self.runs, Summary.headline)

    @property
    def minimum(self) -> dict[str, MeanStd]:
        """Each score of the lowest client, over the runs without a global encoder."""
        return _over_seeds([run for run in self.runs if "global" not in run.scores], Summary.minimum)


def _over_seeds(runs: Sequence[Summary], score_of: Callable[[Summary, str], float | None]) -> dict[str, MeanStd]:
    names = dict.fromkeys(name for run in runs for scores in run.scores.values() for name in scores)
    values = {name: [score for run in runs if (score := score_of(run, name)) is not None] for name in names}
    return {name: MeanStd.of(scores) for name, scores in values.items() if scores}


def by_seed(runs: Iterable[Summary]) -> list[SeedGroup]:
    """Group runs that differ in their seed alone, in the order in which each setting first appears.

    Runs that have done other numbers of rounds are no draws of one score. Engine, frequency of scoring and the path of the
    data do not count, as no score depends on them. Runs that began with another run's encoder belong together if those runs
    do. A seed that comes again begins another group: it would count one draw twice.
    """
    groups: dict[tuple[str, int], list[Summary]] = {}
    repeats: Counter[tuple[str, int]] = Counter()
    for run in runs:
        setting = repr((run.rounds, _identity(run.config, run.fingerprint)))
        groups.setdefault((setting, repeats[setting, run.config.seed]), []).append(run)
        repeats[setting, run.config.seed] += 1
    return [SeedGroup(tuple(sorted(group, key=lambda run: run.config.seed))) for group in groups.values()]


def _identity(config: Config, fingerprint: str) -> dict[str, Any]:
    settings = {key: value for key, value in config.dump().items() if key not in ("seed", "engine")}
    settings["data"] |= {"path": fingerprint}
    settings["evaluation"] |= {"every": None, "diagnostics": None}
    if config.model.start is not None:
        settings["model"] |= {"start": _origin(config.model.start)}
    return settings


def _origin(start: Path) -> Any:
    """Identify an encoder by the settings of its run and its name there, or by its path where there is no run."""
    run, encoder = (start, "global") if start.is_dir() else (start.parent.parent, start.stem)
    if not (run / "run.json").is_file():
        return str(start)
    record = RunRecord.open(run)
    return encoder, _identity(record.described_config(), record.manifest.data.fingerprint)
