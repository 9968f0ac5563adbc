"""The laws that every method obeys; each takes a `Trial` and raises `LawViolation` with one line."""

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.data.public_data import PublicSet
from rayfed_ssl.engine.contributions import Rebased, Start
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.ledger import account
from rayfed_ssl.errors import CheckpointError
from rayfed_ssl.evaluation.features import extract_features
from rayfed_ssl.machine.environment import compute_threads
from rayfed_ssl.method import Encoder
from rayfed_ssl.privacy.wrapper import Wrapper
from rayfed_ssl.records.manifest import follows_rounds
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.testing.secure_sums import dependence
from rayfed_ssl.testing.trial import LazyUploads, Round, Trial, open_afresh, play, state_digests
from rayfed_ssl.training.state_parts import is_state, part_of, with_rule
from rayfed_ssl.trees import Weights, digest, is_node, leaves

LEAST_SPREAD = 0.005
"""A collapsed encoder's features spread by 0; on the toy, encoders with batch-norm lie at 0.06 and above, VGG-9 at 0.014."""

NUM_UPLOADS = 40
"""Far more than the one that is read and the one before."""


class LawViolation(AssertionError):  # noqa: N818 - it is an assertion that fails
    """A method or an objective breaks a law."""


def demand(holds: bool, message: str) -> None:
    """Raise a violation unless the law holds."""
    if not holds:
        raise LawViolation(message)


def inputs_are_not_written(trial: Trial) -> None:
    """Steps write neither to their inputs nor to the method nor to images."""
    written = trial.watched[0].written
    demand(not written, f"inputs are read-only: {'; '.join(written[:3])}")


def randomness_is_the_engines(trial: Trial) -> None:
    """Steps draw from the generators that they are given and from no other."""
    moved = trial.watched[0].moved
    demand(not moved, f"use client.generator or server.generator: {'; '.join(moved[:3])} moved a global generator")


def steps_repeat(trial: Trial) -> None:
    """A run that is made again, clients finishing in the same order, gives the same results."""
    if what := _first_difference(trial.again, trial.played):
        raise LawViolation(
            f"the same run made twice gives another {what}: a step reads the clock, draws of its own, or what "
            "it keeps outside of the states; draw from client.generator, and keep all else in the states"
        )


def order_is_irrelevant(trial: Trial) -> None:
    """Neither the order in which clients finish nor anything else outside the steps changes a result."""
    if what := _first_difference(trial.backwards, trial.played):
        raise LawViolation(f"the order of clients changes the {what}")


def _first_difference(played: Sequence[Round], expected: Sequence[Round]) -> str | None:
    for number, (one, other) in enumerate(zip(played, expected, strict=True), 1):
        for client_id, result in other.results.items():
            for name in ("upload", "state"):
                if digest(getattr(one.results[client_id], name)) != digest(getattr(result, name)):
                    return f"{name} of client {client_id} in round {number}"
        if digest(one.server) != digest(other.server):
            return f"state of the server in round {number}"
    return None


def seed_decides(trial: Trial) -> None:
    """Another seed gives another result."""
    other = trial.config.model_copy(update={"seed": trial.config.seed + 1})
    digests = state_digests(play(Trial(other).federation))
    demand(not set(digests.values()) & set(state_digests(trial.played).values()), "another seed gives the same state")


def more_rounds_change_no_earlier_one(trial: Trial) -> None:
    """A longer run begins as this one, unless it says otherwise: `resume RUN rounds=N` relies on it."""
    if follows_rounds(trial.config):
        return
    longer = trial.config.model_copy(update={"rounds": trial.config.rounds + 1})
    begun = play(open_afresh(longer), trial.config.rounds)
    demand(
        state_digests(begun) == state_digests(trial.played),
        "a step depends on task.rounds: set follows_rounds, so that no such run is made longer",
    )


def states_survive_storage(trial: Trial) -> None:
    """Every state is the same after it was stored and read."""
    with tempfile.TemporaryDirectory() as directory:
        for number, round in enumerate(trial.played, 1):
            states = {f"client-{k}": result.state for k, result in round.results.items()} | {"server": round.server}
            for name, state in states.items():
                try:
                    stored = checkpoints.store(state, Path(directory), f"{name}-{number}.safetensors")
                    read = checkpoints.read(stored, Path(directory))
                except (CheckpointError, TypeError, ValueError, AttributeError) as error:
                    raise LawViolation(f"the state of {name} cannot be stored: {error}") from error
                demand(digest(read) == digest(state), f"the state of {name} changes when it is stored and read")


def resuming_changes_nothing(trial: Trial) -> None:
    """A run that stops and resumes after every round gives the states of an undisturbed run."""
    digests, expected = trial.resumed.digests, state_digests(trial.played)
    for number, value in expected.items():
        demand(digests.get(number) == value, f"resuming from checkpoints gives another state in round {number}")


def clients_may_drop_out(trial: Trial) -> None:
    """The server aggregates those that are left to another result, and the next round runs."""
    federation, first = trial.federation, trial.played[0]
    if len(first.uploads) < 2:
        return
    missing = max(first.uploads)
    uploads = {client_id: upload for client_id, upload in first.uploads.items() if client_id != missing}
    after = federation.update_server(1, first.server_before, uploads).state
    demand(digest(after) != digest(first.server), "the server's state does not depend on uploads")
    states = {client_id: first.results[client_id].state for client_id in uploads}
    _demand_finite(federation.method.encoders(after, states))
    federation.update_client(2, missing, federation.method.download(after, missing), None)


def server_follows_uploads(trial: Trial) -> None:
    """A server that averages weights does not move away from all uploads; no mean with weights of one sign can.

    Only round 1 is looked at: momentum of later rounds may carry a server past the uploads.
    """
    federation, first = trial.federation, trial.played[0]
    if not federation.method.averages_weights:
        return
    client_id = min(first.uploads)
    names = [name for name, _ in federation.task.blank(federation.task.architecture(client_id)).named_parameters()]
    states = (first.server_before, first.server)
    before, after = (_sent_weights(federation.method.download(state, client_id)) for state in states)
    uploads = [_sent_weights(upload) for upload in first.uploads.values()]
    common = [name for name in names if all(name in tree for tree in (before, after, *uploads))]
    distances = [(_distance(before, upload, common), _distance(after, upload, common)) for upload in uploads]
    demand(
        any(later <= earlier for earlier, later in distances),
        "the server's weights lie farther from every upload after its step than before, from the nearest "
        f"{min(distances)[1]:.3g} instead of {min(distances)[0]:.3g}: check the sign and the size of the step",
    )


def _sent_weights(message: Any) -> Weights:
    return {path.split("/weights/")[1]: leaf for path, leaf in leaves(message) if "/weights/" in path}


def _distance(one: Weights, other: Weights, names: Sequence[str]) -> float:
    return math.sqrt(sum(float((one[name].double() - other[name]).square().sum()) for name in names))


def uploads_are_not_hoarded(trial: Trial) -> None:
    """The server reads each upload once, in order, and holds none while it reads on but the one before."""
    federation, first = trial.federation, trial.played[-1]
    uploads = [upload for _, upload in sorted(first.uploads.items())]
    held = [name.split(".")[-1] for name, declared in federation.method.upload_fields.items() if declared.held]
    lazy = LazyUploads(uploads, NUM_UPLOADS, held)
    federation.update_server(len(trial.played), first.server_before, lazy)
    for number, (before, client_id) in enumerate(pairwise(lazy.reads), 2):
        demand(
            before < client_id,
            f"uploads are read once, in order, and read {number} was of client {client_id} after client {before}: iterate "
            "over them once, and keep what later steps need, declared sent(..., held=True)",
        )
    demand(
        lazy.in_use.most <= 2,
        f"the server holds {lazy.in_use.most} of {NUM_UPLOADS} uploads at once: sum them up with WeightedMean as they come, "
        "or declare the fields that it needs of all at once with sent(..., held=True)",
    )


def old_versions_are_taken(trial: Trial) -> None:
    """A server that says that it takes uploads of clients that started from an older state makes sound encoders of them."""
    method, first = trial.federation.method, trial.played[0]
    if not method.takes_old_versions or not method.averages_weights:
        return
    older: Any = first.server_before
    last: Any = first.server

    def weights(state: Any) -> Weights:
        received: Weights = method.download(state, min(first.uploads)).weights
        return received

    states = []
    for mixes in (False, True):
        starts = dict.fromkeys(first.uploads, Start(older, 0.5, mixes))
        try:
            after = trial.federation.update_server(2, last, Rebased(first.uploads, starts, last, weights)).state
        except (RuntimeError, ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise LawViolation(
                f"takes_old_versions says that clients may start from older states, and the server fails: {error}: set it "
                "to False"
            ) from error
        states.append(digest(after))
        _demand_finite(
            method.encoders(after, {client_id: first.results[client_id].state for client_id in first.uploads})
        )
    # A rule that takes one upload, and takes that which the last state is, may well mix it with itself.
    demand(set(states) != {digest(last)}, "the server's state does not depend on uploads from older states")


def sums_alone_decide(trial: Trial) -> None:
    """The server's step depends on uploads through their sums alone if, and only if, their fields say so (`summed`)."""
    if max(len(round.uploads) for round in trial.played) < 2:
        return
    claimed, found = trial.federation.method.secure_sum, dependence(trial)
    demand(not claimed or found is None, f"fields are summed=True, so sums alone decide, and {found}: leave it out")
    demand(
        claimed or found is not None,
        "nothing but sums of uploads decides in this run about the server's step, and fields of the upload say otherwise: "
        "declare them sent(..., summed=True) in `sends`, or play rounds in which it matters",
    )


def messages_are_plain(trial: Trial) -> None:
    """Downloads and uploads hold tensors, numbers, strings and None; each field says its kind, so bytes are counted."""
    method = trial.federation.method
    for number, round in enumerate(trial.played, 1):
        for client_id, result in round.results.items():
            undeclared = set(_sent_fields(result.upload)) - set(method.upload_fields)
            demand(
                not undeclared or isinstance(method, Wrapper),
                f"uploads have fields that `sends` of the method has not, {', '.join(sorted(undeclared))}: name their class",
            )
            for message, direction in ((round.downloads[client_id], "down"), (result.upload, "up")):
                for path, leaf in leaves(message):
                    plain = leaf is None or type(leaf) in (Tensor, int, float, str)
                    demand(
                        plain, f"{type(message).__name__}{path} holds a {type(leaf).__name__}: send tensors or numbers"
                    )
                entries = account(message, number, client_id, "down" if direction == "down" else "up")
                demand({entry.field for entry in entries} == set(_sent_fields(message)), "the ledger misses a field")
                demand(set(entries) <= set(result.ledger), "the ledger misses what crossed")


def _sent_fields(message: Any, prefix: str = "") -> Iterator[str]:
    for field in fields(message):
        value = getattr(message, field.name)
        if is_node(value) and "sent" not in field.metadata:
            yield from _sent_fields(value, f"{prefix}{field.name}.")
        elif value is not None and "known" not in field.metadata:
            yield prefix + field.name


def rules_say_what_is_sent(trial: Trial) -> None:
    """The parts whose weights are uploaded are those that the method's rules call averaged or mixed."""
    federation = trial.federation
    rules = federation.method.rules(federation.task)
    for round in trial.played:
        for client_id, result in round.results.items():
            trained = federation.trained_task.initial_weights(federation.task.architecture(client_id))
            available = {part_of(name) for name in trained} | {*filter(is_state, rules)}
            uploaded = {part_of(path.split("/")[-1]) for path, _ in leaves(result.upload) if "/weights/" in path}
            expected = with_rule(rules, "averaged", "mixed") & available
            demand(
                not uploaded or uploaded == expected, f"rules say that {set(expected)} is uploaded, and {uploaded} is"
            )


def clients_see_their_shards_alone(trial: Trial) -> None:
    """A client's first step depends on its shard and the public data, and on nobody else's images."""
    federation, first = trial.federation, trial.played[0]
    for client_id, result in first.results.items():
        alone = _with_others_black(federation, client_id)
        with compute_threads(trial.config.engine.threads):
            again = alone.update_client(1, client_id, first.downloads[client_id], None)
        demand(digest(again.upload) == digest(result.upload), f"client {client_id}'s upload depends on others' images")
        demand(digest(again.state) == digest(result.state), f"client {client_id}'s state depends on others' images")


def _with_others_black(federation: Federation, client_id: int) -> Federation:
    train, public = federation.dataset.train, federation.public
    visible = [federation.shards[client_id]] + ([public.rows] if public is not None else [])
    images = np.zeros_like(train.images)
    for rows in visible:
        images[rows] = train.images[rows]
    black = replace(train, images=images, path=None)
    dataset = replace(federation.dataset, train=black)
    return Federation(
        federation.config, dataset, federation.shards, None if public is None else PublicSet(black, public.rows)
    )


def losses_fall(trial: Trial) -> None:
    """Local training and distillation lower their losses.

    A queue of negatives starts with random directions, which are told from anything at once: while keys replace them the
    loss rises. So there it must fall in every participation of a client but the first.
    """
    config = trial.config
    has_queue = "queue" in config.objective.parts
    epochs = max(trial.loss_epochs, config.training.epochs or 0)
    longer = config.training.model_copy(update={"epochs": epochs})
    trained: set[int] = set()
    for round in play(Trial(config.model_copy(update={"training": longer})).federation, 2 if has_queue else 1):
        for client_id, result in round.results.items():
            if "loss" in result.metrics and (client_id in trained or not has_queue):
                first, last = result.metrics["loss_first"], result.metrics["loss"]
                demand(last < first, f"the loss of client {client_id} does not fall: {first:.4f} to {last:.4f}")
            trained.add(client_id)
        if "distil_loss" in round.metrics:
            first, last = round.metrics["distil_loss_first"], round.metrics["distil_loss"]
            demand(last < first, f"the distillation loss does not fall: {first:.4f} to {last:.4f}")


def encoders_are_sound(trial: Trial) -> None:
    """Final encoders are finite and not collapsed."""
    encoders = trial.federation.method.encoders(trial.played[-1].server, trial.states(trial.played))
    _demand_finite(encoders)
    for name, encoder in encoders.items():
        spread = spread_of_features(trial.federation, encoder)
        demand(spread > LEAST_SPREAD, f"encoder {name} is collapsed: its features deviate by {spread:.4f} / sqrt(d)")


def _demand_finite(encoders: Mapping[str, Encoder]) -> None:
    demand(bool(encoders), "the method shows no encoder")
    for name, encoder in encoders.items():
        for key, value in encoder.weights.items():
            demand(bool(value.isfinite().all()), f"encoder {name}: {key} is not finite")


def spread_of_features(federation: Federation, encoder: Encoder) -> float:
    """Mean deviation of the test images' normalized features, times sqrt(d): 1 when spread evenly over a sphere."""
    task = federation.task
    features = extract_features(
        task.model(encoder.weights, encoder.architecture).encoder,
        federation.dataset.test.images,
        task.plain,
        device=task.device,
        precision=task.precision,
    )
    spread = F.normalize(features, dim=1).std(dim=0).mean()
    return float(spread) * math.sqrt(features.shape[1])


LAWS: dict[str, Callable[[Trial], None]] = {
    law.__name__: law
    for law in (
        inputs_are_not_written,
        randomness_is_the_engines,
        messages_are_plain,
        rules_say_what_is_sent,
        steps_repeat,
        order_is_irrelevant,
        states_survive_storage,
        resuming_changes_nothing,
        seed_decides,
        more_rounds_change_no_earlier_one,
        clients_may_drop_out,
        server_follows_uploads,
        uploads_are_not_hoarded,
        sums_alone_decide,
        old_versions_are_taken,
        clients_see_their_shards_alone,
        encoders_are_sound,
        losses_fall,
    )
}
"""All laws of methods by name."""
