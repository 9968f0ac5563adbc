"""Matched representation: is one of the representations that the client sent that of this picture?

Where a method sends representations of private samples (FCL's features, FedCA's dictionary), a server that has a candidate
picture embeds it with the model that it has of the client, and looks for the nearest row. Symbols: q rows of the upload
[K, D], z projections of the candidate; both of unit length. There is no paper: it is the plainest test of such a row.
"""

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.attacks.attack import Seen
from rayfed_ssl.attacks.membership import Membership
from rayfed_ssl.attacks.model_theft import embed
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.method import sent_fields
from rayfed_ssl.models import Model


def private_rows(seen: Seen) -> Tensor:
    """Find the rows q of private samples in an upload, of unit length; raises ValueError where there are none."""
    for _, declared, value in sent_fields(seen.upload):
        if declared["private"] and isinstance(value, Tensor):
            return F.normalize(value.float(), dim=1)
    raise ValueError("the upload has no representations of private samples")


@dataclass(frozen=True, kw_only=True)
class MatchedRepresentation(Membership):
    """Largest cosine with a row of the upload."""

    def target(self, seen: Seen) -> str:
        """Representations of private samples."""
        private_rows(seen)
        return "representations"

    def scores(self, seen: Seen, model: Model, samples: Shard) -> Tensor:
        """max_i cos(q_i, z)."""
        _, z = embed(seen, model, seen.task.plain(samples.batch(torch.arange(len(samples)))))
        return (F.normalize(z, dim=1) @ private_rows(seen).to(z.device).T).amax(1)
