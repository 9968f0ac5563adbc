"""FedCA's equations 4 to 13 against naive loops."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rayfed_ssl.methods import fedca
from rayfed_ssl.objectives.simclr import info_nce
from tests.oracles import naive_fedca

EXACT = 1e-12
"""float64 keeps 16 digits; sums of a few dozen terms lose two."""


def rows(num: int, dim: int, seed: int) -> Tensor:
    return torch.randn(num, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit_rows(num: int, dim: int, seed: int) -> Tensor:
    return F.normalize(rows(num, dim, seed), dim=1)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
@pytest.mark.parametrize(("num", "size", "dim"), [(1, 3, 2), (2, 1, 3), (5, 7, 4), (4, 0, 3)])
def test_the_contrast_is_eq_4_to_8(num: int, size: int, dim: int, temperature: float):
    first, second, dictionary = unit_rows(num, dim, 1), unit_rows(num, dim, 2), unit_rows(size, dim, 3)
    expected = naive_fedca.contrast(first.tolist(), second.tolist(), dictionary.tolist(), temperature)
    found = float(fedca.dictionary_contrast(first, second, dictionary, temperature))
    assert found == pytest.approx(expected, rel=EXACT)


def test_with_an_empty_dictionary_it_is_info_nce_bit_for_bit():
    first, second = unit_rows(5, 4, 1).float(), unit_rows(5, 4, 2).float()
    found = fedca.dictionary_contrast(first, second, torch.empty(0, 4), 0.4)
    assert torch.equal(found, info_nce(first, second, 0.4))


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.99])
@pytest.mark.parametrize("num_rounds", [1, 2, 5])
def test_temporal_ensembling_is_eq_9_and_10(num_rounds: int, alpha: float):
    projections = [rows(3, 4, seed) for seed in range(num_rounds)]
    found = None
    for z in projections:
        found = fedca.ensemble(found, z, alpha)
    for sample in range(3):
        z_bar, unit = naive_fedca.ensembled([z[sample].tolist() for z in projections], alpha)
        torch.testing.assert_close(found[sample], torch.tensor(z_bar, dtype=torch.float64), rtol=EXACT, atol=1e-15)
        expected = torch.tensor(unit, dtype=torch.float64)
        torch.testing.assert_close(fedca.normalised(found)[sample], expected, rtol=EXACT, atol=1e-15)


@pytest.mark.parametrize(("num", "features", "dim"), [(1, 3, 2), (4, 5, 3), (3, 2, 6)])
def test_alignment_is_eq_11_to_13(num: int, features: int, dim: int):
    h_u, z_u, h_align, z_align = (rows(num, w, seed) for seed, w in enumerate((features, dim, features, dim)))
    expected = naive_fedca.alignment(h_u.tolist(), z_u.tolist(), h_align.tolist(), z_align.tolist())
    assert float(fedca.alignment_loss(h_u, z_u, (h_align, z_align))) == pytest.approx(expected, rel=EXACT)


def test_alignment_is_a_sum_over_samples_and_not_a_mean():
    h_u, z_u, h_align, z_align = (rows(4, 3, seed) for seed in range(4))
    once = fedca.alignment_loss(h_u, z_u, (h_align, z_align))
    twice = fedca.alignment_loss(*(torch.cat([x, x]) for x in (h_u, z_u)), (h_align.repeat(2, 1), z_align.repeat(2, 1)))
    assert float(twice) == pytest.approx(2 * float(once), rel=EXACT)


def test_a_sample_that_was_always_projected_to_zero_stays_finite():
    assert bool(fedca.normalised(fedca.ensemble(None, torch.zeros(2, 3), 0.5)).isfinite().all())


@pytest.mark.parametrize(("size", "clients"), [(1024, 5), (1024, 1), (7, 3), (2, 3), (0, 2)])
def test_shares_of_the_dictionary_sum_to_its_size_and_differ_by_one_at_most(size: int, clients: int):
    shares = [fedca.share_of(size, position, clients) for position in range(clients)]
    assert sum(shares) == size
    assert max(shares) - min(shares) <= 1


def test_five_clients_share_1024_rows_as_the_papers_would():
    assert [fedca.share_of(1024, position, 5) for position in range(5)] == [205, 205, 205, 205, 204]
