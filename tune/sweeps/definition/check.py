"""Whether a sweep could give anything at all, asked before it is begun: its scores exist, and some trial can be run."""

from collections.abc import Iterator
from itertools import islice

import optuna

from rayfed_ssl.config.schema import Config
from rayfed_ssl.config.sections import BITS
from rayfed_ssl.engine.diagnostics import DIAGNOSTICS
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError, nearest
from rayfed_ssl.evaluation.registry import PROTOCOLS, is_score
from tune.sweeps.definition.spaces import Point
from tune.sweeps.definition.sweep import BYTES, EVERY_ROUND, Sweep
from tune.sweeps.execution.trial_configs import config_of
from tune.sweeps.search.study import make_study

LOOKED_AT = 64
"""Points that are tried, at most, to find one that can be run."""


def check_sweep(sweep: Sweep) -> None:
    """Refuse a sweep of which no trial could come to a value.

    Raises:
        ConfigError: A score is not there, a parameter changes no result, or no point can be run; then the message is what is
            wrong with the first one.
    """
    try:
        _check(sweep)
    except ConfigError:
        raise
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError) as error:
        raise ConfigError(f"{sweep.name}: this sweep cannot be searched ({' '.join(str(error).split())})") from None


def _check(sweep: Sweep) -> None:
    asked = [goal.score for goal in sweep.goals] + ([] if sweep.stop is None else [sweep.stop.score])
    for score in asked:
        if not is_score(score) and score not in (*DIAGNOSTICS, *BYTES):
            known = {*EVERY_ROUND, "linear", *PROTOCOLS, *DIAGNOSTICS}
            raise ConfigError(
                f"{sweep.name}: there is no score {score!r}{nearest(score, known)}: see docs/sweeps.md, goals"
            )
    for key in sweep.space.names:
        section, _, name = key.partition(".")
        if section == "engine" and name not in BITS:
            raise ConfigError(
                f"{sweep.name}: {key} says how a run is computed, and runs that differ in it are one: do not vary it"
            )
    config = _one_of(sweep)
    if "supervised" in asked and not config.objective.classifies:
        name = config.dump()["objective"]["name"]
        raise ConfigError(
            f"{sweep.name}: supervised is the accuracy of the classifier that an objective trains, and {name} trains none: "
            "take linear or knn"
        )
    _try_sampler(sweep)
    kind, _, number = (sweep.take or "").partition("-")
    if kind == "client" and int(number) >= config.clients.number:
        last = config.clients.number - 1
        raise ConfigError(
            f"{sweep.name}: take: {sweep.take}, and clients are client-0 to client-{last}: name one of them"
        )


def _one_of(sweep: Sweep) -> Config:
    """Resolve the first point that can be run, and open its data."""
    refused: list[str] = []
    for point in islice(_points(sweep), LOOKED_AT):
        try:
            config = config_of(sweep, point, sweep.seeds[0])
            Federation.open(config)
            return config
        except (ConfigError, OSError) as error:
            refused.append(str(error))
    raise ConfigError("\n".join(f"{sweep.name}: no trial can be run: {line}" for line in refused[0].splitlines()))


def _try_sampler(sweep: Sweep) -> None:
    """Let a sampler choose among invented results, so that it refuses its settings now and not after hours.

    Raises:
        ConfigError: It cannot work with them.
    """
    study = make_study(sweep, None)
    if sweep.search == "grid":
        return
    startup = sweep.sampler.get("n_startup_trials", 0)
    try:
        for number in range(min(int(startup), LOOKED_AT) + 2 * min(sweep.generation, LOOKED_AT) + 1):
            asked = study.ask()
            sweep.space.suggest(asked)
            study.tell(asked, [float(number)] * len(sweep.goals))
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"{sweep.name}: search: {sweep.search} does not work with these settings ({why})") from None


def _points(sweep: Sweep) -> Iterator[Point]:
    """Give the points of a grid, or some at random."""
    if sweep.search == "grid":
        yield from sweep.space.grid()
        return
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    while True:
        yield sweep.space.suggest(study.ask())
