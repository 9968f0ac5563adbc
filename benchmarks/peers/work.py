"""The work that every system does: one federation, one model, one training step, and one way to measure them.

Every environment imports this module and `rayfed_ssl`, which needs no Ray, so clients, shards, cohorts, seeds and
arithmetic are the same whoever drives them.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

import psutil
import torch

from benchmarks.peers import extension
from rayfed_ssl.config import Config
from rayfed_ssl.data.shard import Shard
from rayfed_ssl.federation import Federation, training_seed
from rayfed_ssl.models import Model
from rayfed_ssl.seeds import generator
from rayfed_ssl.trees import Weights, digest


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measurement: what is federated, for how many rounds.

    Attributes:
        bench: "B1" and so on.
        name: Which of the bench's cases.
        data: Directory of CIFAR-10's Parquet files.
        clients: K.
        cohort: Clients in a round.
        samples: Images of all clients together.
        rounds: Rounds, with those that only warm up.
        warm: Rounds at the start that do not count.
        megabytes: Size of the model where clients do not train; 0 where they train SimCLR.
        state_megabytes: What each client remembers and changes in every round; only where clients do not train.
        noise: Whether clients that do not train return seeded noise instead of what they received.
        epochs: E_local of SimCLR.
        batch: Samples a step.
        sigma: Of the logarithm of the shards' sizes; 0 makes them equal.
        actors: Processes that run clients.
        seed: The run's seed.
        own_cohorts: Whether a system draws cohorts with a sampler of its own even if it would take rayfed-ssl's.
        kill: Round in which one of the processes that run clients is killed; 0 means never.
        directory: Where a system may keep what it writes; None makes a temporary one.
    """

    bench: str
    name: str
    data: str
    clients: int = 100
    cohort: int = 20
    samples: int = 6400
    rounds: int = 3
    warm: int = 1
    megabytes: float = 0.0
    state_megabytes: float = 0.0
    noise: bool = False
    epochs: int = 5
    batch: int = 32
    sigma: float = 0.0
    actors: int = 2
    seed: int = 0
    own_cohorts: bool = False
    kill: int = 0
    directory: str | None = None

    @property
    def trains(self) -> bool:
        """Whether clients train SimCLR."""
        return not self.megabytes

    def config(self) -> Config:
        """Say the same as a configuration of rayfed-ssl."""
        extension.register()
        method = "method=fedavg"
        if not self.trains:
            fields = f"megabytes: {self.megabytes}, state_megabytes: {self.state_megabytes}, noise: {self.noise}"
            method = f"method={{name: noop, {fields}}}"
        return Config.load(
            "fedsimclr",
            method,
            "data.name=parquet",
            f"data.path={self.data}",
            f"data.train_limit={self.samples}",
            "data.test_limit=200",
            f"partition={{name: dirichlet, alpha: {self.sigma}}}" if self.sigma else "partition={name: iid}",
            f"clients.number={self.clients}",
            f"clients.fraction={self.cohort / self.clients}",
            f"rounds={self.rounds}",
            f"training.epochs={self.epochs}",
            f"training.batch={self.batch}",
            f"seed={self.seed}",
            f"engine.actors={self.actors}",
            f"engine.cpus_per_actor={min(1.0, (os.cpu_count() or 1) / self.actors)}",
            "engine.device=cpu",
        )


class Work:
    """A case's federation and its clients' step, for systems other than rayfed-ssl."""

    def __init__(self, case: Case) -> None:
        torch.set_num_threads(1)
        self.case = case
        self.federation = Federation.open(case.config())
        self._model: Model | None = None

    @property
    def sizes(self) -> dict[int, int]:
        """Count each client's samples."""
        return {client: len(rows) for client, rows in self.federation.shards.items()}

    def cohort(self, round: int) -> tuple[int, ...]:
        """Name the clients of a round, as rayfed-ssl draws them."""
        return self.federation.cohort(round)

    @cached_property
    def initial(self) -> Weights:
        """The weights before round 1."""
        if self.case.trains:
            return self.federation.task.initial_weights()
        return extension.weights_of(self.case.megabytes)

    def model(self, weights: Weights) -> Model:
        """Load weights into the model that this process keeps."""
        if self._model is None:
            self._model = self.federation.task.model(weights)
        else:
            self._model.load_state_dict(weights)
        return self._model

    def fit(self, model: Model, client: int, round: int) -> None:
        """Take a client's training steps in place."""
        federation, task = self.federation, self.federation.task
        shard = Shard.of(federation.dataset.train.images, federation.shards[client], task.device)
        draws = generator(task.device, training_seed(federation.config, round, client))
        task.fit(model, shard, draws, round=round)

    def update(self, weights: Weights, client: int, round: int) -> Weights:
        """Run a client's step; the result may share memory with the model that this process keeps."""
        if not self.case.trains:
            return extension.noisy(weights, client, round) if self.case.noise else weights
        model = self.model(weights)
        self.fit(model, client, round)
        return {name: value.detach() for name, value in model.state_dict().items()}


SPARE = ("ray::IDLE", "default_worker.py")
"""What commands of Ray's workers say that wait for work, or are still starting to."""


def tree_of(pid: int | None = None) -> list[psutil.Process]:
    """List this process and all that it started."""
    me = psutil.Process(pid)
    return [me, *me.children(recursive=True)]


def core_seconds() -> dict[int, float]:
    """Read the CPU time of each process of this run, in seconds."""
    found = {}
    for process in tree_of():
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        found[process.pid] = times.user + times.system
    return found


def spent(before: dict[int, float], after: dict[int, float]) -> float:
    """Add up the CPU time between two readings; of processes that ended in between nothing is known."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


def memory() -> dict[str, float]:
    """Measure the memory of all processes of this run in MB, each page divided among those that share it.

    Spare workers that Ray keeps without work come and go, so they are left out.

    Returns:
        All of it, and that which is no file's: what other programs of the machine that map the same libraries do not change.
    """
    totals = {"pss_mb": 0.0, "data_mb": 0.0}
    for process in tree_of():
        try:
            spare = any(word in " ".join(process.cmdline()) for word in SPARE)
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        except (OSError, psutil.Error):
            continue
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:] if not spare}
        totals["pss_mb"] += kilobytes.get("Pss", 0) / 1000
        totals["data_mb"] += (kilobytes.get("Pss_Anon", 0) + kilobytes.get("Pss_Shmem", 0)) / 1000
    return totals


@dataclass
class Meter:
    """Measures one case in the process that drives it.

    Attributes:
        case: What is measured.
        system: Whose work it is.
        file: Where the result goes, as one line of JSON.
    """

    case: Case
    system: str
    file: TextIO
    _startup: float = 0.0
    _starts: list[float] = field(default_factory=list)
    _cpu: dict[int, float] = field(default_factory=dict)
    _result: dict[str, Any] = field(default_factory=dict)
    _cohorts: dict[int, list[int]] = field(default_factory=dict)
    _clients: list[float] = field(default_factory=list)
    _failed: dict[int, int] = field(default_factory=dict)
    _killed: list[dict[str, int]] = field(default_factory=list)

    def start_round(self) -> None:
        """Note that a round starts, and that the one before it has ended."""
        if not self._starts:
            self._startup = time.time() - psutil.Process().create_time()
        if len(self._starts) == self.case.warm:
            self._cpu = core_seconds()
        self._starts.append(time.perf_counter())
        print(f"round {len(self._starts)}", file=sys.stderr, flush=True)

    @property
    def round(self) -> int:
        """The running round, from 1."""
        return len(self._starts)

    def note_cohort(self, cohort: Iterable[int], failed: int = 0) -> None:
        """Note who took part in the running round, and how many of them failed."""
        self._cohorts[self.round] = sorted(cohort)
        self._failed[self.round] = failed

    def note_client(self, seconds: float) -> None:
        """Note how long a client's step took."""
        if self.round > self.case.warm:
            self._clients.append(seconds)

    def kill_one(self, name: str, after: float) -> None:
        """Kill, some seconds from now, one process of this run whose command holds a name, as a lack of memory would.

        Who died is written down at once, as the run may not come to its end.
        """

        def kill() -> None:
            time.sleep(after)
            for process in tree_of()[1:]:
                if self._result:
                    return  # the round was shorter than this, and so was the run
                with suppress(psutil.Error):
                    if name in " ".join(process.cmdline()):
                        process.kill()
                        self._killed.append({"pid": process.pid, "round": self.round})
                        self._write({"killed": self._killed})
                        return

        threading.Thread(target=kill, daemon=True).start()

    def finish(self, weights: Weights | None = None, **more: Any) -> None:
        """End the last round, measure memory and write the result."""
        ends = [*self._starts[1:], time.perf_counter()]
        seconds = [end - start for start, end in zip(self._starts, ends, strict=True)][self.case.warm :]
        cores = spent(self._cpu, core_seconds())
        self._result = {
            "system": self.system,
            "seconds": seconds,
            "startup": self._startup,
            "core_seconds": cores / max(len(seconds), 1),
            **memory(),
            "cohorts": list(self._cohorts.values()),
            "failed": list(self._failed.values()),
            "killed": self._killed,
            "clients": self._clients,
            "weights": None if weights is None else digest(dict(weights)),
            **more,
        }
        self._write(self._result)

    def _write(self, found: dict[str, Any]) -> None:
        self.file.write(json.dumps(found | {"case": asdict(self.case)}) + "\n")
        self.file.flush()


def split(cohort: Iterable[int], sizes: dict[int, int], parts: int) -> list[list[int]]:
    """Share clients out, the largest first to whoever has least, each share in ascending id."""
    shares: list[list[int]] = [[] for _ in range(parts)]
    for client in sorted(cohort, key=lambda client: (-sizes[client], client)):
        min(shares, key=lambda share: sum(sizes[other] for other in share)).append(client)
    return [sorted(share) for share in shares]


def read_cases() -> tuple[list[Case], TextIO]:
    """Read the cases that the first argument, a JSON file, lists, and open the second for results, line by line."""
    cases, out = (Path(argument) for argument in sys.argv[1:3])
    return [Case(**fields) for fields in json.loads(cases.read_text())], out.open("a")


def main(system: str, measure: Callable[[Case, Meter], None]) -> None:
    """Measure the cases that the arguments name one after the other."""
    cases, file = read_cases()
    with file:
        for case in cases:
            measure(case, Meter(case, system, file))
