"""Optuna's study of a sweep: its sampler, its pruner, its directions, and its storage on disk."""

import warnings
from pathlib import Path
from typing import Any

import optuna
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from rayfed_ssl.errors import ConfigError
from tune.studies.definition.search_plan import Asha, Median
from tune.studies.definition.study import Study


def make_optuna_study(study: Study, journal: Path | None) -> optuna.Study:
    """Create Optuna's study, with its storage in a new file `journal` or, for None, in memory."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = None
    if journal is not None:
        journal = journal.resolve()
        # A killed process leaves Optuna's lock behind; no other process writes, as the sweep's own lock says.
        for old in (journal, journal.with_name(f"{journal.name}.lock")):
            old.unlink(missing_ok=True)
        storage = JournalStorage(JournalFileBackend(str(journal)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        optuna_study = optuna.create_study(
            storage=storage,
            study_name=study.name,
            sampler=_sampler(study),
            pruner=_pruner(study),
            directions=[goal.direction for goal in study.goals] or ["maximize"],  # Optuna has no study without a goal
        )
        if study.goals:
            optuna_study.set_metric_names([goal.score for goal in study.goals])
    return optuna_study


def _sampler(study: Study) -> BaseSampler:
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "grid": (RandomSampler, {}),
        "random": (RandomSampler, {}),
        # One generation at random; Optuna's 10 would make it two of the usual 8.
        "tpe": (TPESampler, {"constant_liar": True, "n_startup_trials": min(10, study.generation)}),
        "nsga2": (NSGAIISampler, {"population_size": study.generation}),
    }
    name = study.search.name
    kind, usual = kinds[name]
    try:
        sampler: BaseSampler = kind(**usual | study.search.settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"search: {name} does not take these settings ({error})") from None
    return sampler


def _pruner(study: Study) -> BasePruner:
    stop = study.stop
    if isinstance(stop, Asha):
        return SuccessiveHalvingPruner(min_resource=stop.grace, reduction_factor=stop.reduction)
    if isinstance(stop, Median):
        return MedianPruner(n_startup_trials=stop.samples, n_warmup_steps=stop.grace, interval_steps=stop.every)
    return NopPruner()
