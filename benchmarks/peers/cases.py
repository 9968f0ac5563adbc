"""What is measured: the cases of each bench, and which systems run them."""

from collections.abc import Mapping, Sequence
from typing import Any

SYSTEMS = ("plain", "ray", "pfl", "blazefl", "flower", "rayfed-ssl")
"""In the order in which they take turns."""

WORKERS: Mapping[str, tuple[str, str]] = {
    "plain": ("ours", "worker_plain"),
    "ray": ("ours", "worker_ray"),
    "pfl": ("pfl", "worker_pfl"),
    "blazefl": ("blazefl", "worker_blazefl"),
    "flower": ("flower", "worker_flower"),
    "rayfed-ssl": ("ours", "worker_ours"),
}
"""Each system's environment and module."""

FEDERATED = ("pfl", "flower", "rayfed-ssl")

BENCHES: Mapping[str, str] = {
    "B1": "overhead: 20 of 100 clients that return what they received",
    "B2": "SimCLR: 20 of 100 clients, 64 photographs each, 5 epochs of batch 32",
    "B3": "private state: 20 clients that change all that they remember in every round",
    "B4": "scale: 20 of 100 and of 1,000 clients that return 1 MB",
    "B5": "makespan: 24 clients with shards of log-normal sizes (sigma 1), SimCLR",
    "B6": "one process that runs clients is killed in round 2 of 4",
    "B7": "one seed: five runs with 2, 2, 2, 1 and 4 actors",
    "B8": "Ray cannot start",
    "B9": "the run is killed after round 2 of 5, then started again",
}

Fields = dict[str, Any]


def timed(data: str) -> list[Fields]:
    """List the cases of B1 to B5 that share a process per system: those of equal numbers of clients side by side."""
    one = [_case(data, "B1", f"{size:g} MB", megabytes=size, rounds=6, warm=3) for size in (1.0, 10.0, 45.0)]
    two = [_case(data, "B2", "SimCLR")]
    three = [
        _case(data, "B3", f"{size} MB", megabytes=1.0, clients=20, state_megabytes=float(size), rounds=9, warm=6)
        for size in (0, 20, 60)
    ]
    five = [_case(data, "B5", "log-normal", clients=24, cohort=24, samples=1536, sigma=1.0)]
    return one + two + three + five


def scale(data: str) -> list[Fields]:
    """List the cases of B4, each in a process of its own, so that memory can be compared."""
    return [
        _case(data, "B4", f"{clients} clients", megabytes=1.0, clients=clients, samples=20_000, rounds=8, warm=3)
        for clients in (100, 1000)
    ]


def killed(data: str) -> list[Fields]:
    """List the cases of B6: the same run undisturbed and with a death."""
    same: Fields = {"clients": 20, "cohort": 20, "samples": 1280, "rounds": 4, "warm": 0}
    return [_case(data, "B6", name, **same, kill=round) for name, round in (("undisturbed", 0), ("killed", 2))]


def seeded(data: str) -> list[Fields]:
    """List the runs of B7."""
    same: Fields = {"megabytes": 1.0, "noise": True, "rounds": 2, "warm": 0, "own_cohorts": True}
    return [
        _case(data, "B7", f"run {number}, {actors} actors", **same, actors=actors)
        for number, actors in enumerate((2, 2, 2, 1, 4), 1)
    ]


def without_ray(data: str) -> Fields:
    """Name the run of B8."""
    return _case(data, "B8", "no Ray", megabytes=1.0)


def resumed(data: str) -> Fields:
    """Name the run of B9."""
    return _case(data, "B9", "resumed", samples=3200, epochs=2, rounds=5, warm=0, own_cohorts=True)


def _case(data: str, bench: str, name: str, **fields: Any) -> Fields:
    return {"bench": bench, "name": name, "data": data, **fields}


def systems_of(bench: str) -> Sequence[str]:
    """Name the systems that a bench compares."""
    if bench == "B8":
        return ("flower", "rayfed-ssl")
    if bench in ("B4", "B7"):
        return ("blazefl", *FEDERATED)  # it has neither processes that may die nor a run to resume
    return SYSTEMS if bench in ("B1", "B2", "B3", "B5") else FEDERATED
