"""BlazeFL's simulation in threads of one process; its users write sampling and averaging, here those of the plain loop."""

import threading
import time
from dataclasses import dataclass
from queue import SimpleQueue

import torch
from blazefl.core import BaseServerHandler, ThreadPoolClientTrainer

from benchmarks.peers.meter import Meter, main
from benchmarks.peers.work import Case, Work
from rayfed_ssl.aggregation.weighted_mean import WeightedMean
from rayfed_ssl.trees import Weights, frozen


@dataclass
class Sent:
    """What a client's step gives."""

    client: int
    weights: Weights
    seconds: float


class Server(BaseServerHandler[Sent, Weights]):  # type: ignore[misc]
    """Draws cohorts and averages as rayfed-ssl does."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.weights = work.initial
        self.round = 1

    def sample_clients(self) -> list[int]:
        """Draw the running round's cohort."""
        return list(self.work.cohort(self.round))

    def downlink_package(self) -> Weights:
        """Give what all clients receive."""
        return self.weights

    def if_stop(self) -> bool:
        """Whether all rounds are done."""
        return self.round > self.work.case.rounds

    def load(self, payload: Sent) -> bool:
        """Take one client's weights; they are averaged when all have come."""
        raise NotImplementedError("a round's weights are averaged together")

    def global_update(self, buffer: list[Sent]) -> None:
        """Average a round in ascending client id."""
        mean = WeightedMean()
        for sent in sorted(buffer, key=lambda sent: sent.client):
            mean.add(float(self.work.sizes[sent.client]), sent.weights)
        self.weights = mean.result()
        self.round += 1


class Clients(ThreadPoolClientTrainer[Sent, Weights]):  # type: ignore[misc]
    """Runs clients in threads, each with a model of its own at a time."""

    def __init__(self, case: Case, server: Server) -> None:
        self.num_parallels = case.actors
        self.device, self.device_count = "cpu", 0
        self.cache: list[Sent] = []
        self.stop_event = threading.Event()
        self.server = server
        self.states: dict[int, torch.Tensor] = {}
        self.works: SimpleQueue[Work] = SimpleQueue()
        for _ in range(case.actors):
            self.works.put(Work(case))

    def worker(self, cid: int, device: str, payload: Weights, stop_event: threading.Event) -> Sent:
        """Run one client's step."""
        work = self.works.get()
        begun = time.perf_counter()
        if size := round(work.case.state_megabytes * 1e6 / 4):
            self.states[cid] = self.states[cid] + 1 if cid in self.states else torch.zeros(size)
        update = work.update(payload, cid, self.server.round)
        update = frozen(update) if work.case.trains else update
        self.works.put(work)
        return Sent(cid, update, time.perf_counter() - begun)

    def uplink_package(self) -> list[Sent]:
        """Hand over what the round's clients sent."""
        sent, self.cache = self.cache, []
        return sent


def measure(case: Case, meter: Meter) -> None:
    """Run a case."""
    server = Server(Work(case))
    clients = Clients(case, server)
    while not server.if_stop():
        meter.start_round()
        cohort = server.sample_clients()
        meter.note_cohort(cohort)
        clients.local_process(server.downlink_package(), cohort)
        received = clients.uplink_package()
        for sent in received:
            meter.note_client(sent.seconds)
        server.global_update(received)
    meter.finish(server.weights)


if __name__ == "__main__":
    main("blazefl", measure)
