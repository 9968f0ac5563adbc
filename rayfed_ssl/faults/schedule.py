"""Faults that --inject asks for: their kinds, and when they happen.

A fault is written KIND:KEY=VALUE,..., for example kill-actor:round=2,client=3. It happens `times` times at most,
however often the step is retried: the driver counts.
"""

import os
import signal
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass as pydantic_dataclass

from rayfed_ssl.config.strict import parse
from rayfed_ssl.engine.round_loop import Listener, Observer
from rayfed_ssl.errors import ConfigError, nearest
from rayfed_ssl.validation import UnitInterval


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault.

    Attributes:
        optional: Keys beside the round.
        survived: Whether the run gives the same bits as without, so that `random` may draw it.
        local: Whether it can happen in a run in one process.
    """

    optional: tuple[str, ...] = ()
    survived: bool = False
    local: bool = False


FAULT_KINDS = {
    "kill-actor": FaultKind(("client", "times"), survived=True),
    "kill-server": FaultKind(("times",), survived=True),
    "lose-upload": FaultKind(("client", "times"), survived=True),
    "full-store": FaultKind(("client", "times"), survived=True),
    "slow": FaultKind(("client", "seconds"), survived=True, local=True),
    "raise": FaultKind(("client",), local=True),
    "nan": FaultKind(("client",), local=True),
    "shape": FaultKind(("client",), local=True),
    "full-disk": FaultKind(("client",), local=True),
    "sigterm": FaultKind(local=True),
    "kill-driver": FaultKind(local=True),
    "kill-ray": FaultKind(),
}
"""What can be injected; see `docs/faults.md`."""

LOCAL_KINDS = frozenset(name for name, kind in FAULT_KINDS.items() if kind.local)  # of runs in one process


@pydantic_dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        client: None takes the lowest id of the cohort, and for full-disk the server.
        seconds: Duration of a slow step.
        drawn: Whether it was drawn at random.
    """

    kind: str
    round: PositiveInt
    client: NonNegativeInt | None = None
    times: PositiveInt = 1
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    drawn: bool = False

    def __str__(self) -> str:
        values = {key: value for key, value in self.row().items() if key != "kind" and value is not None}
        values |= {"times": self.times} if self.times > 1 else {}
        return f"{self.kind}:" + ",".join(f"{key}={value:.12g}" for key, value in values.items())

    def row(self) -> dict[str, Any]:
        """Describe one occurrence for the record."""
        lasts = {"seconds": self.seconds} if "seconds" in FAULT_KINDS[self.kind].optional else {}
        return {"kind": self.kind, "round": self.round, "client": self.client, **lasts}


@pydantic_dataclass(frozen=True)
class RandomFaults:
    """Faults that a run survives: in every round each kind happens with a probability, to one client of the cohort."""

    rate: UnitInterval
    seed: NonNegativeInt = 0

    def draw(self, cohorts: Iterable[Sequence[int]]) -> list[Fault]:
        """Draw them for the cohorts of rounds 1, 2, ..."""
        drawn = []
        for round, cohort in enumerate(cohorts, 1):
            rng = np.random.default_rng([self.seed, round])
            for name in (name for name, kind in FAULT_KINDS.items() if kind.survived):
                happens, client = rng.random() < self.rate, int(rng.choice(cohort))
                seconds = float(rng.uniform(0.1, 1.0))
                injected = client if "client" in FAULT_KINDS[name].optional else None
                if happens:
                    drawn.append(Fault(name, round, injected, seconds=seconds, drawn=True))
        return drawn


def parse_faults(texts: Iterable[str] | None) -> "list[Fault | RandomFaults]":
    """Read the values of --inject."""
    return [parse_fault(text) for text in texts or ()]


def parse_fault(text: str) -> Fault | RandomFaults:
    """Read one fault."""
    name, _, rest = text.partition(":")
    if name != "random" and name not in FAULT_KINDS:
        raise ConfigError(f"--inject: unknown fault {name!r}{nearest(name, [*FAULT_KINDS, 'random'])}")
    needed, optional = ("rate", ("seed",)) if name == "random" else ("round", FAULT_KINDS[name].optional)
    values: dict[str, str] = {}
    for part in rest.split(",") if rest else ():
        key, _, value = part.partition("=")
        if key not in (needed, *optional):
            raise ConfigError(f"--inject {text}: {name} has no {key!r}{nearest(key, (needed, *optional))}")
        if key in values:
            raise ConfigError(f"--inject {text}: {key} is there twice, write --inject once for each fault")
        values[key] = value
    if needed not in values:
        example = "0.1" if name == "random" else "2"
        raise ConfigError(f"--inject {text}: {needed} is missing, write {name}:{needed}={example}")
    if name == "random":
        return parse(RandomFaults, values, f"--inject {text}")
    return parse(Fault, {"kind": name, **values}, f"--inject {text}")


class Faults:
    """The faults of a run, each removed when it happens; the listener is told just before."""

    def __init__(
        self,
        wanted: Iterable[Fault | RandomFaults],
        rounds: int,
        cohort: Callable[[int], Sequence[int]],
        possible: Collection[str] = LOCAL_KINDS,
    ) -> None:
        self.listener = Listener(Observer())
        self._due: dict[int, list[Fault]] = {}
        for entry in wanted:
            if isinstance(entry, RandomFaults):
                cohorts = map(cohort, range(1, rounds + 1))
                drawn = [fault for fault in entry.draw(cohorts) if fault.kind in possible]
            else:
                drawn = [_fitting(entry, rounds, cohort, possible)]
            for fault in drawn:
                self._due.setdefault(fault.round, []).append(fault)

    def take(self, kind: str, round: int, client: int | None = None) -> Fault | None:
        """Take a fault that is due now, once."""
        for position, fault in enumerate(self._due.get(round, ())):
            if (fault.kind, fault.client) == (kind, client):
                self._due[round][position : position + 1] = (
                    [replace(fault, times=fault.times - 1)] if fault.times > 1 else []
                )
                injected = replace(fault, times=1)
                self.listener.on_fault(str(injected), injected.row())
                return injected
        return None

    def for_step(self, round: int, client: int) -> tuple[Fault, ...]:
        """Take what is due in a client's step; a killed actor does nothing else."""
        if not self.affects(round, client):
            return ()
        if killing := self.take("kill-actor", round, client):
            return (killing,)
        kinds = ("slow", "raise", "nan", "shape", "full-disk", "full-store")
        return tuple(fault for kind in kinds if (fault := self.take(kind, round, client)))

    def for_server(self, round: int) -> tuple[Fault, ...]:
        """Take what is due in the server's step."""
        if round not in self._due:
            return ()
        fault = self.take("kill-server", round) or self.take("full-disk", round)
        return () if fault is None else (fault,)

    def affects(self, round: int, client: int) -> bool:
        """Whether a fault is due for a client in a round."""
        return any(fault.client == client for fault in self._due.get(round, ()))

    def signal_driver(self, round: int) -> None:
        """End this process by the signal that is due after a client of the round is done."""
        if round in self._due:
            for kind, number in (("sigterm", signal.SIGTERM), ("kill-driver", signal.SIGKILL)):
                if self.take(kind, round):
                    os.kill(os.getpid(), number)

    def warn_of_missed(self, round: int) -> None:
        """Warn of what was asked for by name up to a round that is done, and has not happened as often as asked."""
        for done in [number for number in self._due if number <= round]:
            for fault in self._due.pop(done):
                if not fault.drawn:
                    self.listener.on_warning(f"--inject {fault} did not happen: nothing matched it in that round")


def _fitting(fault: Fault, rounds: int, cohort: Callable[[int], Sequence[int]], possible: Collection[str]) -> Fault:
    """Fill in the client, and refuse what can never happen."""
    if fault.kind not in possible:
        raise ConfigError(
            f"--inject {fault}: it needs engine.executor=ray; in one process choose from {', '.join(sorted(possible))}"
        )
    if fault.round > rounds:
        raise ConfigError(f"--inject {fault}: the run has only {rounds} rounds")
    clients = cohort(fault.round)
    if fault.client is None and "client" in FAULT_KINDS[fault.kind].optional and fault.kind != "full-disk":
        return replace(fault, client=clients[0])
    if fault.client is not None and fault.client not in clients:
        raise ConfigError(
            f"--inject {fault}: client {fault.client} takes no part in round {fault.round}, choose from "
            f"{', '.join(map(str, clients))}"
        )
    return fault
