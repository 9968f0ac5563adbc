"""Faults on demand, to see a run survive them: which there are, and when they strike.

A fault is written KIND:KEY=VALUE,..., for example kill-actor:round=2,client=3. It strikes in the round that it names, as
often as it says and no oftener, however often what it strikes is repeated: the driver counts.
"""

import os
import signal
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rayfed_ssl.errors import ConfigError, nearest


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        optional: What may be said beside the round.
        survived: Whether a run comes to the same bits as without, and so `random` may draw it.
        local: Whether it can strike a run in one process.
    """

    optional: tuple[str, ...] = ()
    survived: bool = False
    local: bool = False


KINDS = {
    "kill-actor": Kind(("client", "times"), survived=True),
    "kill-server": Kind(("times",), survived=True),
    "lose-upload": Kind(("client", "times"), survived=True),
    "lose-state": Kind(("client",), survived=True),
    "full-store": Kind(("client", "times"), survived=True),
    "slow": Kind(("client", "seconds"), survived=True, local=True),
    "raise": Kind(("client",), local=True),
    "nan": Kind(("client",), local=True),
    "shape": Kind(("client",), local=True),
    "full-disk": Kind(("client",), local=True),
    "sigterm": Kind(local=True),
    "kill-driver": Kind(local=True),
    "kill-ray": Kind(),
}
"""What can be injected; `docs/faults.md` says what each one does."""

AT_HOME = frozenset(name for name, kind in KINDS.items() if kind.local)
"""What can strike a run in one process."""

_NUMBERS: dict[str, type[int] | type[float]] = {
    "round": int,
    "client": int,
    "times": int,
    "seconds": float,
    "rate": float,
    "seed": int,
}

_SMALLEST = {"round": 1, "times": 1}


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: Its name in `KINDS`.
        round: When, from 1.
        client: Whose step; None takes the lowest id of the cohort, and for full-disk the server.
        times: How often.
        seconds: How long a slow step sleeps.
        drawn: Whether it was drawn at random.
    """

    kind: str
    round: int
    client: int | None = None
    times: int = 1
    seconds: float = 1.0
    drawn: bool = False

    def __str__(self) -> str:
        said = {key: value for key, value in self.row().items() if key != "kind" and value is not None}
        said |= {"times": self.times} if self.times > 1 else {}
        return f"{self.kind}:" + ",".join(f"{key}={value:.12g}" for key, value in said.items())

    def row(self) -> dict[str, Any]:
        """Describe one stroke of it for the record."""
        lasts = {"seconds": self.seconds} if "seconds" in KINDS[self.kind].optional else {}
        return {"kind": self.kind, "round": self.round, "client": self.client, **lasts}


@dataclass(frozen=True)
class RandomFaults:
    """Faults that a run survives: in every round each kind strikes with a probability, one client of the cohort."""

    rate: float
    seed: int

    def draw(self, cohorts: Iterable[Sequence[int]]) -> list[Fault]:
        """Draw them for the rounds with these cohorts, round 1 first; they follow from the seed, round by round."""
        drawn = []
        for round, cohort in enumerate(cohorts, 1):
            rng = np.random.default_rng([self.seed, round])
            for name in (name for name, kind in KINDS.items() if kind.survived):
                strikes, client = rng.random() < self.rate, int(rng.choice(cohort))
                seconds = float(rng.uniform(0.1, 1.0))
                struck = client if "client" in KINDS[name].optional else None
                if strikes:
                    drawn.append(Fault(name, round, struck, seconds=seconds, drawn=True))
        return drawn


def parse_faults(texts: Iterable[str] | None) -> "list[Fault | RandomFaults]":
    """Read faults; none where there is nothing to read."""
    return [parse_fault(text) for text in texts or ()]


def parse_fault(text: str) -> Fault | RandomFaults:
    """Read one fault.

    Raises:
        ConfigError: It is not written as it should be; the message says how.
    """
    name, _, rest = text.partition(":")
    if name != "random" and name not in KINDS:
        raise ConfigError(f"--inject: unknown fault {name!r}{nearest(name, [*KINDS, 'random'])}")
    needed = ("rate",) if name == "random" else ("round",)
    known = (*needed, "seed") if name == "random" else (*needed, *KINDS[name].optional)
    values: dict[str, Any] = {}
    for part in rest.split(",") if rest else ():
        key, _, value = part.partition("=")
        if key not in known:
            raise ConfigError(f"--inject {text}: {name} has no {key!r}{nearest(key, known)}")
        if key in values:
            raise ConfigError(f"--inject {text}: {key} is there twice, write --inject once for each fault")
        values[key] = _number(text, key, value)
    for key in needed:
        if key not in values:
            raise ConfigError(
                f"--inject {text}: {key} is missing, write {name}:{key}=" + ("0.1" if key == "rate" else "2")
            )
    return RandomFaults(values["rate"], values.get("seed", 0)) if name == "random" else Fault(name, **values)


def _number(text: str, key: str, value: str) -> int | float:
    kind, smallest = _NUMBERS[key], _SMALLEST.get(key, 0)
    try:
        number = kind(value)
    except ValueError:
        number = -1
    if not smallest <= number < float("inf") or (key == "rate" and number > 1):
        what = "a whole number" if kind is int else "a number"
        limits = "from 0 to 1" if key == "rate" else f"of at least {smallest}"
        raise ConfigError(f"--inject {text}: {key} must be {what} {limits}, got {value!r}")
    return number


class Faults:
    """The faults of a run, each taken out when it strikes; without any it is empty, and nothing is asked of it.

    Args:
        wanted: What `parse_fault` gave.
        rounds: How many the run has.
        cohort: Who takes part in a round.
        possible: The kinds that can strike here.

    Attributes:
        tell: Is told of each fault just before it strikes.

    Raises:
        ConfigError: One of them can never strike.
    """

    def __init__(
        self,
        wanted: Iterable[Fault | RandomFaults],
        rounds: int,
        cohort: Callable[[int], Sequence[int]],
        possible: Collection[str] = AT_HOME,
    ) -> None:
        self.tell: Callable[[Fault], None] = lambda fault: None
        self._left: dict[int, list[Fault]] = {}
        for entry in wanted:
            if isinstance(entry, RandomFaults):
                cohorts = map(cohort, range(1, rounds + 1))
                drawn = [fault for fault in entry.draw(cohorts) if fault.kind in possible]
            else:
                drawn = [_fitting(entry, rounds, cohort, possible)]
            for fault in drawn:
                self._left.setdefault(fault.round, []).append(fault)

    def __bool__(self) -> bool:
        return bool(self._left)

    def take(self, kind: str, round: int, client: int | None = None) -> Fault | None:
        """Take a fault that strikes now, once."""
        for position, fault in enumerate(self._left.get(round, ())):
            if (fault.kind, fault.client) == (kind, client):
                self._left[round][position : position + 1] = (
                    [replace(fault, times=fault.times - 1)] if fault.times > 1 else []
                )
                struck = replace(fault, times=1)
                self.tell(struck)
                return struck
        return None

    def for_step(self, round: int, client: int) -> tuple[Fault, ...]:
        """Take what strikes a client's step now: whoever is to die does nothing else."""
        if not self.strikes(round, client):
            return ()
        if killing := self.take("kill-actor", round, client):
            return (killing,)
        kinds = ("slow", "raise", "nan", "shape", "full-disk", "full-store")
        return tuple(fault for kind in kinds if (fault := self.take(kind, round, client)))

    def for_server(self, round: int) -> tuple[Fault, ...]:
        """Take what strikes the server's step now."""
        if round not in self._left:
            return ()
        fault = self.take("kill-server", round) or self.take("full-disk", round)
        return () if fault is None else (fault,)

    def strikes(self, round: int, client: int) -> bool:
        """Whether a client has anything to fear in a round."""
        return any(fault.client == client for fault in self._left.get(round, ()))

    def strike_driver(self, round: int) -> None:
        """End this process by the signal that is due after a client of the round is done."""
        if round in self._left:
            for kind, number in (("sigterm", signal.SIGTERM), ("kill-driver", signal.SIGKILL)):
                if self.take(kind, round):
                    os.kill(os.getpid(), number)

    def left(self, round: int) -> list[Fault]:
        """List what was asked for by name up to a round and has not struck as often as it should."""
        return [fault for at, faults in self._left.items() for fault in faults if at <= round and not fault.drawn]


def _fitting(fault: Fault, rounds: int, cohort: Callable[[int], Sequence[int]], possible: Collection[str]) -> Fault:
    """Fill in the client, and refuse what can never strike."""
    if fault.kind not in possible:
        raise ConfigError(
            f"--inject {fault}: it cannot strike a run in one process, choose from {', '.join(sorted(possible))}"
        )
    if fault.round > rounds:
        raise ConfigError(f"--inject {fault}: the run has only {rounds} rounds")
    clients = cohort(fault.round)
    if fault.client is None and "client" in KINDS[fault.kind].optional and fault.kind != "full-disk":
        return replace(fault, client=clients[0])
    if fault.client is not None and fault.client not in clients:
        raise ConfigError(
            f"--inject {fault}: client {fault.client} takes no part in round {fault.round}, choose from "
            f"{', '.join(map(str, clients))}"
        )
    return fault
