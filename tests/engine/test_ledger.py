"""The ledger: bytes by hand arithmetic."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from rayfed_ssl.aggregation.compression import Packed, SparseRows
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.ledger import BreakEven, LedgerEntry, account, total
from rayfed_ssl.method import Empty, sent
from rayfed_ssl.methods import fedavg, flesd

Open = Callable[..., Federation]

SPARSE = SparseRows(torch.zeros(45, 10, dtype=torch.uint16), Packed(torch.zeros(45, 10).half(), None), 45)
FLOAT32 = Packed(torch.zeros(45, 24), None)
INT8 = Packed(torch.zeros(45, 24, dtype=torch.int8), torch.zeros(45))


@pytest.mark.parametrize(
    ("upload", "kind", "field", "size"),
    [
        (flesd.Upload(representations=FLOAT32), "representations", "representations", 45 * 24 * 4),
        (
            flesd.Upload(representations=INT8),
            "representations",
            "representations",
            45 * 24 + 45 * 4,
        ),  # and a scale a row
        (flesd.Upload(largest_similarities=SPARSE), "similarities", "largest_similarities", 45 * 10 * (2 + 2) + 8),
    ],
)
def test_uploads_cost_the_bytes_of_their_numbers(upload: flesd.Upload, kind: str, field: str, size: int):
    assert account(upload, 2, 5, "up") == (LedgerEntry(2, 5, "up", kind, field, size),)


def test_weights_and_sample_counts_are_entries_of_their_own():
    weights = {"w": torch.zeros(3, 5), "steps": torch.tensor(1)}
    assert [entry.bytes for entry in account(fedavg.Upload({"w": torch.zeros(2)}, 0), 1, 2, "up")] == [8, 8]  # a zero
    assert account(fedavg.Upload(weights, 77), 1, 2, "up") == (
        LedgerEntry(1, 2, "up", "weights", "weights", 3 * 5 * 4 + 8),
        LedgerEntry(1, 2, "up", "statistics", "num_samples", 8),
    )


def test_what_is_not_sent_costs_nothing():
    assert account(flesd.Download(None), 1, 0, "down") == ()
    assert account(Empty(), 1, 0, "up") == ()


def test_a_message_inside_a_message_is_counted_field_by_field():
    @dataclass(frozen=True)
    class Outer:
        base: object
        relation: torch.Tensor | None = sent("relation matrix")

    outer = Outer(Outer(fedavg.Upload({"w": torch.zeros(2)}, 7), None), torch.zeros(3))
    assert account(outer, 1, 2, "up") == (
        LedgerEntry(1, 2, "up", "weights", "base.base.weights", 8),
        LedgerEntry(1, 2, "up", "statistics", "base.base.num_samples", 8),
        LedgerEntry(1, 2, "up", "relation matrix", "relation", 12),
    )
    assert account(Outer(Empty(), None), 1, 2, "up") == ()


def test_an_undeclared_field_is_refused():
    @dataclass(frozen=True)
    class Outer:
        base: object

    for message in (Outer(3), Outer(Outer(3))):
        with pytest.raises(TypeError, match=r"Outer\.base does not say what it reveals: declare it with sent\(kind\)"):
            account(message, 1, 0, "up")


def test_totals_by_direction():
    entries = [LedgerEntry(1, 0, "up", "weights", "w", 3), LedgerEntry(1, 0, "down", "weights", "w", 5)]
    assert (total(entries), total(entries, "up"), total(entries, "down"), total([])) == (8, 3, 5, 0)


def test_public_images_are_received_once_by_each_client_before_round_1(open_tiny: Open):
    federation = open_tiny("flesd")
    assert federation.public_entries() == tuple(
        LedgerEntry(0, client_id, "down", "public images", "public", 45 * 1 * 8 * 8) for client_id in (0, 1, 2)
    )
    assert open_tiny("fedavg").public_entries() == ()


def test_eq_11_with_the_numbers_of_the_paper():
    even = BreakEven(num_public=10_000, dim=512, num_parameters=11_000_000, rounds=2)
    assert even.num_public * even.dim == 5_120_000
    assert even.num_public * even.dim < even.num_parameters
    # omega |D_pub| d_k <= omega' |f_k| holds from omega' = 2 * 5.12 / 11 on; one division, one rounding.
    assert even.rounds_of_averaging == pytest.approx(10.24 / 11, rel=1e-15)


def test_eq_11_counts_the_encoders_parameters_of_methods_that_send_representations(open_tiny: Open):
    federation = open_tiny("flesd", "model.encoder=resnet18")
    encoder = federation.task.model(federation.task.initial_weights()).encoder
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    assert federation.break_even() == BreakEven(45, 24, parameters, 2)
    assert open_tiny("fedavg").break_even() is None
