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
from tune.studies.definition.search_plan import BYTES, EVERY_ROUND
from tune.studies.definition.space import Point
from tune.studies.definition.study import Study
from tune.studies.definition.trial_configs import config_of
from tune.studies.search.optuna_study import make_optuna_study

MAX_ATTEMPTS = 64
"""Points that are tried, at most, to find one that can be run."""


def check_study(study: Study) -> None:
    """Refuse a sweep of which no trial could give a value."""
    if not study.goals:
        raise ConfigError(f"{study.name}: there is no goal to choose by: name a score, as in maximize: linear")
    asked = [goal.score for goal in study.goals] + ([] if study.stop is None else [study.stop_goal.score])
    for score in asked:
        if not is_score(score) and score not in (*DIAGNOSTICS, *BYTES):
            scores = {*EVERY_ROUND, "linear", *PROTOCOLS, *DIAGNOSTICS}
            raise ConfigError(
                f"{study.name}: there is no score {score!r}{nearest(score, scores)}: see docs/sweeps.md, goals"
            )
    for key in study.space.names:
        section, _, name = key.partition(".")
        if section == "engine" and name not in BITS:
            raise ConfigError(f"{study.name}: {key} changes how a run is computed and not its result: do not vary it")
    config = _first_possible(study)
    if "supervised" in asked and not config.objective.classifies:
        name = config.dump()["objective"]["name"]
        raise ConfigError(
            f"{study.name}: supervised is the accuracy of the classifier that an objective trains, and {name} trains none: "
            "take linear or knn"
        )
    _try_sampler(study)
    kind, _, number = (study.take or "").partition("-")
    if kind == "client" and int(number) >= config.clients.number:
        raise ConfigError(
            f"{study.name}: take: {study.take}, but clients are client-0 to client-{config.clients.number - 1}"
        )


def _first_possible(study: Study) -> Config:
    """Resolve the first point that can be run, and open its data; else say what is wrong with the first one."""
    refused: list[str] = []
    for point in islice(_points(study), MAX_ATTEMPTS):
        try:
            config = config_of(study, point, study.seeds[0])
            Federation.open(config)
            return config
        except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, OSError) as error:
            refused.append(str(error))
    raise ConfigError(*(f"{study.name}: no trial can be run: {line}" for line in refused[0].splitlines()))


def _points(study: Study) -> Iterator[Point]:
    """Give the points of a grid, or some at random."""
    if study.search.name == "grid":
        yield from study.points()
        return
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    optuna_study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    while True:
        yield study.space.suggest(optuna_study.ask())


def _try_sampler(study: Study) -> None:
    """Let a sampler choose among invented results, so that it refuses its settings now and not after hours."""
    optuna_study = make_optuna_study(study, None)
    if study.search.name == "grid":
        return
    startup = study.search.settings.get("n_startup_trials", 0)
    try:
        for number in range(min(int(startup), MAX_ATTEMPTS) + 2 * min(study.generation, MAX_ATTEMPTS) + 1):
            asked = optuna_study.ask()
            study.space.suggest(asked)
            optuna_study.tell(asked, [float(number)] * len(study.goals))
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(
            f"{study.name}: search: {study.search.name} does not work with these settings ({why})"
        ) from None
