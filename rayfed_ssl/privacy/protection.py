"""The method that a run runs: the configuration's, within what `privacy.*` puts around it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rayfed_ssl.adversaries.adversary import Adversary
from rayfed_ssl.adversaries.backdoors import insiders
from rayfed_ssl.config.privacy import Privacy
from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.image_store import ImageSet
from rayfed_ssl.method import Method
from rayfed_ssl.privacy.accounting import Accounted
from rayfed_ssl.privacy.adapted import adapted
from rayfed_ssl.privacy.client_level import ClientLevel
from rayfed_ssl.privacy.hostile import Hostile
from rayfed_ssl.privacy.robust import Robust
from rayfed_ssl.privacy.sample_level import SampleLevel
from rayfed_ssl.privacy.secure_sum import SecureSum
from rayfed_ssl.randomness.seeds import Purpose, derive_seed
from rayfed_ssl.training.task import Task


def enclosed(config: Config, method: Method, sizes: Sequence[int]) -> Method:
    """Put around a method, and what defends it, what the configuration asks for; arguments are those of `protected`."""
    return adapted(protected(method, config.privacy, sizes), config.model.adapters)


def protected(method: Method, privacy: Privacy, sizes: Sequence[int]) -> Method:
    """Put around a method what the configuration asks for.

    Args:
        method: The configuration's.
        privacy: What is asked for.
        sizes: Numbers of samples of the largest clients, as many as take part in a round.
    """
    if privacy.clip is not None and privacy.level == "sample":
        assert isinstance(privacy.clip, float), "the section refuses others"
        return SampleLevel(method=method, clip=privacy.clip, noise=privacy.noise, delta=privacy.delta)
    if privacy.clip is not None:
        return ClientLevel(
            method=method, clip=privacy.clip, noise=privacy.noise, quantile=privacy.clip_quantile, delta=privacy.delta
        )
    if privacy.secure_sum:
        return SecureSum(method=method, protocol=privacy.secure_protocol, cohort=len(sizes), samples=sum(sizes))
    return method


def ruled(config: Config) -> Method:
    """Put a rule around a configuration's method, if it has one; what it sends beside weights counts clients alike, too."""
    return config.method if config.robust is None else Robust(method=_alike(config.method), rule=config.robust)


def _alike(method: Any) -> Any:
    """Let clients weigh alike in a method and in what it is around."""
    changes = {name: _alike(value) for name, value in vars(method).items() if isinstance(value, Method)}
    changes |= {"weighting": "uniform"} if vars(method).get("weighting") == "samples" else {}
    return replace(method, **changes) if changes else method


def defended(config: Config, shards: Mapping[int, np.ndarray], train: ImageSet, task: Task) -> Method:
    """Put a rule around a configuration's method, and hostile clients around both.

    Raises:
        ValueError: The clients, or their samples, are none that could be hostile so.
    """
    method, adversary = ruled(config), config.adversary
    if adversary is None:
        return method
    adversary.check(task, train)
    ids = hostile_ids(adversary, shards, config.seed)
    return Hostile(method=method, adversary=adversary, insiders=insiders(adversary, ids, shards, train, config.seed))


def hostile_ids(adversary: Adversary, clients: Collection[int], seed: int) -> tuple[int, ...]:
    """Name the hostile clients of a run, or draw as many as are asked for.

    Raises:
        ValueError: There are fewer clients, or not these, or none would be honest or hostile.
    """
    wanted = adversary.clients
    number = wanted if isinstance(wanted, int) else len({*wanted})
    if number >= len(clients):
        raise ValueError(f"adversary.clients={wanted} leaves none of {len(clients)} clients honest: lower it")
    if not number:
        raise ValueError("adversary.clients names nobody: name a client, or leave adversary out")
    if isinstance(wanted, int):
        rng = np.random.default_rng(derive_seed(seed, Purpose.HOSTILE))
        return tuple(sorted(int(client) for client in rng.choice(sorted(clients), wanted, replace=False)))
    if absent := sorted({*wanted} - {*clients}):
        listed = ", ".join(map(str, sorted(clients)[:20]))
        raise ValueError(f"adversary.clients names {absent[0]}, which is no client: choose from {listed}")
    return tuple(sorted({*wanted}))


def accounted(method: Method | None) -> Accounted | None:
    """Find what counts the budget of a method, within what may be around it; None where nothing does."""
    while method is not None and not isinstance(method, Accounted):
        method = method.inner
    return method
