"""Actors that `--inject kill-actor:round=2,client=3` kills, to see that a run survives it."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError


@dataclass(frozen=True)
class Kill:
    """The death of an actor by SIGKILL when a client's step is done and its state written, but nobody knows of it.

    Attributes:
        client: None takes the lowest id of the round's cohort.
        times: How often the step's actor dies, however often the step is tried.
    """

    round: int
    client: int | None = None
    times: int = 1

    def __str__(self) -> str:
        client = "" if self.client is None else f",client={self.client}"
        return f"kill-actor:round={self.round}{client}" + f",times={self.times}" * (self.times > 1)


def parse_kills(texts: Iterable[str] | None) -> list[Kill]:
    """Read the values of --inject."""
    return [parse_kill(text) for text in texts or ()]


def parse_kill(text: str) -> Kill:
    """Read one value of --inject."""
    match = re.fullmatch(r"kill-actor:round=([1-9]\d*)(?:,client=(\d+))?(?:,times=([1-9]\d*))?", text, re.ASCII)
    if match is None:
        raise ConfigError(f"--inject {text}: write kill-actor:round=N[,client=K][,times=N]")
    round, client, times = match.groups()
    return Kill(int(round), None if client is None else int(client), int(times or 1))


def due_kills(kills: Iterable[Kill], federation: Federation) -> Counter[tuple[int, int]]:
    """Count deaths by round and client; ConfigError for one that can never happen."""
    due = Counter[tuple[int, int]]()
    for kill in kills:
        if kill.round > federation.config.rounds:
            raise ConfigError(f"--inject {kill}: the run has only {federation.config.rounds} rounds")
        cohort = federation.cohort(kill.round)
        client = cohort[0] if kill.client is None else kill.client
        if client not in cohort:
            raise ConfigError(
                f"--inject {kill}: client {client} takes no part in round {kill.round}, choose from "
                f"{', '.join(map(str, cohort))}"
            )
        due[kill.round, client] += kill.times
    return due
