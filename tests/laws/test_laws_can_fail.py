"""Each law rejects `examples/my_method.py` with one mistake planted, and accepts it as it is."""

import itertools
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from examples.my_method import FedAvgM, ServerState
from rayfed_ssl.aggregation.weighted_mean import WeightedMean, weighted_mean
from rayfed_ssl.engine.round_loop import ClientError
from rayfed_ssl.method import Client, Encoder, Method, Metrics, Server, Weights, sent
from rayfed_ssl.methods import FLESD
from rayfed_ssl.methods.fedavg import Download, Upload
from rayfed_ssl.models import Model
from rayfed_ssl.objectives import BYOL, SimCLR
from rayfed_ssl.records.manifest import follows_rounds
from rayfed_ssl.testing import LAWS, LawViolation, check_method, check_objective, toy_config
from rayfed_ssl.testing.objective_laws import check_steps
from rayfed_ssl.testing.trial import Trial, open_afresh
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import StepOutput
from rayfed_ssl.trees import map_leaves

STEPS = itertools.count()


def shift(weights: Weights, amount: float) -> Weights:
    return {name: value + amount if value.is_floating_point() else value for name, value in weights.items()}


class ChangesUploads(FedAvgM):
    """Adds a number, which a subclass draws, to what it uploads."""

    def amount(self, client: Client) -> float:
        raise NotImplementedError

    def update_client(self, download: Download, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        upload, next_state, metrics = super().update_client(download, state, client)
        return replace(upload, weights=shift(upload.weights, self.amount(client))), next_state, metrics


class WritesItsDownload(FedAvgM):
    def update_client(self, download: Download, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        step = super().update_client(download, state, client)
        next(iter(download.weights.values())).mul_(0.5)
        return step


class WritesUploads(FedAvgM):
    def update_server(self, state: ServerState, uploads: Mapping[int, Upload], server: Server) -> tuple[Any, Metrics]:
        for upload in uploads.values():
            next(iter(upload.weights.values())).mul_(upload.num_samples)
        return super().update_server(state, uploads, server)


class KeepsStateOnItself(ChangesUploads):
    def amount(self, client: Client) -> float:
        trained = getattr(self, "trained", 0) + 1
        object.__setattr__(self, "trained", trained)
        return trained / 8


class DependsOnEarlierClients(ChangesUploads):
    def amount(self, client: Client) -> float:
        return next(STEPS) / 8


class UsesPythonsRandomness(ChangesUploads):
    def amount(self, client: Client) -> float:
        return random.random()


class UsesTorchsRandomness(ChangesUploads):
    def amount(self, client: Client) -> float:
        return float(torch.rand(()))


class UsesFreshRandomness(ChangesUploads):
    def amount(self, client: Client) -> float:
        return np.random.default_rng().random()


class SeesOtherShards(ChangesUploads):
    def amount(self, client: Client) -> float:
        return float(client.data.images[:5].float().mean())


class FollowsRounds(ChangesUploads):
    def amount(self, client: Client) -> float:
        return client.round / client.task.rounds


class ReadsTheClock(ChangesUploads):
    def amount(self, client: Client) -> float:
        return time.perf_counter()


class RemembersTheLastClient(ChangesUploads):
    """Keeps outside of the states what a run that is made again finds as the first one did."""

    last = 0

    def amount(self, client: Client) -> float:
        before, type(self).last = type(self).last, client.id
        return before / 8


class MovesAway(FedAvgM):
    def update_server(self, state: ServerState, uploads: Mapping[int, Upload], server: Server) -> tuple[Any, Metrics]:
        mean, _ = self.aggregate(state, uploads, server)
        away = {
            name: 2 * value - mean[name] if "running" not in name else mean[name]
            for name, value in state.weights.items()
        }
        return replace(state, weights=away), {}


class SumsUploads(FedAvgM):
    def update_server(self, state: ServerState, uploads: Mapping[int, Upload], server: Server) -> tuple[Any, Metrics]:
        mean, _ = self.aggregate(state, uploads, server)
        return replace(state, weights={name: value * len(uploads) for name, value in mean.items()}), {}


@dataclass(frozen=True)
class Stamped(Upload):
    round: int = sent("statistics", default=0)


class NeedsTheLastVersion(FedAvgM):
    def update_client(self, download: Download, state: Any, client: Client) -> tuple[Upload, Any, Metrics]:
        upload, after, metrics = super().update_client(download, state, client)
        return Stamped(upload.weights, upload.num_samples, client.round), after, metrics

    def update_server(self, state: ServerState, uploads: Mapping[int, Upload], server: Server) -> tuple[Any, Metrics]:
        if any(cast(Stamped, upload).round != server.round for upload in uploads.values()):
            raise ValueError("an upload is of an earlier round")
        return super().update_server(state, uploads, server)


class UsesNumpysRandomness(FedAvgM):
    def update_server(self, state: ServerState, uploads: Mapping[int, Upload], server: Server) -> tuple[Any, Metrics]:
        after, metrics = super().update_server(state, uploads, server)
        return replace(after, weights=shift(after.weights, np.random.rand())), metrics  # noqa: NPY002


class IgnoresUploads(FedAvgM):
    def init_server(self, server: Server) -> ServerState:
        return map_leaves(lambda leaf: leaf * 0 + 1 if torch.is_tensor(leaf) else leaf, super().init_server(server))

    def update_server(self, state: ServerState, uploads: Mapping[int, Upload], server: Server) -> tuple[Any, Metrics]:
        return state, {}


class ReadsUploadsTwice(FedAvgM):
    def update_server(self, state: ServerState, uploads: Mapping[int, Upload], server: Server) -> tuple[Any, Metrics]:
        total = sum(upload.num_samples for upload in uploads.values())
        after, _ = super().update_server(state, uploads, server)
        return after, {"samples": total}


class HoldsAllUploads(FedAvgM):
    def update_server(self, state: ServerState, uploads: Mapping[int, Upload], server: Server) -> tuple[Any, Metrics]:
        return super().update_server(state, dict(uploads), server)


class TakesTheLargest(FedAvgM):
    """Claims, as FedAvgM does, that sums alone decide."""

    sends = Upload

    def aggregate(self, state: ServerState, uploads: Mapping[int, Upload], server: Server) -> tuple[Weights, Metrics]:
        weights: Weights = {}
        for upload in uploads.values():
            weights = {n: torch.maximum(value, weights.get(n, value)) for n, value in upload.weights.items()}
        return weights, {}


class CountsClients(FedAvgM):
    sends = Upload

    def update_server(self, state: ServerState, uploads: Mapping[int, Upload], server: Server) -> tuple[Any, Metrics]:
        after, metrics = super().update_server(state, uploads, server)
        return after, metrics | {"clients": float(len(uploads))}


class WeighsOtherwise(FedAvgM):
    sends = Upload

    def factor(self, upload: Upload) -> float:
        return 1.0

    def aggregate(self, state: ServerState, uploads: Mapping[int, Upload], server: Server) -> tuple[Weights, Metrics]:
        return weighted_mean((upload.num_samples, upload.weights) for upload in uploads.values()), {}


@dataclass(frozen=True)
class UploadOfUnknownUse(Upload):
    weights: Weights = sent("weights")


class ClaimsTooLittle(FedAvgM):
    sends = UploadOfUnknownUse


@dataclass(frozen=True)
class UploadWithShard(Upload):
    shard: Any = sent("statistics", default=None)


class SendsAnArray(FedAvgM):
    sends = UploadWithShard

    def update_client(self, download: Download, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        upload, next_state, metrics = super().update_client(download, state, client)
        return UploadWithShard(upload.weights, upload.num_samples, client.data.rows.numpy()), next_state, metrics


class SendsUndeclared(SendsAnArray):
    sends = Upload


class SendsLess(FedAvgM):
    def update_client(self, download: Download, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        upload, next_state, metrics = super().update_client(download, state, client)
        encoder = {name: value for name, value in upload.weights.items() if name.startswith("encoder.")}
        return replace(upload, weights=encoder), next_state, metrics

    def update_server(self, state: ServerState, uploads: Mapping[int, Upload], server: Server) -> tuple[Any, Metrics]:
        mean, _ = self.aggregate(state, uploads, server)
        return replace(state, weights=state.weights | mean), {}


class StatesNeedTheirClass(FedAvgM):
    def update_client(self, download: Download, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        upload, _, metrics = super().update_client(download, state, client)

        @dataclass(frozen=True)
        class Local:
            round: int

        return upload, Local(client.round), metrics


class ForgetsItsState(FedAvgM):
    """Counts on an attribute that a resumed process does not have."""

    def update_server(self, state: ServerState, uploads: Mapping[int, Upload], server: Server) -> tuple[Any, Metrics]:
        after, metrics = super().update_server(state, uploads, server)
        rounds = getattr(self, "rounds", 0) + 1
        object.__setattr__(self, "rounds", rounds)
        return replace(after, weights=shift(after.weights, rounds / 8)), metrics


class Diverges(FedAvgM):
    def update_client(self, download: Download, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        upload, next_state, metrics = super().update_client(download, state, client)
        return upload, next_state, metrics | {"loss": metrics["loss_first"], "loss_first": metrics["loss"]}


class ShowsNoNumbers(FedAvgM):
    def encoders(self, state: ServerState, clients: Mapping[int, Any]) -> dict[str, Encoder]:
        (encoder,) = super().encoders(state, clients).values()
        return {"global": replace(encoder, weights=shift(encoder.weights, float("nan")))}


class Collapses(FedAvgM):
    def encoders(self, state: ServerState, clients: Mapping[int, Any]) -> dict[str, Encoder]:
        (encoder,) = super().encoders(state, clients).values()
        zeros = {name: torch.zeros_like(v) if "conv" in name else v for name, v in encoder.weights.items()}
        return {"global": replace(encoder, weights=zeros)}


MISTAKES: list[tuple[str, type[Method], str]] = [
    ("inputs_are_not_written", WritesItsDownload, "round 1 writes to its input"),
    ("inputs_are_not_written", WritesUploads, "update_server in round 1 writes to its input"),
    ("inputs_are_not_written", KeepsStateOnItself, "writes to the method"),
    ("randomness_is_the_engines", UsesPythonsRandomness, "moved a global generator"),
    ("randomness_is_the_engines", UsesNumpysRandomness, "moved a global generator"),
    ("randomness_is_the_engines", UsesTorchsRandomness, "moved a global generator"),
    (
        "steps_repeat",
        UsesFreshRandomness,
        "made twice gives another upload of client 0 in round 1: a step reads the clock",
    ),
    ("steps_repeat", ReadsTheClock, "made twice gives another upload of client 0 in round 1: a step reads the clock"),
    ("steps_repeat", DependsOnEarlierClients, "made twice gives another upload of client 0 in round 1"),
    ("order_is_irrelevant", KeepsStateOnItself, "the order of clients changes the upload of client"),
    ("order_is_irrelevant", RemembersTheLastClient, "the order of clients changes the upload of client"),
    ("resuming_changes_nothing", ForgetsItsState, "another state in round 2"),
    ("states_survive_storage", StatesNeedTheirClass, "cannot be stored"),
    ("seed_decides", IgnoresUploads, "another seed gives the same state"),
    ("more_rounds_change_no_earlier_one", FollowsRounds, "depends on task.rounds: set follows_rounds"),
    ("clients_may_drop_out", IgnoresUploads, "does not depend on uploads"),
    ("server_follows_uploads", MovesAway, "farther from every upload .*: check the sign"),
    ("server_follows_uploads", SumsUploads, "farther from every upload"),
    ("uploads_are_not_hoarded", ReadsUploadsTwice, "read 41 was of client 0 after client 39"),
    ("uploads_are_not_hoarded", HoldsAllUploads, "holds 40 of 40 uploads"),
    (
        "sums_alone_decide",
        TakesTheLargest,
        "sums alone decide, and a mixture .* gives another state/weights/",
    ),
    ("sums_alone_decide", CountsClients, "one upload that stands for all gives another metrics/clients in round 1"),
    ("sums_alone_decide", WeighsOtherwise, "a mixture of uploads with their sums gives another state/weights/"),
    ("sums_alone_decide", ClaimsTooLittle, "nothing but sums of uploads decides .*: declare them"),
    (
        "old_versions_are_taken",
        NeedsTheLastVersion,
        "the server fails: .*an upload is of an earlier round: set it to False",
    ),
    ("messages_are_plain", SendsAnArray, "/shard holds a ndarray"),
    ("messages_are_plain", SendsUndeclared, "uploads have fields that `sends` of the method has not, shard"),
    ("rules_say_what_is_sent", SendsLess, "rules say that"),
    ("clients_see_their_shards_alone", SeesOtherShards, "depends on others' images"),
    ("losses_fall", Diverges, "does not fall"),
    ("encoders_are_sound", Collapses, "global is collapsed"),
    ("encoders_are_sound", ShowsNoNumbers, "is not finite"),
]


@pytest.mark.parametrize(("law", "method", "message"), MISTAKES, ids=[f"{m.__name__}-{law}" for law, m, _ in MISTAKES])
def test_a_law_finds_a_planted_mistake(law: str, method: type[Method], message: str):
    with pytest.raises(LawViolation, match=message) as violation:
        LAWS[law](Trial(toy_config(method())))
    assert "\n" not in str(violation.value)


def test_there_is_a_mistake_for_every_law():
    assert {law for law, *_ in MISTAKES} == set(LAWS)


def test_the_example_obeys_every_law():
    check_method(FedAvgM())


def test_a_violation_names_the_law():
    with pytest.raises(LawViolation, match=r"^inputs are not written: inputs are read-only: update_client of client 0"):
        check_method(WritesItsDownload())


def test_a_mean_that_keeps_all_uploads_is_found(monkeypatch: pytest.MonkeyPatch):
    """The law counts uploads whose memory is in use, wherever it is held."""
    add, held = WeightedMean.add, []

    def hoard(self: WeightedMean, factor: float, weights: Weights) -> None:
        held.append({name: value.view(-1) for name, value in weights.items()})
        add(self, factor, weights)

    monkeypatch.setattr(WeightedMean, "add", hoard)
    with pytest.raises(LawViolation, match="holds 40 of 40 uploads at once"):
        LAWS["uploads_are_not_hoarded"](Trial(toy_config(FedAvgM())))


def test_public_data_is_there_for_a_method_that_needs_it():
    method = FLESD(queue_size=32, distil_batch=16, distil_epochs=2)
    LAWS["messages_are_plain"](Trial(toy_config(method)))


class WritesItsTarget(BYOL):
    def loss(self, *given: Any) -> StepOutput:
        next(given[2].parameters()).add_(1.0)
        return super().loss(*given)


class DrawsFromTorch(SimCLR):
    def loss(self, *given: Any) -> StepOutput:
        torch.rand(())
        return super().loss(*given)


class HasNoGradient(SimCLR):
    def loss(self, *given: Any) -> StepOutput:
        output = super().loss(*given)
        return replace(output, loss=torch.zeros((), requires_grad=True) + output.loss.detach())


class Detached(SimCLR):
    def loss(self, *given: Any) -> StepOutput:
        output = super().loss(*given)
        return replace(output, loss=output.loss.detach())


class GivesAFloat(SimCLR):
    def loss(self, *given: Any) -> StepOutput:
        output = super().loss(*given)
        return replace(output, loss=output.loss.item())


class GivesTheLossAlone(SimCLR):
    def loss(self, *given: Any) -> StepOutput:
        return cast("StepOutput", super().loss(*given).loss)


class TakesOneViewTwice(SimCLR):
    def project(self, context: Context, model: Model, images: Tensor, generator: torch.Generator) -> Tensor:
        first, _ = context.two_views(images, generator)
        return torch.cat([model(first)[1], model(first)[1]])


class DrawsOneViewAlone(SimCLR):
    def project(self, context: Context, model: Model, images: Tensor, generator: torch.Generator) -> Tensor:
        return model(context.augment(images, context.views.first, generator))[1].repeat(2, 1)


class IgnoresTheSecondView(SimCLR):
    def contrast(self, first: Tensor, second: Tensor) -> Tensor:
        return super().contrast(first, first)


class SumsNothing(SimCLR):
    def loss(self, *given: Any) -> StepOutput:
        output = super().loss(*given)
        projections: Tensor = output.projections
        return replace(output, loss=projections.sum(dim=1))


class SaysThatItFollowsRounds(SimCLR):
    follows_rounds = True


def test_an_objective_may_say_that_it_follows_the_number_of_rounds():
    message = "objective=.*SaysThatItFollowsRounds follows the number of rounds"
    assert re.match(message, follows_rounds(toy_config(objective=SaysThatItFollowsRounds())) or "")
    assert follows_rounds(toy_config()) is None


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (WritesItsTarget(hidden=32), "writes to weights or state"),
        (DrawsFromTorch(), "not from a global one"),
        (HasNoGradient(), "no gradient in the encoder"),
        (SumsNothing(), r"must give a scalar tensor, got a tensor of shape \[16\]"),
        (Detached(), "objective Detached: `loss` has no gradient: compute it from what the model gives"),
        (GivesAFloat(), "objective GivesAFloat: `loss` must give a scalar tensor, got a float"),
        (GivesTheLossAlone(), r"`loss` must give a StepOutput\(loss, projections\), got a Tensor"),
        (TakesOneViewTwice(), "the same view of a sample twice, or one alone: draw two, or set num_views to 1"),
        (DrawsOneViewAlone(), "the same view of a sample twice, or one alone"),
        (IgnoresTheSecondView(), "does not depend on the second view"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else None,
)
def test_the_laws_of_objectives_find_a_planted_mistake(objective: SimCLR | BYOL, message: str):
    with pytest.raises(LawViolation, match=message):
        check_steps(toy_config(objective=objective))


@pytest.mark.parametrize(
    "objective", [Detached(), GivesAFloat(), GivesTheLossAlone()], ids=lambda value: type(value).__name__
)
def test_a_run_names_the_objective_whose_loss_does_not_fit(objective: SimCLR):
    federation = open_afresh(toy_config(objective=objective))
    with pytest.raises(
        ClientError, match=f"^client 0 failed in round 1 .*objective {type(objective).__name__}: `loss`"
    ) as error:
        federation.update_client(1, 0, federation.method.download(federation.init_server(), 0), None)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_an_objective_of_this_package_obeys_every_law():
    check_objective(SimCLR(form="ntxent"))
