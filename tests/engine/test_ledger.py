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


def test_an_upload_of_representations_costs_four_bytes_a_number():
    upload = flesd.Upload(representations=Packed(torch.zeros(45, 24), None))
    assert account(upload, 2, 5, "up") == (LedgerEntry(2, 5, "up", "representations", "representations", 45 * 24 * 4),)


def test_int8_costs_a_byte_a_number_and_a_scale_a_row():
    upload = flesd.Upload(representations=Packed(torch.zeros(45, 24, dtype=torch.int8), torch.zeros(45)))
    assert total(account(upload, 1, 0, "up")) == 45 * 24 + 45 * 4


def test_sparse_rows_cost_a_column_and_a_value_an_entry():
    sparse = SparseRows(torch.zeros(45, 10, dtype=torch.uint16), Packed(torch.zeros(45, 10).half(), None), 45)
    (entry,) = account(flesd.Upload(largest_similarities=sparse), 1, 0, "up")
    assert (entry.kind, entry.field, entry.bytes) == ("similarities", "largest_similarities", 45 * 10 * (2 + 2) + 8)


def test_weights_and_sample_counts_are_entries_of_their_own():
    weights = {"w": torch.zeros(3, 5), "steps": torch.tensor(1)}
    assert account(fedavg.Upload(weights, 77), 1, 2, "up") == (
        LedgerEntry(1, 2, "up", "weights", "weights", 3 * 5 * 4 + 8),
        LedgerEntry(1, 2, "up", "statistics", "num_samples", 8),
    )


def test_a_zero_is_sent_too():
    assert [entry.bytes for entry in account(fedavg.Upload({"w": torch.zeros(2)}, 0), 1, 2, "up")] == [8, 8]


def test_what_is_not_sent_costs_nothing():
    assert account(flesd.Download(None), 1, 0, "down") == ()
    assert account(Empty(), 1, 0, "up") == ()


def test_a_field_that_does_not_say_what_it_reveals_is_refused():
    @dataclass(frozen=True)
    class Careless:
        weights: int = sent("weights")
        labels: int = 0

    with pytest.raises(TypeError, match=r"Careless\.labels does not say what it reveals: declare it with sent\(kind\)"):
        account(Careless(1, 2), 1, 0, "up")


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


def test_an_undeclared_field_inside_a_message_is_refused_too():
    @dataclass(frozen=True)
    class Outer:
        base: object

    with pytest.raises(TypeError, match=r"Outer\.base does not say what it reveals"):
        account(Outer(Outer(3)), 1, 0, "up")


def test_totals_by_direction():
    entries = [LedgerEntry(1, 0, "up", "weights", "w", 3), LedgerEntry(1, 0, "down", "weights", "w", 5)]
    assert (total(entries), total(entries, "up"), total(entries, "down"), total([])) == (8, 3, 5, 0)


def test_public_images_are_received_once_by_each_client_before_round_1(open_tiny: Callable[..., Federation]):
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


def test_eq_11_counts_the_encoders_parameters_and_nothing_else(open_tiny: Callable[..., Federation]):
    federation = open_tiny("flesd", "model.encoder=resnet18")
    even = federation.break_even()
    encoder = federation.task.model(federation.task.initial_weights()).encoder
    assert even == BreakEven(45, 24, sum(parameter.numel() for parameter in encoder.parameters()), 2)


def test_eq_11_is_for_methods_that_send_representations(open_tiny: Callable[..., Federation]):
    assert open_tiny("fedavg").break_even() is None
