"""Robust rules against worked examples, and the laws that every rule keeps."""

import math
from typing import Any

import pytest
import torch
from pydantic.dataclasses import dataclass
from threadpoolctl import threadpool_limits
from torch import Tensor

from rayfed_ssl.aggregation.robust import RULES
from rayfed_ssl.aggregation.robust.bulyan import Bulyan
from rayfed_ssl.aggregation.robust.clipping import CenteredClipping, NormBound
from rayfed_ssl.aggregation.robust.coordinates import Meamed, Median, TrimmedMean
from rayfed_ssl.aggregation.robust.eminspector import EmInspector
from rayfed_ssl.aggregation.robust.flame import FLAME
from rayfed_ssl.aggregation.robust.fltrust import FLTrust
from rayfed_ssl.aggregation.robust.foolsgold import FoolsGold
from rayfed_ssl.aggregation.robust.geometric_median import GeometricMedian
from rayfed_ssl.aggregation.robust.geometry import shares_within
from rayfed_ssl.aggregation.robust.krum import Krum, MultiKrum
from rayfed_ssl.aggregation.robust.rule import CoordinateRule
from rayfed_ssl.privacy.robust import combine
from tests.tensors import seeded

Y = [[0, 0], [1, 0], [0, 1], [1, 1], [0.5, 0.5], [50, -40], [40, 40]]
WITHOUT_ONE_FAR = [*Y[:5], Y[6], [0.2, 0.8]]
THREE = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
TRUST = [[1, 1], [2, 0], [-1, 0], [0, 3], [1, 0]]


def result(rule: Any, rows: Any, **names: str) -> list[float]:
    """What a rule makes of differences from zeros; the server's own step comes last where the rule has one."""
    uploads = [{"layer.weight": torch.tensor(row, dtype=torch.float32)} for row in rows]
    received = {"layer.weight": torch.zeros(len(rows[0]))}
    combined, _, _ = combine(rule, received, uploads, seeded(0))
    return combined["layer.weight"].tolist()


@pytest.mark.parametrize(
    ("rule", "rows", "expected"),
    [
        (Krum(hostile=2), Y, [0.5, 0.5]),
        (MultiKrum(hostile=2), Y, [0.5, 0.5]),
        (Median(hostile=2), Y, [1, 0.5]),
        (TrimmedMean(hostile=2), Y, [0.833333, 0.5]),
        (GeometricMedian(hostile=2, steps=200), Y, [0.663329, 0.508512]),
        (CenteredClipping(hostile=2, radius=1), Y, [0.527869, 0.327074]),
        (CenteredClipping(hostile=2, radius=1, steps=3), Y, [0.773795, 0.499723]),
        (TrimmedMean(hostile=2, before="nnm"), Y, [0.5, 0.5]),
        (NormBound(hostile=2, length=1e9, before="arc"), Y, [0.657759, 0.373793]),
        (Bulyan(hostile=1), WITHOUT_ONE_FAR, [0.066667, 0.433333]),
        (FLTrust(), TRUST, [0.878680, 0.292893]),
        (Krum(hostile=1), THREE, [1, 2, 3]),
        (MultiKrum(hostile=1), THREE, [2.5, 3.5, 4.5]),
        (Meamed(hostile=1), [[0, 1], [1, 1], [2, 1], [90, 1]], [1, 1]),
        (Median(hostile=1), [[1, 4], [2, 3], [3, 2], [90, 1]], [2.5, 2.5]),
        (NormBound(hostile=1, length=2.0), [[3, 4], [0, 1], [0, 1]], [0.4, 1.2]),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "hostile") else "",
)
def test_a_worked_example(rule: Any, rows: list[list[float]], expected: list[float]) -> None:
    assert result(rule, rows) == pytest.approx(expected, abs=1e-6)


def test_bulyan_chooses_again_among_those_that_are_left() -> None:
    rows = torch.tensor(WITHOUT_ONE_FAR, dtype=torch.float64)
    assert Bulyan(hostile=1).rows(rows @ rows.T).tolist() == [0, 1, 2, 4, 6]


def test_a_rule_of_ones_own_may_choose_by_distances() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Shortest(CoordinateRule):
        def rows(self, gram: Tensor) -> Tensor:
            return gram.diagonal().argsort()[:2].sort().values

        def combine(self, values: Tensor) -> Tensor:
            return values.mean(dim=0)

    assert result(Shortest(), [[9.0], [1.0], [2.0]]) == [1.5]


def test_flame_keeps_the_largest_cluster_of_directions() -> None:
    rows = torch.tensor([[1, 0.01], [1, 0.02], [1.1, 0], [0.9, -0.01], [1, -0.02], [0, 5.0], [-4.0, 0]]).double()
    weights = FLAME(hostile=2).weights(rows @ rows.T)
    assert (weights > 0).tolist() == [True] * 5 + [False] * 2
    assert FLAME(hostile=2, noise=0.5).deviation(rows @ rows.T) == pytest.approx(0.5 * float(rows.norm(dim=1).median()))


def test_eminspector_drops_models_that_see_pictures_alike() -> None:
    """With random features, a third of them nearly equal ones; without such it drops about half of alike clients."""
    features = torch.randn(9, 40, 6, generator=seeded(1))
    alike = features.clone()
    alike[:2] = features[0] + 0.01 * features[:2]
    assert (EmInspector().of_features(alike) == 0).tolist()[:2] == [True, True]
    lost = int((EmInspector().of_features(features) == 0).sum())
    assert 2 <= lost <= 7
    assert (
        EmInspector().of_features(torch.ones(3, 4, 2)).tolist() == [1 / 3] * 3
    )  # all alike: nobody is left, so all are


def test_foolsgold_keeps_those_that_nobody_is_like() -> None:
    """Weights 1, 1, 0, 0 before they are brought to sum 1."""
    histories = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 1, 0.1], [1, 1, 0.12]], dtype=torch.float64)
    assert FoolsGold(hostile=2).weights(histories @ histories.T).tolist() == pytest.approx([0.5, 0.5, 0, 0])


def test_foolsgold_is_the_authors_where_cosines_have_both_signs() -> None:
    """Their code's loops: a cosine with oneself counts as 0, so that whom nobody is like keeps its weight."""
    drawn = torch.randn(8, 6, generator=seeded(0), dtype=torch.float64)
    histories = [(drawn[0] + 0.8 * row).tolist() for row in drawn[1:7]] + [(0.8 * drawn[7] - drawn[0]).tolist()]
    number = range(len(histories))

    def cosine(a: list[float], b: list[float]) -> float:
        return math.fsum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))

    alike = [[cosine(histories[i], histories[j]) if i != j else 0.0 for j in number] for i in number]
    most = [max(row) for row in alike]
    for i in number:
        alike[i] = [c * most[i] / most[j] if most[i] < most[j] else c for j, c in enumerate(alike[i])]
    unlike = [min(1.0, max(0.0, 1 - max(row))) for row in alike]
    unlike = [min(0.99, value / max(unlike)) for value in unlike]
    shares = [min(1.0, max(0.0, math.log(v / (1 - v)) + 0.5)) if v else 0.0 for v in unlike]
    rows = torch.tensor(histories, dtype=torch.float64)
    ours = FoolsGold(hostile=1).weights(rows @ rows.T).tolist()
    assert ours == pytest.approx([share / math.fsum(shares) for share in shares], rel=1e-9)
    assert ours[6] == max(ours) > max(ours[:6])


def honest(number: int = 11, width: int = 5) -> Tensor:
    return torch.randn(number, width, generator=seeded(2)) * 0.1 + torch.tensor([1.0, -1.0, 0.5, 0.0, 2.0])


LAWFUL = {name: rule(hostile=2) for name, rule in RULES.items() if name not in ("fltrust", "eminspector")}


@pytest.mark.parametrize("name", LAWFUL)
def test_equal_uploads_give_themselves_and_order_does_not_matter(name: str) -> None:
    rule = LAWFUL[name] if name != "flame" else FLAME(hostile=2, noise=0.0)
    same = honest()[:1].expand(11, 5).tolist()
    assert result(rule, same) == pytest.approx(same[0], abs=1e-6)
    rows = honest()
    shuffled = rows[torch.randperm(11, generator=seeded(3))]
    assert result(rule, rows.tolist()) == pytest.approx(result(rule, shuffled.tolist()), abs=1e-6)


@pytest.mark.parametrize("name", [name for name in LAWFUL if name != "foolsgold"])
def test_one_upload_far_away_moves_the_result_by_a_bounded_amount(name: str) -> None:
    """Broken on purpose with a mean: it moves without bound, as FoolsGold does, which trusts whom nobody is like."""
    rows = honest()
    far = rows.clone()
    far[3] = 1e6
    moved = math.dist(result(LAWFUL[name], rows.tolist()), result(LAWFUL[name], far.tolist()))
    assert moved < 3.0  # the longest honest difference is shorter
    assert math.dist(rows.mean(dim=0), far.mean(dim=0)) > 1e5


def test_one_upload_far_along_the_server_s_own_step_reaches_as_far_as_that_step() -> None:
    """FLTrust; EmInspector, which looks at features, has no such bound."""
    rows, own = honest(), torch.tensor([[1.0, -1.0, 0.5, 0.0, 2.0]])
    far = rows.clone()
    far[3] = 1e6 * own[0]
    moved = math.dist(*(result(FLTrust(), torch.cat([each, own]).tolist()) for each in (rows, far)))
    assert moved < float(own.norm())


def test_flame_finds_the_same_cluster_with_any_number_of_threads() -> None:
    def weights(seed: int) -> Tensor:
        rows = torch.randn(3 + seed, 20, generator=seeded(seed), dtype=torch.float64)
        return FLAME(hostile=1).weights(rows @ rows.T)

    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            found.append([weights(seed) for seed in range(20)])
    assert all(one.equal(two) for one, two in zip(*found, strict=True))


def test_the_geometric_median_is_reached_with_nearly_half_of_the_uploads_far_away() -> None:
    rows = honest(9)
    far = rows.clone()
    far[5:] = 1e6
    assert math.dist(result(GeometricMedian(hostile=4), far.tolist()), rows[:5].mean(dim=0).tolist()) < 3.0


def test_what_is_within_a_bound_stays_as_it_is() -> None:
    assert shares_within(torch.tensor([0.0, 2.0, 4.0]), 1.0).tolist() == [1.0, 0.5, 0.25]
    assert shares_within(torch.tensor([0.0, 2.0]), 0.0).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("before", ["nnm", "bucketing", "arc"])
def test_what_mixes_before_keeps_equal_uploads(before: Any) -> None:
    same = honest()[:1].expand(11, 5).tolist()
    for rule in (TrimmedMean(hostile=2, before=before), GeometricMedian(hostile=2, before=before)):
        assert result(rule, same) == pytest.approx(same[0], abs=1e-6)


@pytest.mark.parametrize(
    ("rule", "least"), [(Krum(hostile=2), 7), (Bulyan(hostile=2), 11), (Median(hostile=2), 5), (FLAME(hostile=0), 2)]
)
def test_too_few_uploads_are_refused_with_the_bound(rule: Any, least: int) -> None:
    rule.check(least)
    with pytest.raises(ValueError, match=rf"needs {least} uploads in a round, got {least - 1}: raise"):
        rule.check(least - 1)


def test_statistics_follow_and_counters_are_the_servers() -> None:
    """Variances stay positive, also where an upload's is far below 0 in effect."""
    received = {
        "norm.weight": torch.ones(2),
        "norm.running_var": torch.full((2,), 3.0),
        "norm.num_batches_tracked": torch.tensor(7),
    }
    uploads = [
        {
            "norm.weight": torch.ones(2) + 0.1 * k,
            "norm.running_var": torch.full((2,), 1.0 + k),
            "norm.num_batches_tracked": torch.tensor(9 + k),
        }
        for k in range(5)
    ]
    for rule in (Krum(hostile=1), NormBound(hostile=1, length=0.01), Median(hostile=1), TrimmedMean(hostile=1)):
        combined, _, _ = combine(rule, received, uploads, seeded(0))
        assert int(combined["norm.num_batches_tracked"]) == 7
        assert 1.0 <= float(combined["norm.running_var"][0]) <= 5.0
        assert combined["norm.weight"].dtype == torch.float32
