"""Settings at which FedCA is another method, bit for bit."""

from collections.abc import Callable

import pytest
import torch

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.method import Client
from rayfed_ssl.methods import FedCA
from rayfed_ssl.testing.trial import Round, play
from rayfed_ssl.training.objective import Batch
from rayfed_ssl.trees import digest

Tiny = Callable[..., Config]


def played(config: Config, rounds: int | None = None) -> list[Round]:
    return play(Federation.open(config), rounds)


def uploaded(rounds: list[Round]) -> list[dict[int, str]]:
    return [{k: digest(upload.weights) for k, upload in round.uploads.items()} for round in rounds]


@pytest.mark.parametrize("batch_norm", ["averaged", "local"])
def test_fedca_without_modules_is_fedavg_with_simclr(tiny: Tiny, batch_norm: str):
    settings = ("rounds=3", "public=null", f"method.parts.batch_norm={batch_norm}")
    without = played(tiny("fedca", "method.beta=0", "method.dictionary=false", *settings))
    averaged = played(tiny("fedavg", *settings))
    assert uploaded(without) == uploaded(averaged)
    for one, other in zip(without, averaged, strict=True):
        assert digest(one.server.averaged) == digest(other.server)
        assert {k: digest(r.state.own) for k, r in one.results.items()} == {
            k: digest(r.state) for k, r in other.results.items()
        }
        assert one.server.dictionary is one.server.aligned is None


@pytest.mark.slow
def test_fedca_without_alignment_begins_as_fedavg(tiny: Tiny):
    """The dictionary is empty in round 1, and rows of it are drawn after training."""
    shared = played(tiny("fedca", "method.beta=0", "public=null"))
    averaged = played(tiny("fedavg"))
    assert uploaded(shared)[0] == uploaded(averaged)[0]
    assert uploaded(shared)[1] != uploaded(averaged)[1]


def test_fedcas_contrast_with_an_empty_dictionary_is_simclrs(tiny: Tiny):
    federation = Federation.open(tiny("fedca", "method.beta=0", "public=null", "training.views=orchestra"))
    task = federation.task
    images = torch.randint(0, 256, (6, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    batch, model = Batch(images, torch.arange(6), None, 0), task.model(task.initial_weights())
    client = Client(0, 2, None, None, task, *[torch.Generator().manual_seed(2)] * 2)
    terms = FedCA().contrast(client, torch.empty(0, 24), model, torch.nn.Module(), batch)
    expected = task.objective.loss(task, model, torch.nn.Module(), batch, torch.Generator().manual_seed(2))
    assert torch.equal(terms.loss, expected.loss)
    assert torch.equal(terms.projections, expected.projections)
