"""The client side of Flower's app, in a module of its own so that Ray's actors import it once instead of unpickling it."""

import time
from functools import cache

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.peers.work import Case, Work

app = ClientApp()


@cache
def work_of(fields: tuple[tuple[str, object], ...]) -> Work:
    """Open the federation once per process."""
    return Work(Case(**dict(fields)))  # type: ignore[arg-type]


def case_of(config: ConfigRecord) -> tuple[tuple[str, object], ...]:
    """Read the case that the server sends as a train configuration; what is missing is None."""
    return tuple(sorted((key, value) for key, value in config.items() if key != "server-round"))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Run a client's step."""
    config = message.content["config"]
    work, round = work_of(case_of(config)), int(config["server-round"])
    client = int(context.node_config["partition-id"])
    begun = time.perf_counter()
    remember(work.case, context)
    arrays = message.content["arrays"]
    if work.case.trains or work.case.noise:
        arrays = ArrayRecord(work.update(arrays.to_torch_state_dict(), client, round))
    seconds = time.perf_counter() - begun
    metrics = MetricRecord({"num-examples": work.sizes[client], "seconds": seconds, "client": client})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def remember(case: Case, context: Context) -> None:
    """Change what the client keeps in its context, which is where Flower keeps clients' states."""
    for other in [key for key in context.state if key != case.name]:
        del context.state[other]
    if not case.state_megabytes:
        return
    if case.name in context.state:
        [memory] = context.state[case.name].to_numpy_ndarrays()
        memory = memory + 1
    else:
        memory = np.zeros(round(case.state_megabytes * 1e6 / 4), np.float32)
    context.state[case.name] = ArrayRecord([memory])
