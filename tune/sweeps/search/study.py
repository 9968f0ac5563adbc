"""Optuna's study of a sweep: its sampler, its directions, and its storage on disk."""

import warnings
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from rayfed_ssl.errors import ConfigError
from tune.sweeps.definition.sweep import Sweep


def make_study(sweep: Sweep, journal: Path | None) -> optuna.Study:
    """Begin Optuna's study.

    Raises:
        ConfigError: The sampler has no such setting.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = None
    if journal is not None:
        journal = journal.resolve()
        # Whoever was killed while writing left Optuna's lock behind; nobody else writes, as the sweep's own lock says.
        for left in (journal, journal.with_name(f"{journal.name}.lock")):
            left.unlink(missing_ok=True)
        storage = JournalStorage(JournalFileBackend(str(journal)))
    directions = [goal.direction for goal in sweep.goals]
    study = optuna.create_study(storage=storage, study_name=sweep.name, sampler=_sampler(sweep), directions=directions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names([goal.score for goal in sweep.goals])
    return study


def _sampler(sweep: Sweep) -> BaseSampler:
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "grid": (RandomSampler, {}),
        "random": (RandomSampler, {}),
        # A whole generation at random is enough to begin with; Optuna's 10 would make it two of the usual 8.
        "tpe": (TPESampler, {"constant_liar": True, "n_startup_trials": min(10, sweep.generation)}),
        "nsga2": (NSGAIISampler, {"population_size": sweep.generation}),
    }
    kind, usual = kinds[sweep.search]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            sampler: BaseSampler = kind(**{"seed": 0} | usual | dict(sweep.sampler))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"search: {sweep.search} does not take these settings ({error})") from None
    return sampler
