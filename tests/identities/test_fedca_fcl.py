"""FedCA, FCL, FedMD and FedDF without their modules are simpler methods, bit for bit."""

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

MOCO = ("objective=moco", "objective.queue_size=50")


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


@pytest.mark.parametrize("symmetric", ["true", "false"])
def test_fcl_without_modules_is_fedavg_with_moco_and_an_averaged_target(tiny: Tiny, symmetric: str):
    settings = (*MOCO, f"objective.symmetric={symmetric}", "rounds=3")
    without = played(tiny("fcl", "method.fusion=false", "method.neighborhood=0", *settings))
    averaged = played(tiny("fedavg", "method.parts.target=averaged", *settings))
    assert uploaded(without) == uploaded(averaged)
    for one, other in zip(without, averaged, strict=True):
        assert digest(one.server.averaged) == digest(other.server)
        assert {k: digest(r.state) for k, r in one.results.items()} == {
            k: digest(r.state) for k, r in other.results.items()
        }
    assert any(name.startswith("target.") for name in without[0].uploads[0].weights)


@pytest.mark.parametrize("negatives", ["both", "remote"])
def test_fcl_without_neighborhoods_begins_as_fedavg(tiny: Tiny, negatives: str):
    """There are no remote features in round 1, and images are encrypted after training."""
    fused = played(tiny("fcl", *MOCO, "method.neighborhood=0", f"method.negatives={negatives}"))
    averaged = played(tiny("fedavg", *MOCO, "method.parts.target=averaged"))
    assert uploaded(fused)[0] == uploaded(averaged)[0]
    assert uploaded(fused)[1] != uploaded(averaged)[1]


@pytest.mark.parametrize("models", ["null", "[vgg9]"])
def test_feddf_without_distillation_is_fedavg_where_there_is_one_architecture(tiny: Tiny, models: str):
    settings = (f"clients.models={models}", *(() if models == "null" else ("model.encoder=vgg9",)))
    fused = played(tiny("feddf", "method.distil_epochs=0", "public=fraction:0.3", *settings))
    federation = Federation.open(tiny("feddf", "method.distil_epochs=0", *settings))
    plain = Federation(
        tiny("fedavg", *settings), federation.dataset, federation.shards
    )  # the same shards, which the public samples were taken from
    averaged = play(plain)
    assert uploaded(fused) == uploaded(averaged)
    for one, other in zip(fused, averaged, strict=True):
        assert digest(one.server.weights[other.server.architecture]) == digest(other.server.weights)


def test_feddf_of_as_many_architectures_as_clients_averages_nothing(tiny: Tiny):
    (first, _) = played(tiny("feddf", "method.distil_epochs=0", "clients.models=[cnn, vgg9, alexnet]"))
    for upload in first.uploads.values():
        assert digest(first.server.weights[upload.architecture]) == digest(upload.weights)


def test_an_ensemble_of_one_teacher_is_that_teacher(tiny: Tiny):
    """A student that starts as its only teacher, without batch-norm and dropout, has next to nothing to learn."""
    federation = Federation.open(tiny("feddf", "clients.models=[alexnet]", "method.distil_epochs=1"))
    (first,) = play(federation, 1)
    upload = {1: first.uploads[1]}
    outcome = federation.update_server(1, first.server_before, upload)
    # Teacher and student are the same function; MSE of unit rows is in squared float32 rounding until Adam moves.
    batch = "method.distil_batch=45"  # one step: the loss before any step
    whole = Federation.open(tiny("feddf", "clients.models=[alexnet]", "method.distil_epochs=1", batch))
    assert whole.update_server(1, first.server_before, upload).metrics["distil_loss"] < 1e-12
    assert outcome.metrics["distil_steps"] == 3


def test_fedmd_begins_as_local_training(tiny: Tiny):
    """Before there is a consensus; on the same shards."""
    settings = ("clients.models=[cnn, vgg9, cnn]",)
    federation = Federation.open(tiny("fedmd", *settings))
    (agreed,) = play(federation, 1)
    (alone,) = play(Federation(tiny("local", *settings), federation.dataset, federation.shards), 1)
    assert {k: digest(r.state.weights) for k, r in agreed.results.items()} == {
        k: digest(r.state.weights) for k, r in alone.results.items()
    }
