"""Matched representation: is one of the representations that the client sent that of this picture?

Where a method sends representations of private samples (FCL's features, FedCA's dictionary), a server that has a candidate
picture embeds it with the model that it has of the client, and looks for the nearest row. Symbols: q rows of the upload
[K, D], z projections of the candidate; both of unit length. Rows of another width than z are compared with what has their
width: features, or the pixels themselves. There is no paper: it is the plainest test of such a row.
"""

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.attacks.attack import Seen
from rayfed_ssl.attacks.membership import Membership
from rayfed_ssl.attacks.model_theft import embed
from rayfed_ssl.attacks.reconstruction import pixels
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.method import sent_fields
from rayfed_ssl.models import Model


def private_rows(seen: Seen) -> Tensor:
    """Find the rows q [K, D] of private samples in an upload, of unit length; raises ValueError where there are none."""
    for _, declared, value in sent_fields(seen.upload):
        if declared.private and isinstance(value, Tensor) and value.dim() > 1:
            return F.normalize(value.float().flatten(1), dim=1)
    raise ValueError("the upload has no representations of private samples")


def rows_like(seen: Seen, model: Model, samples: Shard, width: int) -> list[Tensor]:
    """Give what samples are in rows of a width, [N, width] of unit length: projections, features, or pixels in two scales.

    Raises:
        ValueError: None of them has this width.
    """
    plain = seen.task.plain(samples.batch(torch.arange(len(samples))))
    features, projections = embed(seen, model, plain)
    kinds = {"projections": [projections], "features": [features], "pixels": [pixels(seen, samples), plain]}
    for rows in kinds.values():
        if rows[0][0].numel() == width:
            return [F.normalize(each.float().flatten(1), dim=1) for each in rows]
    widths = ", ".join(f"{kind} {rows[0][0].numel()}" for kind, rows in kinds.items())
    raise ValueError(f"the upload's rows of private samples have {width} numbers, and of what they could be, {widths}")


@dataclass(frozen=True, kw_only=True)
class MatchedRepresentation(Membership):
    """Largest cosine with a row of the upload."""

    def target(self, seen: Seen) -> str:
        """Representations of private samples."""
        private_rows(seen)
        return "representations"

    def scores(self, seen: Seen, model: Model, samples: Shard) -> Tensor:
        """max_i cos(q_i, z)."""
        rows = private_rows(seen).to(seen.task.device)
        return torch.stack([(z @ rows.T).amax(1) for z in rows_like(seen, model, samples, rows.shape[1])]).amax(0)
