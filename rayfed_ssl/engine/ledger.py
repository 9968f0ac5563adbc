"""The communication ledger: what crossed a client's boundary, of which kind, and how many bytes."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from rayfed_ssl.method import sent_fields
from rayfed_ssl.trees import is_node, nbytes

Direction = Literal["down", "up"]


@dataclass(frozen=True)
class LedgerEntry:
    """One kind of content that one client received or sent in one round.

    Attributes:
        round: From 1; round 0 is what clients receive before the first.
        kind: "weights", "representations", "similarities", "statistics", ...
        field: The field of the Download or Upload; "base.weights" for one of a download that holds another method's.
        bytes: Size of the content, uncompressed and without framing.
    """

    round: int
    client: int
    direction: Direction
    kind: str
    field: str
    bytes: int


def account(message: Any, round: int, client: int, direction: Direction) -> tuple[LedgerEntry, ...]:
    """List what a Download or an Upload carries; fields that are None are left out, nested messages are entered.

    Raises:
        TypeError: A field does not declare what kind of content it holds.
    """
    assert is_node(message), "downloads and uploads are dataclasses"
    return tuple(
        LedgerEntry(round, client, direction, declared.kind, name, nbytes(value))
        for name, declared, value in sent_fields(message)
    )


def total(entries: Iterable[LedgerEntry], direction: Direction | None = None) -> int:
    """Sum the bytes of one direction or of both."""
    return sum(entry.bytes for entry in entries if direction in (None, entry.direction))


@dataclass(frozen=True)
class BreakEven:
    """FLESD's Eq. 11 for the run at hand: omega |D_pub| d_k <= omega' |f_k|.

    Attributes:
        num_public: |D_pub|.
        dim: d_k, width of a representation.
        num_parameters: |f_k|, parameters of the global model without its heads.
        rounds: omega, rounds in which representations are sent.
    """

    num_public: NonNegativeInt
    dim: NonNegativeInt
    num_parameters: PositiveInt
    rounds: NonNegativeInt

    @property
    def rounds_of_averaging(self) -> float:
        """The omega' from which on weight averaging sends more numbers up than representations do."""
        return self.rounds * self.num_public * self.dim / self.num_parameters

    @property
    def text(self) -> str:
        """The equation with its numbers."""
        numbers = self.rounds * self.num_public * self.dim
        return (
            f"FLESD Eq. 11: {self.rounds} rounds x {self.num_public:,} public samples x {self.dim} dimensions = {numbers:,} "
            f"numbers up per client, as many as {self.rounds_of_averaging:.2f} rounds of averaging {self.num_parameters:,} "
            "parameters"
        )
