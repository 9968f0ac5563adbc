"""FedX's local objective: SimCLR, and a predictor that FedX compares with what the global model projects.

Han, Park, Wu, Kim, Wu, Xie, Cha: FedX: Unsupervised Federated Learning with Cross Knowledge Distillation, ECCV 2022; widths
are those of the authors' code. Alone it trains as SimCLR does; `rayfed_ssl.methods.fedx` holds the distillation.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import nn

from rayfed_ssl.models import build_head
from rayfed_ssl.objectives.simclr import SimCLR
from rayfed_ssl.training.context import Context
from rayfed_ssl.training.objective import Head
from rayfed_ssl.training.state_parts import Rule


@dataclass(frozen=True, kw_only=True)
class FedXObjective(SimCLR):
    """SimCLR with a predictor; it works with method=fedx alone."""

    belongs_to: ClassVar[str | None] = "fedx"
    takes_small_crops: ClassVar[bool] = False
    parts: ClassVar[Mapping[str, Rule]] = {"predictor": "averaged"}
    temperature: PositiveFloat = 0.1
    """t (code)."""
    form: Literal["infonce", "ntxent"] = "ntxent"
    """Form of the contrast of a client's own projections: "ntxent" (code) or "infonce"."""
    encode: Literal["together"] = "together"
    """Both views and the anchors pass the network in one batch (code)."""
    projector: Literal["mlp", "mlp-bn"] = "mlp"
    """As SimCLR's; without batch-norm in the code."""
    hidden: PositiveInt | None = 256
    """Width of its hidden layer (code); None takes the encoder's d."""

    def chance_loss(self, batch: int) -> None:
        """Give no number: the loss of FedX has terms besides the contrast."""

    @property
    def head(self) -> Head:
        """The projector, to 256 dimensions (code)."""
        return replace(super().head, dim=256)

    def heads(self, context: Context, feature_dim: int, projection_dim: int) -> dict[str, nn.Module]:
        """The predictor, two layers as wide as the projections (code)."""
        return {"predictor": build_head("flesd", projection_dim, out=projection_dim)}
