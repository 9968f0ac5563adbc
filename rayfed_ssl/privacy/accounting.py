"""What a run spends of its privacy budget, by Google's dp-accounting, and the method around a method that counts it.

Symbols: sigma standard deviation of noise over sensitivity; alpha order of Rényi differential privacy (RDP); K clients, m
of them in a round; epsilon at delta.

Neighbors are two federations that differ in all data of one client (client level) or in one sample (sample level), which is
replaced by another: neither the number of clients nor that of samples is hidden. So a sum of vectors of norm C moves by at
most 2 C, and noise of z C has sigma = z / 2. A cost is 1 / sigma^2: that of several releases to which one client contributes
is their sum, as RDP at alpha is alpha / (2 sigma^2).

Where the server uses nothing but sums over the cohort, it stays secret who was drawn, without replacement, which makes a
round cheaper. What is sent under a client's name hides no cohort: then the client that took part most often counts.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

from rayfed_ssl.method import Client, Encoder, Metrics, Server, Task
from rayfed_ssl.privacy.wrapper import Wrapper

Costs = dict[int, float]
"""Costs by round, where the cohort is secret, or else by client."""


@dataclass(frozen=True)
class ServerState:
    """The inner method's state, what was spent, and C of each field where it follows a quantile."""

    inner: Any
    costs: Costs
    clips: dict[str, float]


def epsilon(costs: Costs, delta: float, sampled: tuple[int, int] | None = None) -> float:
    """Compute epsilon at delta of Gaussian mechanisms, by RDP.

    Args:
        costs: 1 / sigma^2 by round, where cohorts are sampled, or by client.
        delta: Above 0.
        sampled: m and K, of cohorts that are drawn without replacement and stay secret.
    """
    from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
    from dp_accounting.rdp import RdpAccountant

    def spent(costs: Iterable[float], sampled: tuple[int, int] | None) -> float:
        accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
        for cost, count in Counter(costs).items():
            event = GaussianDpEvent(cost**-0.5)
            if sampled is not None:
                event = SampledWithoutReplacementDpEvent(sampled[1], sampled[0], event)
            accountant.compose(event, count)
        return float(accountant.get_epsilon(delta))

    if sampled is None:
        return spent([max(costs.values())], None) if costs else 0.0
    # The bound for samples exceeds that for all clients where most of them are drawn.
    return min(spent(costs.values(), sampled), spent([sum(costs.values())] * bool(costs), None))


@dataclass(frozen=True, kw_only=True)
class Accounted(Wrapper):
    """A method around another one, of which it counts what each round costs.

    Attributes:
        method: The inner method, of which everything else comes.
        noise: z; without noise nothing is private, and nothing is counted.
        delta: At which epsilon is given.
    """

    secure_sum: ClassVar = False  # what a round costs follows from how many uploads arrive
    noise: float
    delta: float

    @abstractmethod
    def cost(self, num_arrived: int, task: Task) -> float:
        """Compute 1 / sigma^2 of a round, of whose cohort so many uploads arrived."""

    @abstractmethod
    def hides_cohort(self, task: Task) -> bool:
        """Whether it stays secret who takes part in a round, and not everybody does."""

    def spend(self, costs: Costs, round: int, client_ids: Sequence[int], task: Task) -> Costs:
        """Add the cost of a round in which the uploads of some clients arrived."""
        cost = self.cost(len(client_ids), task)
        where = [round] if self.hides_cohort(task) else client_ids
        return costs | {key: costs.get(key, 0.0) + cost for key in where}

    def epsilon(self, costs: Costs, task: Task) -> float:
        """Compute epsilon of costs."""
        sampled = (task.cohort_size, task.num_clients) if self.hides_cohort(task) else None
        return epsilon(costs, self.delta, sampled)

    def planned_epsilon(self, cohorts: Iterable[Sequence[int]], task: Task) -> float | None:
        """Compute epsilon of a whole run in which nobody drops out; None without noise."""
        if not self.noise:
            return None
        costs: Costs = {}
        for round, cohort in enumerate(cohorts, 1):
            costs = self.spend(costs, round, cohort, task)
        return self.epsilon(costs, task)

    def noise_warning(self, task: Task) -> str | None:
        """Say that noise exceeds what it hides, where that is known before the run."""
        return None

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse a run whose budget nobody could count; say what the noise is."""
        if self.noise and find_spec("dp_accounting") is None:
            raise ValueError(
                "privacy.noise needs dp-accounting, which is not installed: pip install 'rayfed-ssl[privacy]'"
            )
        note = "privacy.noise=0 bounds what clients send and hides nothing"
        if self.noise:
            note = "noise that follows from a seed simulates privacy: a deployment draws it where nobody can repeat it"
        return (*self.method.check(task, num_public), note)

    def init_server(self, server: Server) -> ServerState:
        """Start as the inner method does, with nothing spent."""
        return ServerState(self.method.init_server(server), {}, {})

    def download(self, state: ServerState, client_id: int) -> Any:
        """Send what the inner method sends."""
        return self.method.download(state.inner, client_id)

    def update_client(self, download: Any, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        """Train as the inner method does."""
        return self.method.update_client(download, state, client)

    def update_server(
        self, state: ServerState, uploads: Mapping[int, Any], server: Server
    ) -> tuple[ServerState, Metrics]:
        """Aggregate as the inner method does, and count what it cost; reports epsilon so far."""
        inner, metrics = self.method.update_server(state.inner, uploads, server)
        if not self.noise:
            return ServerState(inner, {}, state.clips), metrics
        costs = self.spend(state.costs, server.round, tuple(uploads), server.task)
        return ServerState(inner, costs, state.clips), metrics | {"epsilon": self.epsilon(costs, server.task)}

    def encoders(self, state: ServerState, clients: Mapping[int, Any]) -> dict[str, Encoder]:
        """The inner method's encoders."""
        return self.method.encoders(state.inner, clients)
