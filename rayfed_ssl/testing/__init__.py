"""The laws of methods and objectives, for those of this package and for anybody else's; no test runner is needed.

    from rayfed_ssl.testing import check_method, check_objective

    check_method(MyMethod(beta=0.5))
    check_objective(MyObjective())

Both run on a toy: three clients with 150 digits and a small network, in this process, in some seconds. Steps are also
made on a pretend accelerator (`pretend_device`), which leaves nothing behind in the process.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from rayfed_ssl.config.schema import Config
from rayfed_ssl.method import Method
from rayfed_ssl.methods.fedavg import FedAvg
from rayfed_ssl.objectives import SimCLR
from rayfed_ssl.testing.device_laws import DEVICE_LAWS, DeviceTrial
from rayfed_ssl.testing.method_laws import LAWS, LawViolation
from rayfed_ssl.testing.objective_laws import check_steps
from rayfed_ssl.testing.trial import Trial
from rayfed_ssl.training.objective import Objective

Runs = TypeVar("Runs")

TOY = {
    "rounds": 2,
    "method": "fedavg",
    "objective": "simclr",
    "data": {"name": "digits", "train_limit": 150, "test_limit": 60},
    "partition": {"name": "dirichlet", "alpha": 1.0},
    "clients": {"number": 3},
    "model": {"encoder": "cnn", "projection_dim": 24},
    "training": {"epochs": 1, "batch": 32},
    "evaluation": {"every": 0, "linear": {"epochs": 2}},
    "engine": {"executor": "local", "device": "cpu", "precision": "fp32", "trackers": []},
}
"""Clients' shards and batches are of unequal sizes."""


def toy_config(
    method: Method | None = None, objective: Objective | None = None, settings: Sequence[str] = ()
) -> Config:
    """Make the configuration of the toy, by default of FedAvg and SimCLR; `settings` are overrides such as "rounds=3"."""
    method, objective = method or FedAvg(), objective or SimCLR()
    width = ["model.projection_dim=null"] * objective.fixed_head
    config = Config.load(TOY, *width, *settings)
    public = config.public or ("fraction:0.3" if method.needs_public else None)
    return config.model_copy(update={"method": method, "objective": objective, "public": public})


def check_method(method: Method, objective: Objective | None = None, *, settings: Sequence[str] = ()) -> None:
    """Check that a method obeys every law.

    Args:
        method: With hyperparameters that make it quick on 150 images.
        objective: What clients minimize; SimCLR by default.
        settings: Overrides of the toy, such as "clients.fraction=0.67".

    Raises:
        LawViolation: A law is broken; the message says which, and how.
    """
    config = toy_config(method, objective, settings)
    check_laws(Trial(config))
    check_device_laws(DeviceTrial(config))


def check_laws(trial: Trial) -> None:
    """Check every law of methods on a run of one's own, as `check_method` does on the toy."""
    _check(LAWS, trial)


def check_device_laws(trial: DeviceTrial) -> None:
    """Check every law of accelerators on a run of one's own.

    Raises:
        LawViolation: A law is broken; the message says which, and how.
    """
    _check(DEVICE_LAWS, trial)


def _check(laws: Mapping[str, Callable[[Runs], None]], trial: Runs) -> None:
    for name, law in laws.items():
        try:
            law(trial)
        except LawViolation as violation:
            raise LawViolation(f"{name.replace('_', ' ')}: {violation}") from violation


def check_objective(objective: Objective, *, settings: Sequence[str] = ()) -> None:
    """Check that an objective's steps obey their laws, and that FedAvg with it obeys every law.

    Raises:
        LawViolation: A law is broken; the message says which, and how.
    """
    check_steps(toy_config(objective=objective, settings=settings))
    check_method(FedAvg(), objective, settings=settings)


__all__ = [
    "DEVICE_LAWS",
    "LAWS",
    "DeviceTrial",
    "LawViolation",
    "Trial",
    "check_device_laws",
    "check_laws",
    "check_method",
    "check_objective",
    "toy_config",
]
