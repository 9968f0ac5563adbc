"""Whether a server's step depends on uploads through their sums alone, found out by mixing the uploads of a round."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.round_loop import ServerError
from rayfed_ssl.method import Method
from rayfed_ssl.privacy.secure_sum import FRACTION_BITS, SecureSum
from rayfed_ssl.testing.trial import Trial
from rayfed_ssl.trees import leaves, map_together

MIXTURE = 0.1
"""By how much of the clients' mean magnitude each number of an upload is moved."""

TOLERANCE = 1e-4
"""Of a tensor's largest magnitude, beside the resolution of fixed point. Rounding of mixed uploads to float32 moves means by
about 1e-7 of it, and a server that looks at single uploads moves its state by some part of `MIXTURE`.
"""


def dependence(trial: Trial) -> str | None:
    """Say what beside the uploads' sums decides about the server's step in a run, or None if nothing does."""
    federation = trial.federation
    for number, round in enumerate(trial.played, 1):
        if len(round.uploads) < 2:
            continue
        try:
            for what, uploads in replacements(federation, round.uploads):
                after = federation.update_server(number, round.server_before, uploads)
                if where := difference((after.state, after.metrics), (round.server, round.metrics)):
                    return f"{what} gives another {where} in round {number}"
        except (ValueError, ServerError) as error:
            return f"uploads of round {number} have no sum that the server works with ({error})"
    return None


def replacements(federation: Federation, uploads: Mapping[int, Any]) -> Iterator[tuple[str, Mapping[int, Any]]]:
    """Make other uploads with the same sums: mixed ones, and the one that the server gets under `privacy.secure_sum`."""
    mixed = mix(federation.method, list(uploads.values()))
    yield "a mixture of uploads with their sums", dict(zip(uploads, mixed, strict=True))
    sizes = {client_id: len(federation.shards[client_id]) for client_id in uploads}
    secure = SecureSum(method=federation.method, protocol="secagg", cohort=len(sizes), samples=sum(sizes.values()))
    masked = {client_id: secure.mask(upload, sizes[client_id]) for client_id, upload in uploads.items()}
    yield "one upload that stands for all", secure.stand_in(masked)


def mix(method: Method, uploads: Sequence[Any]) -> list[Any]:
    """Move each float of the uploads at random, so that their sum weighted by `factor` stays.

    Raises:
        ValueError: Uploads of different forms.
    """
    factors = torch.tensor([method.factor(upload) for upload in uploads], dtype=torch.float64)

    def moved(position: int, draws: torch.Generator, *values: Any) -> Any:
        if not (isinstance(values[0], Tensor) and values[0].is_floating_point()):
            return values[position]
        stacked = torch.stack(values).double()
        noise = torch.randn(stacked.shape, generator=draws, dtype=torch.float64)
        noise = noise - torch.tensordot(factors, noise, 1) / factors.sum().clamp(min=1e-9)
        return (stacked + MIXTURE * stacked.abs().mean(dim=0) * noise)[position].to(values[0].dtype)

    # Every client's pass draws the same noise.
    return [
        map_together(partial(moved, position, torch.Generator().manual_seed(0)), *uploads)
        for position in range(len(uploads))
    ]


def difference(one: tuple[Any, Any], other: tuple[Any, Any]) -> str | None:
    """Name the first place in which two pairs of state and metrics differ by more than the tolerance, or None."""
    values, expected = (dict(leaves(state, "state")) | dict(leaves(m, "metrics")) for state, m in (one, other))
    if values.keys() != expected.keys():
        return f"set of values, without or with {min(values.keys() ^ expected.keys())},"
    for path, value in values.items():
        if not _close(value, expected[path]):
            return f"{path}"
    return None


def _close(value: Any, expected: Any) -> bool:
    if isinstance(expected, Tensor) and expected.is_floating_point():
        largest = expected.abs().amax() if expected.numel() else 0.0
        return bool(((value - expected).abs() <= TOLERANCE * largest + 2.0**-FRACTION_BITS).all())
    if isinstance(expected, float):
        return math.isclose(value, expected, rel_tol=TOLERANCE, abs_tol=2.0**-FRACTION_BITS)
    return torch.equal(value, expected) if isinstance(expected, Tensor) else bool(value == expected)
