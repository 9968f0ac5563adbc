"""pfl-research's simulation: one process where clients do not train, else two in its distributed mode (gloo)."""

import itertools
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peers.extension import noise
from benchmarks.peers.meter import Meter, main
from benchmarks.peers.work import Case, Work

RANK, ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"
"""How pfl's processes learn of each other; pfl reads them while it is imported."""


class Wrapped(nn.Module):
    """A module as pfl wants it: with a loss, which the step here does not use, and metrics."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        if work.case.trains:
            self.net: nn.Module = work.model(work.initial)
        else:
            self.net = nn.ParameterList([value.clone() for value in work.initial.values()])

    def loss(self, *data: Tensor) -> Tensor:
        """Never called: `train_one_user` trains."""
        raise NotImplementedError

    def metrics(self, *data: Tensor) -> dict[str, Any]:
        """Tell pfl nothing; it asks before round 1."""
        from pfl.metrics import Weighted

        return {"none": Weighted(0, 1)}


def measure(case: Case, meter: Meter) -> None:
    """Run a case."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.callback.restore_training import RestoreTrainingCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.data.user_state import InMemoryUserStateStorage
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    random.seed(case.seed)
    np.random.seed(case.seed)  # noqa: NPY002 (pfl draws from it)
    torch.manual_seed(case.seed)
    work, storage = Work(case), InMemoryUserStateStorage()
    wrapped = Wrapped(work)
    model = PyTorchModel(wrapped, torch.optim.SGD, torch.optim.SGD(wrapped.parameters(), 1.0))

    class Averaging(FederatedAveraging):  # type: ignore[misc]
        """FedAvg whose local training is the step of all systems."""

        def train_one_user(self, initial_model_state: Any, model: Any, user_dataset: Any, central_context: Any) -> Any:
            client, round = int(user_dataset.user_id), central_context.current_central_iteration + 1
            begun = time.perf_counter()
            if round == case.kill and len(seen) == 1 and os.environ.get(RANK) == "0":
                meter.kill_one("rank=1", 0.0)
            if case.trains:
                work.fit(wrapped.net, client, round)
            elif case.noise:
                with torch.no_grad():
                    for value, drawn in zip(
                        wrapped.net.parameters(), noise(wrapped.net.parameters(), client, round), strict=True
                    ):
                        value += drawn
            if case.state_megabytes:
                remember(case.state_megabytes, storage, user_dataset.user_id)
            seen.append((client, time.perf_counter() - begun))
            return model.get_model_difference(initial_model_state), Metrics()

    class Clock(TrainingProcessCallback):  # type: ignore[misc]
        """Notes where rounds begin and end."""

        def on_train_begin(self, *, model: Any) -> Any:
            meter.start_round()
            return Metrics()

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            everyone = everybody(seen)
            meter.note_cohort(client for client, _ in everyone)
            for _, seconds in everyone:
                meter.note_client(seconds)
            seen.clear()
            if central_iteration + 1 < case.rounds:
                meter.start_round()
            else:
                meter.finish({name: value.detach() for name, value in wrapped.state_dict().items()})
            return False, Metrics()

    seen: list[tuple[int, float]] = []
    sampler = get_user_sampler("random", sorted(work.sizes)) if case.own_cohorts else partial(next, cohorts(work))
    dataset = FederatedDataset(
        lambda client: Dataset([np.zeros((work.sizes[client], 1), np.float32)], user_id=str(client)),
        sampler,
        user_id_to_weight=work.sizes,
    )
    backend = SimulatedBackend(training_data=dataset, val_data=dataset, postprocessors=[WeightByDatapoints()])
    algorithm = Averaging()
    callbacks: list[Any] = (
        [] if case.directory is None else [RestoreTrainingCallback([model, algorithm], case.directory)]
    )
    algorithm.run(
        algorithm_params=NNAlgorithmParams(case.rounds, 10**9, case.cohort, 0),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(1, 0.1, None),
        model_eval_params=NNEvalHyperParams(None),
        callbacks=[*callbacks, Clock()],
        send_metrics_to_platform=False,
    )


def processes_of(fields: dict[str, Any]) -> int:
    """Take one process where clients do not train, which is faster there, and else as many as there are actors."""
    return 1 if fields.get("megabytes") and not fields.get("own_cohorts") else int(fields.get("actors", 2))


def cohorts(work: Work) -> Iterator[int]:
    """Draw clients one by one, as rayfed-ssl draws the rounds' cohorts."""
    for round in itertools.count(1):
        yield from work.cohort(round)


def everybody(seen: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Join the clients that each process trained, and their seconds."""
    if not torch.distributed.is_initialized():
        return list(seen)
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, seen)
    return [one for part in found for one in part]


def remember(megabytes: float, storage: Any, user: str) -> None:
    """Change what a client keeps in pfl's storage of users' states, which is its fastest: in memory."""
    from pfl.exception import UserNotFoundError

    try:
        memory = storage.load_state(user)["memory"] + 1
    except UserNotFoundError:
        memory = torch.zeros(round(megabytes * 1e6 / 4))
    storage.save_state({"memory": memory}, user)


def start_others(number: int) -> list[subprocess.Popen[bytes]]:
    """Start the other processes of pfl's distributed mode, and become its first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        first = probe.getsockname()[1]
    os.environ[ADDRESSES] = ",".join(f"127.0.0.1:{first + place}" for place in range(number))
    os.environ[RANK] = "0"
    command = [sys.executable, "-m", "benchmarks.peers.worker_pfl", sys.argv[1], os.devnull]
    return [
        subprocess.Popen([*command, f"rank={rank}"], env=os.environ | {RANK: str(rank)}) for rank in range(1, number)
    ]


if __name__ == "__main__":
    number = max(processes_of(fields) for fields in json.loads(Path(sys.argv[1]).read_text()))
    others = start_others(number) if RANK not in os.environ and number > 1 else []
    main("pfl", measure)
    sys.exit(max([other.wait() for other in others], default=0))
