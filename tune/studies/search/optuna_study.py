"""Optuna's study of a sweep: its sampler, its pruner, and its directions; and what it refuses."""

import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import optuna
from optuna.pruners import BasePruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler

from rayfed_ssl.adversaries.backdoors import Backdoor
from rayfed_ssl.aggregation.robust.rule import CoordinateRule
from rayfed_ssl.attacks import ATTACKS
from rayfed_ssl.config.choices import ROBUST
from rayfed_ssl.config.schema import Config
from rayfed_ssl.config.sections import BITS
from rayfed_ssl.engine.diagnostics import DIAGNOSTICS
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError, nearest
from rayfed_ssl.evaluation.registry import ATTACK_SUCCESS, OWN, OWN_GOALS, PROTOCOLS, is_score
from rayfed_ssl.privacy.robust import HOSTILE_FOUND, LEFT_OUT
from tune.studies.definition.schema import BYTES, EPSILON, TARGET
from tune.studies.definition.space import Point
from tune.studies.definition.study import Study
from tune.studies.definition.trial_configs import config_of

MAX_ATTEMPTS = 64
"""Points that are tried, at most, to find one that can be run."""


def make_optuna_study(study: Study) -> optuna.Study:
    """Create Optuna's study, in memory."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.create_study(
            sampler=_sampler(study),
            pruner=_pruner(study),
            directions=[goal.direction for goal in study.goals] or ["maximize"],  # Optuna has no study without a goal
        )


def _sampler(study: Study) -> BaseSampler:
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "grid": (RandomSampler, {}),
        "random": (RandomSampler, {}),
        # One generation at random; Optuna's 10 would make it two of the usual 8.
        "tpe": (TPESampler, {"constant_liar": True, "n_startup_trials": min(10, study.generation)}),
        "nsga2": (NSGAIISampler, {"population_size": study.generation}),
    }
    kind, usual = kinds[study.search.name]
    try:
        sampler: BaseSampler = kind(**usual | study.search.settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"search: {study.search.name} does not take these settings ({error})") from None
    return sampler


def _pruner(study: Study) -> BasePruner:
    if study.stop is None:
        return NopPruner()
    return SuccessiveHalvingPruner(min_resource=study.stop.grace, reduction_factor=study.stop.reduction)


def check_study(study: Study) -> None:
    """Refuse a sweep of which no trial could give a value."""
    if not study.goals:
        raise ConfigError(f"{study.name}: there is no goal to choose by: name a score, as in maximize: linear")
    for goal in study.goals:
        attack, _, metric = goal.score.partition(".")
        others = (*DIAGNOSTICS, *BYTES, EPSILON, *LEFT_OUT, *OWN_GOALS)
        is_measured = is_score(goal.score) or goal.score in others or TARGET.fullmatch(goal.score)
        if not is_measured and not (attack in ATTACKS and metric):
            audits, targets = (f"{attack}.auc" for attack in ATTACKS), ("time_to:0.45", "bytes_to:0.45")
            scores = {"linear", ATTACK_SUCCESS, *PROTOCOLS, *others, *audits, *targets}
            raise ConfigError(
                f"{study.name}: there is no score {goal.score!r}{nearest(goal.score, scores)}: see docs/sweeps.md, goals"
            )
    for key in study.space.names:
        section, _, name = key.partition(".")
        if section == "engine" and name not in BITS:
            raise ConfigError(f"{study.name}: {key} changes how a run is computed and not its result: do not vary it")
    make_optuna_study(study)
    _check_some_trial(study)


def _check_some_trial(study: Study) -> None:
    """Resolve the first point that can be run, and open its data; else say what is wrong with the first one."""
    refused: list[str] = []
    for point in islice(_points(study), MAX_ATTEMPTS):
        try:
            config = config_of(study, point, study.seeds[0])
            if mistake := next(_unmeasured(config, [goal.score for goal in study.goals]), None):
                raise ConfigError(mistake)
            Federation.open(config)
            return
        except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, OSError) as error:
            refused.append(str(error))
    raise ConfigError(*(f"{study.name}: no trial can be run: {line}" for line in refused[0].splitlines()))


def _unmeasured(config: Config, scores: Sequence[str]) -> Iterator[str]:
    """Say why runs of a configuration lack a score."""
    if config.clock is None and any(score.startswith("time_to:") for score in scores):
        yield "time_to is of virtual time, and there is no clock: set clock=phones, or take bytes_to"
    if not isinstance(config.adversary, Backdoor) and any(score.startswith(ATTACK_SUCCESS) for score in scores):
        yield f"{ATTACK_SUCCESS} is of a trigger, and no adversary has one: set adversary=ssl-backdoor"
    if (config.robust is None or isinstance(config.robust, CoordinateRule)) and {*scores}.intersection(LEFT_OUT):
        rule = "there is no rule" if config.robust is None else f"{ROBUST.name_of(config.robust)} weighs none"
        yield f"{' and '.join(LEFT_OUT)} are of rules that weigh clients, and {rule}: set robust=multi-krum"
    if (config.adversary is None or config.adversary.from_round > config.rounds) and HOSTILE_FOUND in scores:
        yield (
            f"{HOSTILE_FOUND} is of rounds of an attack, and there are none: set adversary=sign-flip, or lower "
            "adversary.from_round"
        )
    own = next((score for score in scores if score.startswith(OWN)), None)
    if own is not None and config.clients.test_fraction is None:
        yield f"{own} is of clients' own samples, and none are set apart: set clients.test_fraction=0.2"


def _points(study: Study) -> Iterator[Point]:
    """Give the points of a grid, or some at random."""
    if study.search.name == "grid":
        yield from study.points()
        return
    optuna_study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    while True:
        yield study.space.suggest(optuna_study.ask())
