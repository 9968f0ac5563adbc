"""Secure aggregation, simulated: the server sees the sums of a round's uploads and no upload.

Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: Practical Secure Aggregation for
Privacy-Preserving Machine Learning, CCS 2017 (SecAgg). Bell, Bonawitz, Gascon, Lepoint, Raykova: Secure Single-Server
Aggregation with (Poly)Logarithmic Overhead, CCS 2020 (SecAgg+).

Symbols: x a number of an upload; f its weight in the server's mean (`Method.factor`); s = 24 fraction bits; K clients of a
round; k neighbors of a client, K - 1 in SecAgg.

What crosses is round(f x 2^s) in int64. Masks are uniform in int64 and cancel in sums modulo 2^64, so leaving them out
changes no bit of what the server computes; keys and shares are counted by the papers' formulas. No cryptography runs.

A mean sum(f x) / sum(f) is exact within K 2^-s / (2 sum(f)), at most 2^-25 where factors are 1 or more, and then rounded to
float32. Sums of integers are exact, so no order of clients changes a bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import comb, perm
from typing import Any, Literal

import torch
from torch import Tensor

from rayfed_ssl.method import Client, Metrics, Server, Task, sent
from rayfed_ssl.privacy.wrapper import Wrapper
from rayfed_ssl.trees import ARRAYS, map_leaves, map_together

Protocol = Literal["secagg", "secagg+"]

FRACTION_BITS = 24
RANGE_BITS = 16
MAX_SAMPLES = (1 << 63 - FRACTION_BITS - RANGE_BITS) - 1
"""The largest sum of factors for which numbers up to 2^16 and integers up to 2^40 fit into 63 bits."""

KEY_BYTES = SHARE_BYTES = 32
"""a_K and a_S: 256 bits each."""

CORRUPT, DROPPED, SECURITY_BITS, CORRECTNESS_BITS = 0.05, 0.33, 40, 20
"""gamma, delta, sigma and eta of SecAgg+; sigma and eta are those of its authors' implementation (google-parfait)."""


@dataclass(frozen=True)
class Fixed:
    """Numbers in fixed point, round(f x 2^s): int64."""

    values: Tensor


@dataclass(frozen=True)
class Download:
    """The method's download, and others' public keys and encrypted shares."""

    base: Any
    keys_and_shares: Tensor = sent("keys and shares")


@dataclass(frozen=True)
class Upload:
    """What a client reveals: nothing but its part of the sums.

    Attributes:
        masked: The method's upload in int64, times f, but for counts.
        factor: f 2^s.
        keys_and_shares: As many bytes as the protocol sends; what they hold has no meaning.
    """

    masked: Any = sent("masked values")
    factor: int = sent("masked values")
    keys_and_shares: Tensor = sent("keys and shares")


@cache
def num_neighbors(cohort: int) -> int:
    """Compute k of SecAgg+, O(log K): the fewest neighbors with which a semi-honest server learns nothing but sums.

    Clients stand on a ring in random order, each beside k / 2 neighbors on either side. But for a probability of 2^-sigma
    the honest clients that stay are connected, and nobody has a threshold of corrupt neighbors; but for one of 2^-eta
    everybody has a threshold of neighbors that stay. Where no even number below K - 1 is enough, all are neighbors.
    """
    corrupt, dropped = int(CORRUPT * cohort), int(DROPPED * cohort)
    insecure, failed = 2.0 ** -(SECURITY_BITS + 1), 2.0**-CORRECTNESS_BITS
    for k in range(2, cohort - 1, 2):
        # A ring falls apart where two runs of k / 2 successive clients are missing: a union bound over all pairs.
        disconnected = cohort * (cohort - k - 1) * perm(corrupt + dropped, k) / (2 * perm(cohort, k))
        listening, left = (drawn_among(cohort, number, k) for number in (corrupt, cohort - dropped))
        if disconnected < insecure and any(
            sum(listening[t:]) <= insecure / cohort and sum(left[:t]) < failed / cohort for t in range(1, k + 1)
        ):
            return k
    return cohort - 1


def drawn_among(cohort: int, number: int, k: int) -> list[float]:
    """Probabilities that 0 to k of k random clients are among some number of them."""
    return [comb(number, i) * comb(cohort - number, k - i) / comb(cohort, k) for i in range(k + 1)]


def overhead(protocol: Protocol, cohort: int) -> tuple[int, int]:
    """Bytes of keys and shares that a client receives and sends in a round.

    Down come two public keys and two encrypted shares from each of k neighbors. Up go two keys, two shares for each neighbor
    and one of each neighbor and of itself to unmask: together 2 (k + 1) a_K + (5 k + 1) a_S, for SecAgg the paper's
    2 K a_K + (5 K - 4) a_S.
    """
    k = cohort - 1 if protocol == "secagg" else num_neighbors(cohort)
    return 2 * k * (KEY_BYTES + SHARE_BYTES), 2 * KEY_BYTES + (3 * k + 1) * SHARE_BYTES


def encode(upload: Any, factor: float) -> Any:
    """Bring an upload into int64: floats as `Fixed`, integer tensors times f, counts as they are.

    Raises:
        ValueError: A number is out of range or not finite, or something else than a number is in the upload.
    """

    def leaf(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, int):
            return int(_within(torch.tensor(value), FRACTION_BITS + RANGE_BITS))
        if not isinstance(value, Tensor):
            raise ValueError(f"secure sums are of tensors and integers, and its upload holds a {type(value).__name__}")
        if value.is_floating_point():
            return Fixed((_within(value.double(), RANGE_BITS) * (factor * 2.0**FRACTION_BITS)).round().long())
        return (_within(value.double(), FRACTION_BITS + RANGE_BITS) * factor).round().long()

    return map_leaves(leaf, upload)


def _within(value: Tensor, bits: int) -> Tensor:
    if not bool((value.abs() <= 1 << bits).all()):  # a NaN is not
        raise ValueError(
            f"its upload holds a number beyond {1 << bits:,}, or not finite, which no secure sum takes: lower the learning "
            "rate or set privacy.secure_sum=false"
        )
    return value


def decode(total: Any, factors: float) -> Any:
    """Make of a sum of encoded uploads the one upload that stands for all: means of tensors, sums of counts."""

    def leaf(value: Any) -> Any:
        if isinstance(value, Fixed):
            return (value.values.double() / (factors * 2.0**FRACTION_BITS)).float()
        return (value.double() / factors).round().long() if isinstance(value, Tensor) else value

    return map_leaves(leaf, total, (*ARRAYS, Fixed))


@dataclass(frozen=True, kw_only=True)
class SecureSum(Wrapper):
    """A method whose server gets one upload that stands for a round's cohort.

    Attributes:
        cohort: K, as the configuration has it; who is left out later has exchanged keys with the others.
        samples: The most samples that the clients of a round have.
    """

    protocol: Protocol
    cohort: int
    samples: int

    def check(self, task: Task, num_public: int) -> tuple[str, ...]:
        """Refuse sums of one upload and sums that could overflow; say that no cryptography runs."""
        if self.cohort < 2:
            raise ValueError(
                "privacy.secure_sum hides an upload among others, got 1 client a round: raise clients.fraction or "
                "clients.number"
            )
        if self.samples > MAX_SAMPLES:
            raise ValueError(
                f"privacy.secure_sum could overflow 63 bits above {MAX_SAMPLES:,} samples a round, got {self.samples:,}: "
                "lower clients.fraction or data.train_limit"
            )
        return (
            *self.method.check(task, num_public),
            f"secure aggregation ({self.protocol}) is simulated: sums have a resolution of 2^-{FRACTION_BITS}, masks cancel "
            "and are left out, keys and shares are counted, and no cryptography runs",
        )

    def download(self, state: Any, client_id: int) -> Download:
        """Send the method's download with others' keys and shares."""
        return Download(self.method.download(state, client_id), self._keys_and_shares(0))

    def update_client(self, download: Download, state: Any, client: Client) -> tuple[Upload, Any, Metrics]:
        """Train as the method does, and mask its upload."""
        upload, next_state, metrics = self.method.update_client(download.base, state, client)
        return self.mask(upload, len(client.data)), next_state, metrics

    def mask(self, upload: Any, num_samples: int) -> Upload:
        """Encode an upload.

        Raises:
            ValueError: It, or its factor, is out of range.
        """
        factor = self.method.factor(upload)
        if not 0 <= factor <= num_samples:
            raise ValueError(
                f"an upload's factor lies between 0 and its client's {num_samples} samples, got {factor:g}"
            )
        return Upload(encode(upload, factor), round(factor * 2**FRACTION_BITS), self._keys_and_shares(1))

    def update_server(self, state: Any, uploads: Mapping[int, Upload], server: Server) -> tuple[Any, Metrics]:
        """Let the method aggregate the one upload that stands for all of those that were delivered."""
        return self.method.update_server(state, self.stand_in(uploads), server)

    def stand_in(self, uploads: Mapping[int, Upload]) -> dict[int, Any]:
        """Sum uploads, one at a time, and decode the sum; the smallest id stands for all.

        Raises:
            ValueError: Fewer than two uploads, uploads of different forms, or no factor above 0.
        """
        total, factors, ids = None, 0, list[int]()
        for client_id, upload in uploads.items():
            ids.append(client_id)
            factors += upload.factor
            masked = upload.masked
            total = masked if total is None else map_together(lambda a, b: None if a is None else a + b, total, masked)
        if len(ids) < 2:
            raise ValueError("a secure sum of one upload hides nothing: raise engine.quorum or clients.fraction")
        if factors <= 0:
            raise ValueError("there is nothing to sum: no client sent an upload with a positive factor")
        return {ids[0]: decode(total, factors / 2.0**FRACTION_BITS)}

    def _keys_and_shares(self, direction: int) -> Tensor:
        return torch.zeros(overhead(self.protocol, self.cohort)[direction], dtype=torch.uint8)
