"""The section of a run's configuration that says what uploads may reveal."""

from typing import Literal

from pydantic import Field

from rayfed_ssl.config.choices import Section


class Privacy(Section):
    """What uploads may reveal, and what an audit compares with."""

    held_out: float | None = Field(None, gt=0, lt=1)
    """Keep each client's samples from training with this probability: `rayfed-ssl audit` needs some of which it knows that
    no client has seen them.
    """
    canaries: int = Field(0, ge=0)
    """Of so many samples of each client, a fair coin each decides whether it is trained on: what a lower bound of one run's
    epsilon is computed from.
    """
    secure_sum: bool = False
    """Simulate secure aggregation: the server sees sums of a round's uploads alone, in fixed point."""
    secure_protocol: Literal["secagg", "secagg+"] = "secagg"
    """Whose keys and shares the ledger counts: "secagg" between all clients of a round (Bonawitz et al. 2017) or "secagg+"
    between neighbors (Bell et al. 2020).
    """
