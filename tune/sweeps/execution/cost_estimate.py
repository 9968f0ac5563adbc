"""What a sweep would take, reckoned from one measured step of each kind of client."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import typer

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.client_cost import StepCost, largest_client, measure_apart, recorded
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.ledger import total
from rayfed_ssl.errors import ConfigError
from tune.sweeps.definition.spaces import Range
from tune.sweeps.definition.sweep import Sweep
from tune.sweeps.results.trial_results import named

SENT = ("keep",)
"""Fractions that decide how much a client sends. Other fractions, rates and temperatures change neither time nor bytes, and
are measured once for all their values, but apart for 0, which switches things off."""


@dataclass(frozen=True)
class Size:
    """What of a run the reckoning needs.

    Attributes:
        samples: That the clients of a round train on together, on average.
        largest: Of the largest client.
        clients: In a round.
        public: Bytes of public samples that all clients receive before round 1.
        device: Where its clients compute.
    """

    samples: float
    largest: int
    clients: int
    public: int
    device: str

    @classmethod
    def of(cls, federation: Federation) -> "Size":
        """Look at an opened federation."""
        clients = len(federation.cohort(1))
        samples = sum(len(rows) for rows in federation.shards.values()) * clients / len(federation.client_ids)
        public = total(federation.public_entries())
        return cls(samples, largest_client(federation)[1], clients, public, federation.task.device.type)


@dataclass
class Kind:
    """Runs whose clients take steps of one kind.

    Attributes:
        name: For people.
        config: The run that is measured for all of them.
        cost: What was measured.
        runs: Names of the runs.
        at_once: Runs that fit on the machine together.
        seconds: Of client training, of all runs together, one after the other.
        up: Bytes.
        down: Bytes.
    """

    name: str
    config: Config
    cost: StepCost
    runs: list[str] = field(default_factory=list)
    at_once: int = 1
    seconds: float = 0.0
    up: int = 0
    down: int = 0


@dataclass
class Reckoning:
    """What a sweep would take.

    Attributes:
        sweep: Which.
        trials: How many; of a search that has not begun the points are stand-ins.
        runs: How many, equal ones counted once.
        rounds: Of all runs; an upper bound where the sweep adapts.
        kinds: The steps that were measured.
        impossible: Reasons by trial.
        hours: Of client training, with as many runs side by side as fit.
    """

    sweep: Sweep
    trials: int
    runs: int
    rounds: int
    kinds: list[Kind]
    impossible: dict[str, str]
    hours: float

    @property
    def up(self) -> int:
        """Bytes that clients send."""
        return sum(kind.up for kind in self.kinds)

    @property
    def down(self) -> int:
        """Bytes that clients receive."""
        return sum(kind.down for kind in self.kinds)


def reckon(sweep: Sweep, concurrency: int | None = None) -> Reckoning:
    """Work out what a sweep would take on this machine, measuring where nothing is on record.

    Args:
        sweep: Which.
        concurrency: Trials at a time at most.

    Raises:
        ConfigError: No trial can be run.
    """
    from actors.cluster.machine import this_machine
    from tune.sweeps.execution.resources import Room
    from tune.sweeps.search.search import Search

    room, sizes = Room([this_machine()]), dict[str, Size]()

    # What a search would choose depends on results: points at random stand in for it.
    blind = sweep if sweep.search == "grid" else replace(sweep, search="random", sampler={})
    search = Search(replace(blind, stop=None))
    while search.next() is not None:
        pass
    impossible = {f"trial {one.number} ({named(one.point)})": one.reason for one in search.trials if one.reason}
    runs: dict[str, Config] = {}
    for trial in search.trials:
        for seed, config in trial.runs.items():
            try:
                room.check(config)
            except ConfigError as error:
                impossible.setdefault(
                    f"trial {trial.number} ({named(trial.point)})", "; ".join(str(error).splitlines())
                )
                continue
            runs[trial.names[seed]] = config
            sizes[trial.names[seed]] = Size.of(Federation.open(config))
    if not runs:
        raise ConfigError(f"no trial of {sweep.name} can be run: {next(iter(impossible.values()))}")
    kinds = _measured(sweep, runs, sizes)
    hours = 0.0
    fresh = Room([this_machine()])  # with what has been measured
    for kind in kinds.values():
        bundles = fresh.placed(kind.config)[1]
        kind.at_once = min(max(1, fresh.at_once(bundles)), concurrency or len(runs), len(runs))
        hours += kind.seconds / max(1, len(bundles) - 1) / kind.at_once / 3600
    rounds = sum(config.rounds for config in runs.values())
    return Reckoning(sweep, len(search.trials), len(runs), rounds, list(kinds.values()), impossible, hours)


def _measured(sweep: Sweep, runs: Mapping[str, Config], sizes: Mapping[str, Size]) -> dict[str, Kind]:
    """Measure a step of each kind, and add up what the runs of that kind take."""
    kinds: dict[str, Kind] = {}
    chosen = {one.name for one in sweep.space.free if isinstance(one, Range)}
    for name, config in runs.items():
        key = _kind(config, chosen)
        if key not in kinds:
            kinds[key] = Kind(_described(config), config, _cost(config, sizes[name].device))
        _add(kinds[key], name, config, sizes[name])
    return kinds


def _kind(config: Config, chosen: set[str]) -> str:
    """Write down all settings that a client's time and bytes depend on, so far as they can be told without running it."""
    tree = config.dump()
    kept = {key: tree[key] for key in ("data", "clients", "model", "public")}
    kept |= {key: _coarse(tree[key], f"{key}.", chosen) for key in ("method", "objective")}
    kept |= {key: tree["training"][key] for key in ("batch", "drop_last", "views")}
    kept |= {key: tree["engine"][key] for key in ("executor", "device", "precision", "threads")}
    return json.dumps(kept, sort_keys=True)


def _coarse(tree: Mapping[str, Any], parent: str, chosen: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found[name] = _coarse(value, f"{parent}{name}.", chosen)
        elif parent + name not in chosen:
            found[name] = bool(value) if isinstance(value, float) and name not in SENT else value
    return found


def _described(config: Config) -> str:
    tree = config.dump()
    method, names, base = tree["method"], list[str](), tree["method"]
    while isinstance(base, Mapping):
        names.append(base["name"])
        base = base.get("base")
    sent = [str(method[key]) for key in ("upload", "upload_format") if key in method]
    sent += [f"{method[key]:.0%}" for key in SENT if method.get(key, 1.0) < 1]
    system = f"{'-'.join(names)} with {tree['objective']['name']}"
    return ", ".join([system, config.model.encoder, f"batch {config.training.batch}", *sent])


def _cost(config: Config, device: str) -> StepCost:
    """Find what was measured of such a step, or measure it."""
    cost = recorded(Federation.open(config), device)
    if cost is None or cost.up is None or cost.seconds is None:
        typer.echo(f"measuring two local epochs of the largest client: {_described(config)}", err=True)
        cost = measure_apart(config)
    return cost


def _add(kind: Kind, name: str, config: Config, size: Size) -> None:
    assert kind.cost.seconds is not None
    assert kind.cost.up is not None
    assert kind.cost.down is not None
    kind.runs.append(name)
    kind.seconds += config.rounds * config.epochs * size.samples / size.largest * kind.cost.seconds
    kind.up += config.rounds * size.clients * kind.cost.up
    kind.down += config.rounds * size.clients * kind.cost.down + size.public
