"""The section of a run's configuration that says what uploads may reveal."""

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from rayfed_ssl.config.choices import Section
from rayfed_ssl.errors import ConfigError


def _norms(value: Any) -> Any:
    numbers = list(value.values()) if isinstance(value, dict) else [value]
    if value is None or all(type(number) in (int, float) and 0 < number < math.inf for number in numbers):
        return value
    raise ValueError(f"must be a number above 0, or one for each field of an upload, got {value!r}")


MIN_NOISE = 1e-6
"""Smallest noise multiplier above 0."""

Norms = Annotated[float | dict[str, float] | None, BeforeValidator(_norms)]


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
    clip: Norms = None
    """Largest norm of what a client sends, and differential privacy with it; {weights: 1.0, correlation: 0.1} for several
    fields of an upload. Under `level=sample` of a sample's gradient.
    """
    noise: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Noise multiplier z: standard deviation of the Gaussian noise over `clip`. 0 bounds uploads and gives no privacy."""
    level: Literal["client", "sample"] = "client"
    """What is hidden: all data of a "client", by its clipped upload, or a "sample", by its clipped gradients (DP-SGD)."""
    clip_quantile: float | None = Field(None, gt=0, lt=1)
    """Let the norm to which uploads are clipped follow this quantile of their norms, from `clip` on (Andrew et al. 2021)."""
    delta: float = Field(1e-5, gt=0, lt=1)
    """Probability of exceeding epsilon; below one over the number of clients."""

    @model_validator(mode="after")
    def _check_clip(self) -> "Privacy":
        names = ("noise", "level", "clip_quantile", "delta")
        ignored = [name for name in names if getattr(self, name) != type(self).model_fields[name].default]
        if self.clip is None and ignored:
            raise ConfigError(f"{ignored[0]} has no meaning without clip: set both or neither")
        if 0 < self.noise < MIN_NOISE:
            raise ConfigError(
                f"noise must be 0 or at least {MIN_NOISE:g}, got {self.noise:g}: less has no finite epsilon"
            )
        if self.clip is not None and self.secure_sum:
            raise ConfigError(
                "clip and secure_sum together are not counted: the budget follows the number of uploads, and a secure sum "
                "shows one; set one of both"
            )
        if self.level == "sample" and (self.clip_quantile is not None or isinstance(self.clip, dict)):
            raise ConfigError(
                "level=sample clips gradients to one norm: remove clip_quantile, and set clip to a number"
            )
        return self
