"""The protocol between a method and the engine: Method, Client, Server, and what crosses between them.

A method is a frozen dataclass of pure functions that reads like its paper's algorithm box: `update_client` is
"ClientUpdate(k)", `update_server` is "Server executes". The engine owns the loop, the seeds, the actors, the state and
the bytes. Inputs are read-only: functions return new trees.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import torch

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.models import Model
from rayfed_ssl.training.state_parts import Rule, all_with, model_weights
from rayfed_ssl.training.step import Loss, Term
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import Weights, is_node
from rayfed_ssl.validation import Validated

Metrics: TypeAlias = dict[str, float]
"""What a step reports, by name; numbers only, never sent to another client."""

Kind: TypeAlias = Literal[
    "weights",
    "frozen weights",
    "representations",
    "similarities",
    "relation matrix",
    "correlation matrix",
    "statistics",
    "public images",
    "masked values",
    "keys and shares",
]
"""What a field of a download or an upload tells about the data; the ledger counts bytes by kind."""

Release: TypeAlias = Literal["difference", "value"]
"""How a field of an upload may be released under client-level differential privacy (docs/privacy-budget.md).

- difference: weights of which the server uses nothing but a mean in which every client counts the same; what is bounded is
  how far they are from the download's field of this name.
- value: tensors that are bounded themselves, whatever the server makes of them.
"""


@dataclass(frozen=True)
class Declared:
    """What a method says about a field of a Download or an Upload; all but `kind` and `private` is about uploads.

    Attributes:
        kind: What it tells about the data.
        private: Whether it has rows of private samples.
        summed: Whether the server uses nothing of it but its sum over clients, weighted by the field that is a `weight`.
        held: Whether the server holds it of all uploads at once; it should be small.
        weight: Whether it is a client's weight in the server's means, p_k up to the common denominator and at most its
            number of samples.
        release: How it may be released under client-level privacy; None where how far one client moves it is not known.
    """

    kind: Kind
    private: bool = False
    summed: bool = False
    held: bool = False
    weight: bool = False
    release: Release | None = None


def one_by_one(fields: Mapping[str, Declared]) -> dict[str, Declared]:
    """Say the same of fields that the server looks at one by one, and of which no bound is known."""
    return {name: dataclasses.replace(says, summed=False, release=None) for name, says in fields.items()}


def sent(
    kind: Kind,
    *,
    private: bool = False,
    summed: bool = False,
    held: bool = False,
    weight: bool = False,
    release: Release | None = None,
    **options: Any,
) -> Any:
    """Declare a field of a Download or an Upload, as `Declared` explains; `options` are those of `dataclasses.field`."""
    return dataclasses.field(metadata={"sent": Declared(kind, private, summed, held, weight, release)}, **options)


def known(**options: Any) -> Any:
    """Declare a field of a Download that a client has already: passed along, so that it is not in the client's state."""
    return dataclasses.field(metadata={"known": True}, **options)


def sent_fields(message: Any, prefix: str = "", *, absent: bool = False) -> Iterator[tuple[str, Declared, Any]]:
    """List what a Download or an Upload holds: name, what `sent` declares, and value; nested messages are entered.

    Fields that are None are left out unless `absent`, and those that are `known`; the name is "base.weights" for one of a
    message that holds another method's.

    Raises:
        TypeError: A field does not declare what kind of content it holds.
    """
    for field in dataclasses.fields(message):
        value, name = getattr(message, field.name), prefix + field.name
        if "known" in field.metadata:
            continue
        if declared := field.metadata.get("sent"):
            if absent or value is not None:
                yield name, declared, value
        elif is_node(value):
            yield from sent_fields(value, f"{name}.", absent=absent)
        else:
            undeclared = f"{type(message).__name__}.{field.name}"
            raise TypeError(f"{undeclared} does not say what it reveals: declare it with sent(kind)")


@dataclass(frozen=True)
class Empty:
    """A download, an upload or a state that holds nothing."""


@dataclass(frozen=True)
class Encoder:
    """What evaluation sees: an architecture's name and the weights of encoder and heads."""

    architecture: str
    weights: Weights

    @classmethod
    def of(cls, architecture: str, weights: Weights) -> "Encoder":
        """Select a model's weights, without an objective's state among them."""
        return cls(architecture, model_weights(weights))


@dataclass(frozen=True)
class Client:
    """A client in one round: its id, its shard and what the whole federation knows.

    Attributes:
        id: The client's number, stable over the run.
        round: The running round, from 1.
        data: The client's own samples; labels are there only for objectives that need them.
        public: Samples that everybody holds, or None.
        task: Models, local training and device, the same for all.
        generator: Orders the samples and draws the views, on the device, seeded from (run seed, round, client).
        method_generator: For a method's own draws while it trains, so that samples and views stay those of other methods.
        terms: What a method adds to each step's loss in `train`.
    """

    id: int
    round: int
    data: Shard
    public: Shard | None
    task: Task
    generator: torch.Generator
    method_generator: torch.Generator
    terms: tuple[Term, ...] = ()

    @property
    def architecture(self) -> str:
        """Name of this client's encoder."""
        return self.task.architecture(self.id)

    def with_term(self, term: Term) -> "Client":
        """Copy this client; the copy's `train` adds a term to each step's loss."""
        return dataclasses.replace(self, terms=(*self.terms, term))

    def train(self, weights: Weights, loss: Loss | None = None) -> tuple[Weights, Metrics]:
        """Train for E_local epochs on the shard.

        Args:
            weights: Model and objective's state in one flat dict (see `state_parts`); what is missing starts anew.
            loss: Takes the place of the objective's.

        Returns:
            Model and objective's state after training, and the losses of the first and the last epoch.
        """
        return self.task.train(
            weights, self.architecture, self.data, self.generator, round=self.round, loss=loss, terms=self.terms
        )


@dataclass(frozen=True)
class Server:
    """The server in one round: it has the public data and no client's data; none is reachable from it.

    Attributes:
        left_out: Clients of the round that sent something, of which a robust rule lets nothing count.
    """

    round: int
    public: Shard | None
    task: Task
    generator: torch.Generator
    left_out: tuple[int, ...] = ()


SERVER_STEPS = ("update_server", "aggregate", "factor")
"""Steps that decide what the server makes of uploads."""


class Method(Validated, ABC):
    """A federated method: hyperparameters as fields, the paper's steps as pure functions.

    Class attributes:
        privacy: What an upload exposes of a client's data, in the wording of FLESD's Table 1.
        needs_public: Whether the method works on public data; a run without is refused at start-up.
        averages_weights: Whether all clients need one architecture.
        takes_old_versions: Whether a client's upload means the same when it started from an older state of the server.
        uploads_follow_weights: Whether uploads follow from trained weights, public data and sample counts alone, and clients
            minimize the objective's loss and nothing else; a class that does not say so itself does not inherit it.
        sends: The class of uploads, whose fields say what of them the server uses.
    """

    needs_public: ClassVar[bool] = False
    averages_weights: ClassVar[bool] = False
    takes_old_versions: ClassVar[bool] = False
    uploads_follow_weights: ClassVar[bool] = False
    sends: ClassVar[type] = Empty

    @property
    def upload_fields(self) -> Mapping[str, Declared]:
        """What is declared of each field of an upload, by name; a method that holds another's adds "base.weights" and so on.

        A class with a server's step of its own that names no `sends` says nothing of what that step makes of them.
        """
        order = type(self).__mro__
        names = ("sends", *SERVER_STEPS)
        sends, *steps = (
            next((i for i, owner in enumerate(order) if name in vars(owner)), len(order)) for name in names
        )
        says = {f.name: f.metadata["sent"] for f in dataclasses.fields(self.sends) if "sent" in f.metadata}
        return says if sends <= min(steps) else one_by_one(says)

    @property
    def secure_sum(self) -> bool:
        """Whether `update_server` depends on uploads through their sums alone, so that it works under `privacy.secure_sum`.

        Sums are means of tensors, weighted by `factor`, and sums of integers; a law checks it.
        """
        says = self.upload_fields.values()
        return any(declared.summed for declared in says) and all(d.summed or d.weight for d in says)

    @property
    def inner(self) -> "Method | None":
        """The method that a field of this one holds, or None."""
        return next((value for value in vars(self).values() if isinstance(value, Method)), None)

    @property
    def follows_rounds(self) -> bool:
        """Whether a step depends on the number of rounds, `task.rounds`: such a run cannot be made longer."""
        return self.inner is not None and self.inner.follows_rounds

    @property
    def has_break_even(self) -> bool:
        """Whether FLESD's Eq. 11 compares the uploads with weights."""
        return False

    def costly_start(self) -> "Method | None":
        """Give this method without what `init_server` ignores, where that trains: runs that begin alike then do so once."""
        return None

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Look at the run before it starts.

        Returns:
            Sentences about what the method will do otherwise than asked, for the user to read.

        Raises:
            ValueError: The method cannot work with this task or this number of public samples.
        """
        return ()

    def rules(self, task: Task) -> Mapping[str, Rule]:
        """Say what becomes of each part of a participant's state between two rounds; by default it stays local."""
        return all_with("local", task.parts)

    @abstractmethod
    def init_server(self, server: Server) -> Any:
        """Make the server's state before round 1."""

    def init_client(self, client: Client) -> Any:
        """Make a client's state before its first round; by default a client remembers nothing."""
        return Empty()

    @abstractmethod
    def download(self, state: Any, client_id: int) -> Any:
        """Select what the server sends to this client at the start of a round."""

    @abstractmethod
    def update_client(self, download: Any, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        """Train on the client's shard; returns (upload, next client state, metrics)."""

    @abstractmethod
    def update_server(self, state: Any, uploads: Mapping[int, Any], server: Server) -> tuple[Any, Metrics]:
        """Aggregate a round; ids that are missing dropped out.

        `uploads` is a lazy mapping in ascending client id, which reads an upload when it is asked for: iterate over it
        once. Memory must not grow with the cohort: hold no upload while later ones are read, but for fields that
        are `held`.
        """

    def factor(self, upload: Any) -> float:
        """Weigh an upload in the server's means: by its own field that is a `weight`, else all count alike."""
        own = ((name, declared) for name, declared in self.upload_fields.items() if "." not in name)
        weight = next((name for name, declared in own if declared.weight), None)
        return 1.0 if weight is None else float(getattr(upload, weight))

    def local_parts(self, state: Any) -> Weights:
        """Find the parts of the global model that stay with a client in its state; by default none."""
        return {}

    @abstractmethod
    def encoders(self, state: Any, clients: Mapping[int, Any]) -> dict[str, Encoder]:
        """Name the encoders that evaluation shall see: "global", or "client-3" and so on."""


__all__ = [
    "Client",
    "Declared",
    "Empty",
    "Encoder",
    "Kind",
    "Loss",
    "Method",
    "Metrics",
    "Model",
    "Release",
    "Rule",
    "Server",
    "Shard",
    "Task",
    "Term",
    "Weights",
    "known",
    "one_by_one",
    "sent",
]
