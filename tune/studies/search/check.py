"""Whether a sweep could give any result, checked before it starts: its scores exist, and some trial can be run."""

from collections.abc import Iterator
from itertools import islice

import optuna

from rayfed_ssl.config.schema import Config
from rayfed_ssl.config.sections import BITS
from rayfed_ssl.engine.diagnostics import DIAGNOSTICS
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError, nearest
from rayfed_ssl.evaluation.registry import PROTOCOLS, is_score
from tune.studies.definition.schema import BYTES, EVERY_ROUND, Sweep
from tune.studies.definition.space import Point
from tune.studies.definition.trial_configs import config_of
from tune.studies.search.optuna_study import make_study

MAX_ATTEMPTS = 64
"""Points that are tried, at most, to find one that can be run."""


def check_sweep(sweep: Sweep) -> None:
    """Refuse a sweep of which no trial could give a value."""
    if not sweep.goals:
        raise ConfigError(f"{sweep.name}: there is no goal to choose by: name a score, as in maximize: linear")
    asked = [goal.score for goal in sweep.goals] + ([] if sweep.stop is None else [sweep.stop_goal.score])
    for score in asked:
        if not is_score(score) and score not in (*DIAGNOSTICS, *BYTES):
            scores = {*EVERY_ROUND, "linear", *PROTOCOLS, *DIAGNOSTICS}
            raise ConfigError(
                f"{sweep.name}: there is no score {score!r}{nearest(score, scores)}: see docs/sweeps.md, goals"
            )
    for key in sweep.space.names:
        section, _, name = key.partition(".")
        if section == "engine" and name not in BITS:
            raise ConfigError(f"{sweep.name}: {key} changes how a run is computed and not its result: do not vary it")
    config = _first_possible(sweep)
    if "supervised" in asked and not config.objective.classifies:
        name = config.dump()["objective"]["name"]
        raise ConfigError(
            f"{sweep.name}: supervised is the accuracy of the classifier that an objective trains, and {name} trains none: "
            "take linear or knn"
        )
    _try_sampler(sweep)
    kind, _, number = (sweep.take or "").partition("-")
    if kind == "client" and int(number) >= config.clients.number:
        raise ConfigError(
            f"{sweep.name}: take: {sweep.take}, but clients are client-0 to client-{config.clients.number - 1}"
        )


def _first_possible(sweep: Sweep) -> Config:
    """Resolve the first point that can be run, and open its data; else say what is wrong with the first one."""
    refused: list[str] = []
    for point in islice(_points(sweep), MAX_ATTEMPTS):
        try:
            config = config_of(sweep, point, sweep.seeds[0])
            Federation.open(config)
            return config
        except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, OSError) as error:
            refused.append(str(error))
    raise ConfigError(*(f"{sweep.name}: no trial can be run: {line}" for line in refused[0].splitlines()))


def _points(sweep: Sweep) -> Iterator[Point]:
    """Give the points of a grid, or some at random."""
    if sweep.search.name == "grid":
        yield from sweep.space.grid()
        return
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    while True:
        yield sweep.space.suggest(study.ask())


def _try_sampler(sweep: Sweep) -> None:
    """Let a sampler choose among invented results, so that it refuses its settings now and not after hours."""
    study = make_study(sweep, None)
    if sweep.search.name == "grid":
        return
    startup = sweep.search.settings.get("n_startup_trials", 0)
    try:
        for number in range(min(int(startup), MAX_ATTEMPTS) + 2 * min(sweep.generation, MAX_ATTEMPTS) + 1):
            asked = study.ask()
            sweep.space.suggest(asked)
            study.tell(asked, [float(number)] * len(sweep.goals))
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(
            f"{sweep.name}: search: {sweep.search.name} does not work with these settings ({why})"
        ) from None
