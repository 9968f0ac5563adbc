"""The pieces of the measurement and their units; a unit runs in a process of its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from benchmarks.gpu import federated, steps
from benchmarks.gpu.setting import STEP_BATCHES, Outcome, Setting

Unit = Callable[[Setting, float], Outcome]
"""Measures in a setting; is told how many seconds are left."""


@dataclass(frozen=True)
class Piece:
    """Some units that belong together.

    Attributes:
        measures: One line for the list.
        units: By name.
        resumable: Whether its units end by themselves when time is up, and continue in the next call.
    """

    measures: str
    units: Mapping[str, Unit]
    resumable: bool = False


def _step(objective: str, batch: int, deterministic: bool) -> Unit:
    return lambda setting, seconds: steps.steps(setting, objective, batch, deterministic=deterministic)


def _hashes() -> dict[str, Unit]:
    units: dict[str, Unit] = {
        f"process-{name}": lambda setting, seconds, name=name: federated.hash_in_process(setting, name)
        for name in ("first", "second")
    }
    for actors in (1, 2, 4) if find_spec("ray") else ():
        units[f"ray-{actors}"] = lambda setting, seconds, actors=actors: federated.hash_on_ray(setting, actors)
    return units


def _cell(name: str) -> Unit:
    return lambda setting, seconds: federated.cell(setting, name, seconds)


PIECES = {
    "views": Piece("views a second, without a model", {"all": lambda setting, seconds: steps.views(setting)}),
    "steps": Piece(
        "pairs a second of SimCLR, BYOL and MoCo steps: three batch sizes, fp32 and bf16, eager and captured",
        {f"{name}-{batch}": _step(name, batch, True) for name in steps.OBJECTIVES for batch in STEP_BATCHES},
    ),
    "determinism": Piece(
        "SimCLR steps of batch 128 with engine.deterministic true and false",
        {name: _step("simclr", 128, name == "true") for name in ("true", "false")},
    ),
    "hashes": Piece(
        "state_sha256 of a small federated run in two processes, and with Ray on 1, 2 and 4 actors", _hashes()
    ),
    "kill": Piece(
        "state_sha256 after kill -9 and resume against that of a run left alone",
        {"resume": lambda setting, seconds: federated.hash_after_kill(setting)},
    ),
} | {
    name: Piece(f"{row} of {table}, {column}, in segments", {"cell": _cell(name)}, True)
    for name, (table, row, column) in federated.CELLS.items()
}
