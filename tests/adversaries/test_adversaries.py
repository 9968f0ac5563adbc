"""What hostile clients send, number by number."""

from collections.abc import Iterator

import pytest
import torch

from rayfed_ssl.adversaries.adversary import Numbers
from rayfed_ssl.adversaries.omniscient import ALIE, InnerProduct, MinMax, farthest
from rayfed_ssl.adversaries.simple import Gaussian, Mimic, Permute, Scaling, SignFlip
from tests.tensors import seeded

HONEST = torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1], [0.5, 0.5]], dtype=torch.float64)
NUMBERS = Numbers(torch.tensor([3.0, -1.0], dtype=torch.float64), HONEST)


def pieces() -> Iterator[Numbers]:
    """Both coordinates, each a piece of its own."""
    for place in range(2):
        yield Numbers(NUMBERS.own[place : place + 1], HONEST[:, place : place + 1])


@pytest.mark.parametrize(
    ("adversary", "expected"),
    [
        (ALIE(), [1.25, 1.25]),
        (InnerProduct(), [-1.0, -1.0]),
        (SignFlip(scale=2.0), [-6.0, 2.0]),
        (Scaling(), [15.0, -5.0]),
        (Mimic(), [0.0, 0.0]),
        (Permute(), [3.0, -1.0]),
        (Gaussian(mean=2.0, std=0.0), [2.0, 2.0]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_worked_example(adversary, expected) -> None:
    strength = adversary.strength(pieces, 10, 2)
    assert adversary.forge(NUMBERS, strength, seeded(0)).tolist() == pytest.approx(expected)


def test_the_search_ends_near_the_top_of_a_hill_within_twenty_tries() -> None:
    tried: list[float] = []

    def height(strength: float) -> float:
        tried.append(strength)
        return -((strength - 33.0) ** 2)

    assert farthest(height) == pytest.approx(33.0, abs=3.0)
    assert tried[:4] == [0.0, 10.0, 30.0, 70.0]
    assert len(tried) == 20


def test_min_max_is_as_far_as_two_honest_uploads_are_and_no_farther() -> None:
    strength = MinMax().strength(pieces, 10, 2)
    sent = MinMax().forge(NUMBERS, strength, seeded(0))
    farthest = torch.cdist(HONEST, HONEST).max()
    assert torch.cdist(sent[None], HONEST).max() == pytest.approx(float(farthest))
    more = NUMBERS.mean - 1.01 * strength * NUMBERS.deviation
    assert torch.cdist(more[None], HONEST).max() > farthest
    assert MinMax().strength(lambda: iter(()), 10, 2) == 0.0


def test_rows_are_permuted_and_stay_the_same_rows() -> None:
    rows = torch.arange(12.0).view(6, 2)
    sent = Permute().rearrange(rows, seeded(1))
    assert not sent.equal(rows)
    assert sorted(sent.tolist()) == rows.tolist()
    packed = Permute().rearrange(rows.view(1, 12), seeded(1))
    assert packed.shape == (1, 12)
    assert sorted(packed.flatten().tolist()) == rows.flatten().tolist()
