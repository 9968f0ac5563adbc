"""A copy of a client's model, from what it says of public samples.

Where a method sends representations or similarities of public data in the place of weights, a server can train a model of
its own to say the same, and attack that: the shadow model of He, Zhang, Lee, Model Inversion Attacks Against Collaborative
Inference, 2019. Symbols: R representations [P, D], M = R R^T similarities [P, P] of the P public samples.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.aggregation.compression import Packed, SparseRows, fill_rows, unpack
from rayfed_ssl.attacks.attack import Seen, uploaded_model
from rayfed_ssl.method import sent_fields
from rayfed_ssl.models import Model
from rayfed_ssl.training.objective import Batch, StepOutput
from rayfed_ssl.training.optimizers import Adam

EPOCHS, LR = 50, 1e-3


def public_content(seen: Seen) -> tuple[str, Tensor] | None:
    """Find what an upload says of public samples: "representations", R, or "similarities", M; None where it says nothing."""
    for _, declared, value in sent_fields(seen.upload):
        kind = str(declared["kind"])
        if kind == "representations" and isinstance(value, Packed):
            return kind, F.normalize(unpack(value), dim=1)
        if kind == "similarities":
            return kind, fill_rows(value) if isinstance(value, SparseRows) else unpack(value)
    return None


def attacked(seen: Seen) -> tuple[str, Model]:
    """Give the client's model, or a copy trained on what it says of public samples, and the kind of content that gave it.

    Raises:
        ValueError: The upload has neither weights nor anything of public samples.
    """
    if seen.sent:
        return "weights", uploaded_model(seen)
    content = public_content(seen)
    if content is None or seen.public is None:
        raise ValueError("the upload has neither weights nor representations or similarities of public samples")
    kind, known = content
    model, known = seen.task.model(seen.received, seen.architecture), known.to(seen.task.device)

    def loss(model: Model, state: nn.Module, batch: Batch) -> StepOutput:
        _, projections = model(seen.task.plain(batch.images))
        rows = F.normalize(projections.float(), dim=1)
        if kind == "representations":
            return StepOutput((rows - known[batch.index]).square().sum(1).mean(), projections)
        return StepOutput((rows @ rows.T - known[batch.index][:, batch.index]).square().mean(), projections)

    batch = min(seen.task.batch, len(seen.public))
    seen.task.fit(model, seen.public, seen.generator(), loss=loss, epochs=EPOCHS, batch=batch, optimizer=Adam(lr=LR))
    return kind, model.eval()


def target_kind(seen: Seen) -> str:
    """Name the kind of content that `attacked` takes a model from; raises ValueError where there is none."""
    if seen.sent:
        uploaded_model(seen)
        return "weights"
    content = public_content(seen)
    if content is None or seen.public is None:
        raise ValueError("the upload has neither weights nor representations or similarities of public samples")
    return content[0]


@torch.no_grad()
def embed(seen: Seen, model: Model, images: Tensor) -> tuple[Tensor, Tensor]:
    """Compute features [N, d] and projections [N, p] of normalized images in evaluation mode, float32."""
    model.eval()
    rows = [model(part) for part in images.split(256)]
    return torch.cat([h.float() for h, _ in rows]), torch.cat([z.float() for _, z in rows])
