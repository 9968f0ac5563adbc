"""A copy of a client's model, from what it says of public samples.

Where a method sends representations or similarities of public data in the place of weights, a server can train a model of
its own to say the same, and attack that: the shadow model of He, Zhang, Lee, Model Inversion Attacks Against Collaborative
Inference, 2019. Symbols: R representations [P, D], M = R R^T similarities [P, P] of the P public samples.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.aggregation.compression import Packed, SparseRows, fill_rows, symmetric, unpack
from rayfed_ssl.attacks.attack import Seen, uploaded_model
from rayfed_ssl.method import sent_fields
from rayfed_ssl.models import Model
from rayfed_ssl.training.objective import Batch, StepOutput
from rayfed_ssl.training.optimizers import Adam
from rayfed_ssl.training.task import Task

EPOCHS, LR = 50, 1e-3


def _said(seen: Seen) -> tuple[str, Tensor]:
    """Find what an upload says of public samples: "representations", R, or "similarities", M; a ValueError if nothing."""
    for _, declared, value in sent_fields(seen.upload):
        kind = declared.kind
        if kind == "representations" and isinstance(value, Packed):
            return kind, F.normalize(unpack(value), dim=1)
        if kind == "similarities":
            if isinstance(value, SparseRows):
                return kind, fill_rows(value)
            return kind, symmetric(unpack(value).squeeze(0), offset=1).fill_diagonal_(1.0)
    raise ValueError("the upload has neither weights nor representations or similarities of public samples")


def attacked(seen: Seen) -> Model:
    """Give the client's model, or a copy trained on what it says of public samples.

    Raises:
        ValueError: The upload has neither weights nor anything of public samples.
    """
    if seen.sent:
        return uploaded_model(seen)
    kind, known = _said(seen)
    assert seen.public is not None, "a method that speaks of public samples has some"
    model, known = seen.task.model(seen.received, seen.architecture), known.to(seen.task.device)

    loss = partial(imitation_loss, seen.task, kind, known)
    batch = min(seen.task.batch, len(seen.public))
    seen.task.fit(model, seen.public, seen.generator(), loss=loss, epochs=EPOCHS, batch=batch, optimizer=Adam(lr=LR))
    return model.eval()


def imitation_loss(task: Task, kind: str, known: Tensor, model: Model, state: nn.Module, batch: Batch) -> StepOutput:
    """Compare projections of public samples with what the client says of them, rows [P, p] or similarities [P, P]."""
    _, projections = model(task.plain(batch.images))
    rows = F.normalize(projections.float(), dim=1)
    if kind == "representations":
        return StepOutput((rows - known[batch.index]).square().sum(1).mean(), projections)
    return StepOutput((rows @ rows.T - known[batch.index][:, batch.index]).square().mean(), projections)


def target_kind(seen: Seen) -> str:
    """Name the kind of content that `attacked` takes a model from; raises ValueError where there is none."""
    if seen.sent:
        uploaded_model(seen)
        return "weights"
    return _said(seen)[0]


@torch.no_grad()
def embed(seen: Seen, model: Model, images: Tensor) -> tuple[Tensor, Tensor]:
    """Compute features [N, d] and projections [N, p] of normalized images in evaluation mode, float32."""
    model.eval()
    rows = [model(part) for part in images.split(256)]
    return torch.cat([h.float() for h, _ in rows]), torch.cat([z.float() for _, z in rows])
