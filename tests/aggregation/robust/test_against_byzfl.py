"""Rules against ByzFL (EPFL, Inria), where definitions agree.

They differ in Krum's neighbors: the paper, and this package, take n - f - 2 of them, ByzFL n - f - 1. So our scores with
f - 1 choose as ByzFL does with f.
"""

from typing import Any

import pytest
import torch

from rayfed_ssl.adversaries import ADVERSARIES
from rayfed_ssl.adversaries.adversary import Numbers
from rayfed_ssl.adversaries.omniscient import farthest
from rayfed_ssl.aggregation.robust.clipping import CenteredClipping, NormBound
from rayfed_ssl.aggregation.robust.coordinates import Meamed, Median, TrimmedMean
from rayfed_ssl.aggregation.robust.geometric_median import GeometricMedian
from rayfed_ssl.aggregation.robust.krum import scores
from tests.aggregation.robust.test_rules import result
from tests.tensors import seeded

pytestmark = pytest.mark.slow  # it imports all of ByzFL


@pytest.fixture(scope="module")
def byzfl() -> Any:
    import byzfl

    return byzfl


@pytest.fixture(params=range(3))
def rows(request: pytest.FixtureRequest) -> torch.Tensor:
    """Eleven uploads, two of them far away."""
    drawn = torch.randn(11, 7, generator=seeded(request.param))
    drawn[[2, 5]] += 20
    return drawn


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Median(hostile=2), lambda byzfl: byzfl.Median()),
        (TrimmedMean(hostile=2), lambda byzfl: byzfl.TrMean(2)),
        (Meamed(hostile=2), lambda byzfl: byzfl.Meamed(2)),
        (GeometricMedian(hostile=2, steps=500), lambda byzfl: byzfl.GeometricMedian(nu=1e-6, T=500)),
        (CenteredClipping(hostile=2, radius=3, steps=2), lambda byzfl: byzfl.CenteredClipping(L=2, tau=3.0)),
        (TrimmedMean(hostile=2, before="nnm"), lambda byzfl: lambda x: byzfl.TrMean(2)(byzfl.NNM(2)(x))),
        (NormBound(hostile=2, length=1e9, before="arc"), lambda byzfl: lambda x: byzfl.Average()(byzfl.ARC(2)(x))),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "hostile") else "",
)
def test_a_rule_gives_what_byzfl_gives(byzfl: Any, rows: torch.Tensor, ours: Any, theirs: Any) -> None:
    assert result(ours, rows.tolist()) == pytest.approx(theirs(byzfl)(rows).tolist(), abs=1e-5)


def test_krum_chooses_as_byzfl_does_with_as_many_neighbors(byzfl: Any, rows: torch.Tensor) -> None:
    chosen = int(scores(rows.double() @ rows.double().T, 1).argmin())
    assert torch.equal(rows[chosen], byzfl.Krum(2)(rows))


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("alie", lambda byzfl: byzfl.ALittleIsEnough(tau=1.5)),
        ("inner-product", lambda byzfl: byzfl.InnerProductManipulation(tau=2.0)),
    ],
)
def test_an_adversary_sends_what_byzfl_s_does(byzfl: Any, rows: torch.Tensor, name: str, theirs: Any) -> None:
    honest, adversary = rows.double(), ADVERSARIES[name]()
    strength = adversary.strength(lambda: iter(()), 13, 2)
    sent = adversary.forge(Numbers(honest[0], honest), strength, seeded(0))
    assert sent.tolist() == pytest.approx(theirs(byzfl)(honest).tolist(), abs=1e-5)  # ByzFL computes in float32


@pytest.mark.parametrize(
    ("name", "theirs"), [("alie", "Optimal_ALittleIsEnough"), ("inner-product", "Optimal_InnerProductManipulation")]
)
def test_the_search_for_a_strength_ends_where_byzfl_s_does(
    byzfl: Any, rows: torch.Tensor, name: str, theirs: str
) -> None:
    honest, adversary = rows.double(), ADVERSARIES[name](tau="best")

    def sent(strength: float) -> torch.Tensor:
        return adversary.forge(Numbers(honest[0], honest), strength, seeded(0))

    def distance(strength: float) -> float:
        made = result(TrimmedMean(hostile=2), [*honest.tolist(), *[sent(strength).tolist()] * 2])
        return float((torch.tensor(made) - honest.mean(dim=0)).norm())

    expected = getattr(byzfl, theirs)(agg=byzfl.TrMean(2), pre_agg_list=[], f=2)(rows)
    assert sent(farthest(distance)).tolist() == pytest.approx(expected.tolist(), rel=1e-4)
