"""`rayfed-ssl sweep --dry-run`: the trials, runs and rounds of a sweep, and which of its trials are impossible."""

from dataclasses import dataclass

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from tune.studies.definition.schema import SearchMethod, Sweep
from tune.studies.definition.space import point_text
from tune.studies.search.check import check_sweep
from tune.studies.search.search import Search, Trial


@dataclass(frozen=True)
class SweepSize:
    """How much a sweep runs.

    Attributes:
        trials: How many; the points of a search that has not started are drawn at random.
        runs: How many different ones.
        upper_bound: Whether early stopping may make that less.
        impossible: Trial -> why its settings cannot be run.
    """

    name: str
    trials: int
    seeds: tuple[int, ...]
    runs: int
    rounds: int
    upper_bound: bool
    impossible: dict[str, str]

    def lines(self) -> list[str]:
        """Write it for people."""
        most = "at most " * self.upper_bound
        seeds = ", ".join(map(str, self.seeds))
        lines = [
            f"{self.name}: trials {self.trials}, seeds {seeds}, different runs {self.runs}, {most}{self.rounds} rounds"
        ]
        return lines + [f"impossible, {trial}: {reason}" for trial, reason in self.impossible.items()]


def size_of(sweep: Sweep) -> SweepSize:
    """Count trials, runs and rounds."""
    check_sweep(sweep)
    method = sweep.search if sweep.search.name == "grid" else SearchMethod(name="random")
    search = Search(sweep.model_copy(update={"search": method, "stop": None}))
    while search.next() is not None:
        pass
    runs: dict[str, Config] = {}
    impossible: dict[str, str] = {}
    for trial in search.trials:
        reason = trial.reason or _refusal(trial)
        if reason:
            impossible[f"trial {trial.number} ({point_text(trial.point)})"] = reason
        else:
            runs |= {run.name: run.config for run in trial.runs.values()}
    if not runs:
        raise ConfigError(f"no trial of {sweep.name} can be run: {next(iter(impossible.values()))}")
    rounds = sum(config.rounds for config in runs.values())
    return SweepSize(sweep.name, len(search.trials), sweep.seeds, len(runs), rounds, sweep.stop is not None, impossible)


def _refusal(trial: Trial) -> str:
    """Open the data of a trial's runs; returns why that fails, or ""."""
    try:
        for run in trial.runs.values():
            Federation.open(run.config)
    except (ValueError, OSError) as error:
        return "; ".join(str(error).splitlines())
    return ""
