"""A run's schedule: what the tasks of its clients cost, from a dry round of one step, and what follows from that."""

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch

from rayfed_ssl.adversaries.adversary import UploadAdversary
from rayfed_ssl.clock.devices import DEVICES, Device
from rayfed_ssl.clock.policies import POLICIES
from rayfed_ssl.clock.schedule import Schedule, Work
from rayfed_ssl.clock.simulation import plan
from rayfed_ssl.config.choices import CLOCK_DEVICES, CLOCK_POLICY
from rayfed_ssl.data.shards import ResidentShards
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.ledger import account, total
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.foreign import plugins
from rayfed_ssl.machine.environment import compute_threads
from rayfed_ssl.method import sent_fields
from rayfed_ssl.models.precision import choose_precision
from rayfed_ssl.randomness.seeds import Purpose, derive_seed
from rayfed_ssl.training.batching import num_batches
from rayfed_ssl.trees import nbytes


def attach_schedule(federation: Federation) -> Schedule | None:
    """Compute the schedule that a federation's rounds keep to, unless it has it; None without `clock`.

    Raises:
        ConfigError: The devices cannot be drawn, the policy never aggregates, or with fewer uploads than a rule or an
            adversary needs.
    """
    config, clients = federation.config, federation.client_ids
    if (clock := config.clock) is None or federation.schedule is not None:
        return federation.schedule
    with plugins.named_errors("clock.devices", CLOCK_DEVICES.name_of(clock.devices), DEVICES):
        devices = tuple(clock.devices.draw(clients, derive_seed(config.seed, Purpose.CLOCK)))
    if len(devices) != len(clients) or not all(isinstance(device, Device) for device in devices):
        raise ConfigError(f"clock.devices must draw {len(clients)} devices, got {devices!r:.100}")
    work, size = work_of(federation), federation.task.cohort_size
    with plugins.named_errors("clock.policy", CLOCK_POLICY.name_of(clock.policy), POLICIES):
        schedule = plan(clock.policy, clients, devices, work, size=size, steps=config.rounds, seed=config.seed)
    uploads = [len(schedule.contributions(step)) for step in range(1, config.rounds + 1)]
    adversary, policy = config.adversary, CLOCK_POLICY.name_of(clock.policy)
    if isinstance(adversary, UploadAdversary) and adversary.sees_honest and max(uploads) < 2:
        raise ConfigError(
            f"{type(adversary).__name__} looks at a step's honest uploads, and clock.policy={policy} has one upload in each "
            "step: take clock.policy=fedbuff, or an adversary that sees none, such as sign-flip"
        )
    if config.robust is not None:
        try:
            config.robust.check(min(uploads))
        except ValueError as error:
            raise ConfigError(f"{error}; clock.policy decides how many there are") from error
    federation.schedule = schedule
    return schedule


@dataclass(frozen=True)
class _Cost:
    """What a client's task costs.

    Attributes:
        sample_flops: FLOPs of a training step by sample, as torch counts them.
        other_samples: All that the client computes beside its steps, in samples of a step.
        down: Bytes of a download, after the first server step.
        up: Bytes of an upload without what grows with the samples.
        sample_up: Bytes of an upload by sample.
    """

    sample_flops: float
    other_samples: float
    down: int
    up: int
    sample_up: float


def work_of(federation: Federation) -> Work:
    """Count what each client's task costs: of each architecture and rank of adapters, one client takes a step."""
    task, adapters = federation.task, federation.config.model.adapters
    kinds = [(task.architecture(client), adapters and adapters.of_client(client)) for client in federation.client_ids]
    with compute_threads(federation.config.engine.threads):
        costs = {kind: _cost(federation, federation.client_ids[kinds.index(kind)]) for kind in dict.fromkeys(kinds)}
    by_client = [costs[kind] for kind in kinds]
    sizes = [len(federation.shards[client]) for client in federation.client_ids]
    return Work(
        [_trained(size, task.batch, task.drop_last) for size in sizes],
        [cost.sample_flops for cost in by_client],
        [cost.other_samples for cost in by_client],
        [cost.down for cost in by_client],
        [cost.up + round(cost.sample_up * size) for cost, size in zip(by_client, sizes, strict=True)],
        federation.config.epochs,
    )


def _trained(size: int, batch: int, drop_last: bool) -> int:
    """Count the samples of an epoch's batches."""
    full = size - size % min(batch, size)
    return full if num_batches(size, batch, drop_last=drop_last) * batch <= full else size


def _cost(federation: Federation, client: int) -> _Cost:
    """Run a round of one step on the CPU, and count."""
    dry, device = copy(federation), torch.device("cpu")
    rows = federation.shards[client][: federation.task.batch]
    dry.shards, dry.resident = {**federation.shards, client: rows}, ResidentShards(lambda: 0)
    dry.method, precision = federation.honest, choose_precision(device, "fp32")
    dry.task = replace(federation.task, device=device, precision=precision, captures=None, epochs=1)
    state = dry.init_server()
    download = dry.method.download(state, client)
    once, upload = _count(dry, client, download)
    dry.task = replace(dry.task, epochs=2)
    twice, _ = _count(dry, client, download)
    sent = list(sent_fields(upload))
    # What the server sends on, such as features of others, grows with the cohort; to whom nothing comes, it sends nothing.
    weights_alone = all(said.kind in ("weights", "statistics") for _, said, _ in sent_fields(download, absent=True))
    if not sent or not weights_alone:
        state = dry.update_server(1, state, dict.fromkeys(dry.cohort(1), upload)).state
    private = sum(nbytes(value) for _, declared, value in sent if declared.private)
    return _Cost(
        (twice - once) / len(rows),
        len(rows) * (2 * once - twice) / (twice - once) if twice > once else 0.0,
        total(account(dry.method.download(state, client), 2, client, "down")),
        total(account(upload, 1, client, "up")) - private,
        private / len(rows),
    )


def _count(dry: Federation, client: int, download: Any) -> tuple[int, Any]:
    """Run a client's step; returns its FLOPs and its upload."""
    from torch.utils.flop_counter import FlopCounterMode  # takes half a second to load

    with FlopCounterMode(display=False) as counter:
        upload = dry.update_client(1, client, download, None).upload
    return counter.get_total_flops(), upload
