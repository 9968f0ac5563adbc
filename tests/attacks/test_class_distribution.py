"""Shares of classes are read off an upload that tells them, and are not off one that tells nothing."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from rayfed_ssl import Config
from rayfed_ssl.analysis.audit import view
from rayfed_ssl.attacks.attack import Finding, Seen, Truth
from rayfed_ssl.attacks.class_distribution import ClassDistribution, contents, read_shares
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.method import Empty, sent
from rayfed_ssl.training.state_parts import part_of

CLASSES = torch.arange(400) % 4
PICTURES = torch.zeros(400, 3, 12, 12)
PICTURES[torch.arange(400), :, 0, CLASSES] = 1
"""A picture of class k has one bright pixel, the k-th."""


@dataclass(frozen=True)
class Upload:
    said: Tensor = sent("statistics of pictures")


class SendsMean:
    """A method that sends the mean of its client's pictures, which here are the shares of its classes."""

    def __init__(self, says: float = 1.0) -> None:
        self.says = says

    def init_client(self, client: Any) -> Empty:
        return Empty()

    def update_client(self, download: Any, state: Any, client: Any) -> tuple[Any, Any, dict]:
        noise = torch.rand(4, generator=client.generator)
        pixels = client.data.batch(torch.arange(len(client.data)))[:, 0, 0, :4] / 255
        return Upload(self.says * pixels.mean(0) + (1 - self.says) * noise), state, {}


@pytest.fixture(scope="module")
def observed() -> tuple[Seen, Truth]:
    config = Config.load(
        "fedsimclr",
        *("clients.number=2", "partition={name: dirichlet, alpha: 0.5}", "public=null", "engine.executor=local"),
        *("training.views=fedx-cifar", "training.batch=8"),
        data=TensorDataset(PICTURES, CLASSES),
    )
    federation = Federation.open(config)
    return view(federation, 1, 0, federation.method.download(federation.init_server(), 0), None)


def answers(seen: Seen, truth: Truth, method: Any) -> Iterator[Finding]:
    client = replace(seen, method=method, memory={})
    own = replace(client, upload=client.simulate(truth.members, draw=99))
    return ClassDistribution(clients=40, samples=60).run(own, truth)


def test_shares_that_are_sent_plainly_are_read(observed: tuple[Seen, Truth]):
    far, guess = answers(*observed, SendsMean())
    assert (far.metric, guess.metric) == ("tv", "guess")
    assert far.value < 0.05
    assert guess.value > 0.2


def test_an_upload_that_tells_nothing_is_answered_by_the_mean(observed: tuple[Seen, Truth]):
    far, guess = answers(*observed, SendsMean(0.0))
    assert abs(far.value - guess.value) < 0.1


def test_regression_is_that_of_all_coordinates():
    """By the closed form of ridge regression in the space of uploads, at the strength that leave-one-out chooses."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(5), 30)
    uploads = shares @ rng.normal(size=(5, 200)) + 0.5 * rng.normal(size=(30, 200))
    target = uploads.mean(0) + rng.normal(size=200) * 0.1
    centered = uploads - uploads.mean(0)
    scale = np.sqrt((np.linalg.svd(centered, compute_uv=False) ** 2).mean())
    fits = []
    for strength in np.logspace(-4, 2, 13):
        hat = centered @ centered.T / scale**2
        hat = hat @ np.linalg.inv(hat + strength * np.eye(30))
        left_out = (shares - shares.mean(0) - hat @ (shares - shares.mean(0))) / (1 - np.diag(hat) - 1 / 30)[:, None]
        weights = centered.T @ np.linalg.inv(centered @ centered.T + strength * scale**2 * np.eye(30))
        answer = np.clip(shares.mean(0) + (target - uploads.mean(0)) @ weights @ (shares - shares.mean(0)), 0, None)
        fits.append(((left_out**2).mean(), answer / answer.sum()))
    np.testing.assert_allclose(read_shares(uploads, shares, target), min(fits, key=lambda fit: fit[0])[1], rtol=1e-6)


def test_simulated_clients_do_not_depend_on_whose_upload_is_attacked(observed: tuple[Seen, Truth]):
    seen, _ = observed
    attack = ClassDistribution(clients=3, samples=20)
    first, second = (
        attack.simulated(replace(seen, method=SendsMean(0.5), client=k, seed=k, memory={})) for k in (0, 1)
    )
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])


def test_weights_are_read_by_part_and_counters_of_batches_are_not(observed: tuple[Seen, Truth]):
    seen, _ = observed
    sent = {name: value + 1 for name, value in seen.received.items()}
    parts = contents(seen, replace(seen.download, weights=sent))["weights"]
    floats = {name: value.numel() for name, value in sent.items() if value.is_floating_point()}
    assert 0 < len(floats) < len(sent), "batch-norm counts batches in integers"
    assert sum(len(part) for part in parts) == sum(floats.values())
    assert len(parts) == len({part_of(name) for name in floats}) > 1
    for part in parts:
        assert float(part.norm()) == pytest.approx(1, rel=1e-3)
