"""Hostile clients: a method around a method.

Hostile clients that send something else are simulated where uploads arrive: after the honest ones, in the server's step, so
that the number of actors changes no bit. What they compute before is honest, and what they send is as large as it was. Those
that train on something else do so where clients train.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rayfed_ssl.adversaries.adversary import Adversary, Insider, Numbers, TrainingAdversary, UploadAdversary
from rayfed_ssl.adversaries.omniscient import farthest
from rayfed_ssl.method import Client, Declared, Metrics, Server, Task
from rayfed_ssl.privacy.client_level import map_fields
from rayfed_ssl.privacy.robust import HONEST_LOST, HOSTILE_FOUND, WEIGHT, Robust, differences, held_fields
from rayfed_ssl.privacy.secure_sum import drawn_among
from rayfed_ssl.privacy.wrapper import Wrapper
from rayfed_ssl.randomness.seeds import Purpose, derive_seed, generator
from rayfed_ssl.training.state_parts import is_statistic
from rayfed_ssl.trees import leaves, map_leaves, tensor_mean


@dataclass(frozen=True, kw_only=True)
class Hostile(Wrapper):
    """A method some of whose clients are hostile.

    Attributes:
        adversary: What they do.
        insiders: Who they are, and what each knows.
    """

    takes_old_versions = property(lambda self: self.method.takes_old_versions)
    adversary: Adversary
    insiders: Mapping[int, Insider]

    @property
    def ids(self) -> tuple[int, ...]:
        """Who they are."""
        return tuple(self.insiders)

    @property
    def upload_fields(self) -> Mapping[str, Declared]:
        """What the method says, but for sums and releases where uploads are forged beside each other."""
        return held_fields(self.method) if isinstance(self.adversary, UploadAdversary) else self.method.upload_fields

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Say who is hostile, and how often a sampled cohort has more of them than a rule takes."""
        said = self.method.check(task, num_public)
        if isinstance(self.adversary, TrainingAdversary) and self.adversary.tunes and not self._weight_fields:
            raise ValueError(
                f"{type(self.adversary).__name__} tunes weights that a client sends, and {type(self.method).__name__} sends "
                "none: take fedavg or another method that sends weights, or another adversary"
            )
        if isinstance(self.adversary, UploadAdversary) and self.adversary.searches and not self.averages_weights:
            raise ValueError(
                f"adversary.tau=best tries what the server makes of weights, and {type(self.method).__name__} averages "
                "none: give adversary.tau a number"
            )
        kept = [part for part in ("encoder", "batch_norm") if self.method.rules(task).get(part) in ("local", "reset")]
        if isinstance(self.adversary, TrainingAdversary) and self.adversary.tunes and kept:
            raise ValueError(
                f"{type(self.adversary).__name__} tunes an encoder that a client sends, and method.parts.{kept[0]}="
                f"{self.method.rules(task)[kept[0]]} keeps a part of it: leave it out, or take another adversary"
            )
        listed = ", ".join(map(str, self.ids))
        notes = [f"hostile clients ({type(self.adversary).__name__}, from round {self.adversary.from_round}): {listed}"]
        if isinstance(self.method, Robust):
            taken = self.method.rule.hostile
            more = sum(drawn_among(task.num_clients, len(self.ids), task.cohort_size)[taken + 1 :])
            if more > 0:
                notes.append(
                    f"a round has more than robust.hostile={taken} hostile clients with a probability of {more:.2g}: the "
                    "rule promises nothing of such rounds"
                )
        return (*said, *notes)

    def init_client(self, client: Client) -> Any:
        """Remember what the method makes a client remember of what it trains on."""
        return self.method.init_client(self._attacking(client)[0])

    def update_client(self, download: Any, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        """Train as the method does, on what a hostile client trains on, and tune the weights that it sends."""
        attacking, adversary = self._attacking(client)
        upload, after, metrics = self.method.update_client(download, state, attacking)
        if adversary is None or not adversary.tunes:
            return upload, after, metrics

        def tuned(name: str, value: Any) -> Any:
            insider, task = self.insiders[client.id], attacking.task
            tunes = name in self._weight_fields and isinstance(value, dict)
            return adversary.tune(value, client.architecture, attacking.data, task, insider) if tunes else value

        return map_fields(tuned, upload), after, metrics

    @property
    def _weight_fields(self) -> tuple[str, ...]:
        return tuple(name for name, says in self.method.upload_fields.items() if says.kind == "weights")

    def _attacking(self, client: Client) -> tuple[Client, TrainingAdversary | None]:
        """Give a client as it trains, and the adversary if it is hostile there."""
        insider, adversary = self.insiders.get(client.id), self.adversary
        if insider is None or client.round < adversary.from_round or not isinstance(adversary, TrainingAdversary):
            return client, None
        data, task = adversary.poison(client.data, insider), adversary.settings(client.task)
        return replace(client, data=data, task=task), adversary

    def update_server(self, state: Any, uploads: Mapping[int, Any], server: Server) -> tuple[Any, Metrics]:
        """Replace what is forged, then aggregate; reports how many of the two kinds a rule gave no weight."""
        if isinstance(self.adversary, UploadAdversary):
            uploads = self._with_forged(self.adversary, state, dict(uploads.items()), server)
        after, metrics = self.method.update_server(state, uploads, server)
        if server.round >= self.adversary.from_round and HONEST_LOST in metrics:
            found = sum(metrics.get(f"{WEIGHT}{client_id}") == 0 for client_id in self.insiders)
            metrics = metrics | {HOSTILE_FOUND: float(found), HONEST_LOST: metrics[HONEST_LOST] - found}
        return after, metrics

    def _with_forged(
        self, adversary: UploadAdversary, state: Any, uploads: dict[int, Any], server: Server
    ) -> dict[int, Any]:
        hostile = [client_id for client_id in uploads if client_id in self.insiders]
        honest = [dict(leaves(upload)) for client_id, upload in uploads.items() if client_id not in self.insiders]
        if server.round < adversary.from_round or not hostile or (adversary.sees_honest and not honest):
            return uploads

        sources = {
            client_id: _Source(uploads[client_id], dict(leaves(self.method.download(state, client_id))))
            for client_id in hostile
        }

        def sent(strength: float) -> dict[int, Any]:
            forged = dict(uploads)
            for client_id, source in sources.items():
                seed = derive_seed(server.task.seed, Purpose.ADVERSARY, round=server.round, participant=client_id)
                forged[client_id] = source.forged(adversary, honest, strength, generator(seed))
            return forged

        if adversary.searches:
            means = _mean_parameters(honest)
            strength = farthest(lambda tried: self._distance(state, sent(tried), means, server))
        else:
            first = sources[hostile[0]]
            strength = adversary.strength(lambda: first.parameters(honest), len(uploads), len(hostile))
        return sent(strength)

    def _distance(self, state: Any, uploads: Mapping[int, Any], means: Mapping[str, Tensor], server: Server) -> float:
        """How far what clients receive next is from the mean of honest uploads, over all parameters."""
        draws = torch.Generator()
        draws.set_state(server.generator.get_state())
        after, _ = self.method.update_server(state, uploads, replace(server, generator=draws))
        square = 0.0
        for path, value in leaves(self.method.download(after, min(uploads))):
            if path in means:
                square += float((value.double() - means[path]).square().sum())
        return math.sqrt(square)


def _mean_parameters(honest: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Mean of the parameters that honest uploads hold, by path, float64."""
    means: dict[str, Tensor] = {}
    for path in dict.fromkeys(path for one in honest for path in one if "/weights/" in path and not is_statistic(path)):
        mean = tensor_mean(one[path].double() for one in honest if path in one and one[path].is_floating_point())
        means |= {} if mean is None else {path: mean}
    return means


class _Source:
    """What a hostile client has computed and received, piece by piece beside the honest uploads."""

    def __init__(self, upload: Any, received: Mapping[str, Any]) -> None:
        self.upload = upload
        self.own = {
            path: leaf for path, leaf in leaves(upload) if isinstance(leaf, Tensor) and leaf.is_floating_point()
        }
        zeros = {path: torch.zeros((), dtype=leaf.dtype).expand(leaf.shape) for path, leaf in self.own.items()}
        self.origins = {
            path: received.get(path, zeros[path]) if "/weights/" in path else zeros[path] for path in self.own
        }

    def parameters(self, honest: Sequence[Mapping[str, Any]]) -> Iterator[Numbers]:
        """Give the pieces that all honest clients have as well, but for statistics, as computed."""
        for path, leaf in self.own.items():
            if not is_statistic(path):
                yield from (piece for piece in self._pieces(path, leaf, honest) if len(piece.honest) == len(honest) > 0)

    def _pieces(self, path: str, rows: Tensor, honest: Sequence[Mapping[str, Any]]) -> Iterator[Numbers]:
        alike = [one[path] for one in honest if getattr(one.get(path), "shape", None) == rows.shape]
        for piece in differences(self.origins[path], [rows, *alike]):
            yield Numbers(piece[0], piece[1:])

    def forged(
        self, adversary: UploadAdversary, honest: Sequence[Mapping[str, Any]], strength: float, draws: torch.Generator
    ) -> Any:
        """Make what is sent of the upload."""
        rows = {p: v if "/weights/" in p or v.dim() < 2 else adversary.rearrange(v, draws) for p, v in self.own.items()}
        forged: dict[int, Tensor] = {}
        for path, leaf in self.own.items():
            sent = [
                adversary.forge(piece, strength, draws) if len(piece.honest) or not adversary.sees_honest else piece.own
                for piece in self._pieces(path, rows[path], honest)
            ]
            value = torch.cat(sent).view(leaf.shape) + self.origins[path].double()
            forged[id(leaf)] = (value.clamp(min=0) if path.endswith("running_var") else value).to(leaf.dtype)
            if not bool(forged[id(leaf)].isfinite().all()):
                raise ValueError(
                    f"what {type(adversary).__name__} sends as {path} is not finite, which no server takes: give "
                    "the adversary smaller numbers"
                )
        return map_leaves(lambda leaf: forged.get(id(leaf), leaf), self.upload)
