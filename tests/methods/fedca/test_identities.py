"""Settings at which FedCA is another method, bit for bit."""

import pytest
import torch

from rayfed_ssl.methods import FedCA
from rayfed_ssl.training.objective import Batch
from rayfed_ssl.trees import digest
from tests.methods.conftest import Open, Played
from tests.methods.steps import pixels
from tests.tensors import seeded


@pytest.mark.parametrize(("batch_norm", "form"), [("averaged", "infonce"), ("local", "ntxent")])
def test_fedca_without_modules_is_fedavg_with_simclr(played: Played, batch_norm: str, form: str):
    settings = ("rounds=3", "public=null", f"method.parts.batch_norm={batch_norm}", f"objective.form={form}")
    without = played("fedca", "method.beta=0", "method.dictionary=false", *settings)
    averaged = played("fedavg", *settings)
    for one, other in zip(without, averaged, strict=True):
        assert digest(one.server.averaged) == digest(other.server)
        for client_id, result in one.results.items():
            assert digest(result.upload.weights) == digest(other.uploads[client_id].weights)
            assert digest(result.state.own) == digest(other.results[client_id].state)
        assert one.server.dictionary is one.server.aligned is None


@pytest.mark.slow
def test_fedca_without_alignment_begins_as_fedavg(played: Played):
    """The dictionary is empty in round 1, and rows of it are drawn after training."""
    shared = played("fedca", "method.beta=0", "public=null")
    averaged = played("fedavg")
    assert digest(shared[0].server.averaged) == digest(averaged[0].server)
    assert digest(shared[1].server.averaged) != digest(averaged[1].server)


def test_fedcas_contrast_with_an_empty_dictionary_is_simclrs(open_tiny: Open):
    task = open_tiny("fedca", "method.beta=0", "public=null", "training.views=orchestra").task
    batch, model = Batch(pixels(6), torch.arange(6), None, 0), task.model(task.initial_weights())
    terms = FedCA().contrast(task, seeded(), torch.empty(0, 24), model, torch.nn.Module(), batch)
    expected = task.objective.loss(task, model, torch.nn.Module(), batch, seeded())
    assert torch.equal(terms.loss, expected.loss)
    assert torch.equal(terms.projections, expected.projections)
