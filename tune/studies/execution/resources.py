"""What a trial reserves on the machines, computed before it starts, so that it gets all of it together or is refused."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.cluster.machine import Node
from actors.errors import ClusterError
from actors.placement.actor_cost import ActorCost
from actors.placement.plan import plan
from rayfed_ssl.capacity.client_cost import step_cost
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError

MEMORY_STEP = 1 << 29
"""Bytes in whose multiples memory is reserved: a process serves the next trial only if that reserves the same."""

Bundle = dict[str, float]

Bundles = list[Bundle]
"""Resources of a placement group: the trial's own process first, then its client actors."""


@dataclass
class TrialResources:
    """Reserves resources of machines for trials; `shared` is a directory for what servers of several trials start from."""

    nodes: Sequence[Node]
    shared: Path | None = None

    def placed(self, config: Config) -> tuple[Config, Bundles]:
        """Say what a trial reserves, and its configuration with the number of actors that fit."""
        if self.shared is not None and config.engine.shared is None:
            config = config.model_copy(update={"engine": config.engine.model_copy(update={"shared": self.shared})})
        federation = Federation.open(config)
        federation.check_ready()
        try:
            if config.engine.executor == "ray":
                return self._actors(federation)
            return config, self._process(federation)
        except ClusterError as error:
            raise ConfigError(str(error)) from None

    def _actors(self, federation: Federation) -> tuple[Config, Bundles]:
        """Reserve each client actor; the trial's own process takes no core."""
        placement = plan(federation, self.nodes)
        if not placement.cpus and not placement.gpus:
            raise ConfigError("engine.cpus_per_actor=0 reserves nothing for a trial's actors: set a part of a core")
        engine = federation.config.engine.model_copy(update={"actors": placement.num_actors})
        each = {"CPU": placement.cpus} | ({"GPU": placement.gpus} if placement.gpus else {})
        each |= {"memory": float(placement.memory)} if placement.memory else {}
        config = federation.config.model_copy(update={"engine": engine})
        return config, [{}, *(dict(each) for _ in range(placement.num_actors))]

    def _process(self, federation: Federation) -> Bundles:
        """Reserve one process: its compute threads, its memory, and a GPU or a part of one."""
        engine = federation.config.engine
        cpus = max(engine.threads, engine.server_threads)
        on_gpu = federation.task.device.type == "cuda" or engine.device.startswith("cuda")
        gpus = (1.0 if engine.gpus_per_actor is None else engine.gpus_per_actor) if on_gpu else 0.0
        cost = ActorCost.of(step_cost(federation, "cuda" if on_gpu else "cpu"))
        self._refuse("cores", cpus, max(node.cpus for node in self.nodes), "engine.threads and engine.server_threads")
        self._refuse("GPUs", gpus, max(node.gpus for node in self.nodes), "engine.gpus_per_actor")
        fitting = [node for node in self.nodes if node.cpus >= cpus and node.gpus >= gpus]
        if not fitting:
            raise ConfigError(
                f"no machine has both the {cpus:g} cores and the {gpus:g} GPUs that a trial takes: lower one"
            )
        largest = max(node.memory for node in fitting)
        if largest and cost.is_measured:
            self._refuse("GB of memory", cost.memory / 1e9, largest / 1e9, "training.batch")
        memory = min(-(-cost.memory // MEMORY_STEP) * MEMORY_STEP, largest)  # an estimate refuses nothing
        bundle: dict[str, Any] = {"CPU": float(cpus)} | ({"GPU": gpus} if gpus else {})
        return [bundle | ({"memory": float(memory)} if largest else {})]

    @staticmethod
    def _refuse(what: str, asked: float, largest: float, key: str) -> None:
        if asked > largest:
            raise ConfigError(f"a trial takes {asked:g} {what}, and no machine has more than {largest:g}: lower {key}")
