"""InstaHide against a naive loop, and what its draws must obey."""

import pytest
import torch

from rayfed_ssl.data.instahide import LARGEST_SHARE, draw_partners, draw_shares, encrypt, mix
from tests.methods.fcl import naive as naive_fcl
from tests.tensors import seeded


@pytest.mark.parametrize(("num", "mixed"), [(1, 2), (2, 2), (5, 4), (7, 6)])
def test_a_mixture_is_the_signed_weighted_sum_of_its_partners(num: int, mixed: int):
    shape = (num, 2, 3, 4)
    images = torch.randn(shape, generator=seeded(1), dtype=torch.float64)
    shares = draw_shares(num, mixed, seeded(2)).double()
    partners = draw_partners(num, mixed, seeded(3))
    signs = torch.randint(0, 2, shape, generator=seeded(4)) * 2 - 1
    before = images.clone()
    expected = naive_fcl.encrypted(
        images.flatten(1).tolist(), partners.tolist(), shares.tolist(), signs.flatten(1).tolist()
    )
    mixed = mix(images, partners, shares, signs).flatten(1)
    # Sums of up to six terms may cancel.
    torch.testing.assert_close(mixed, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-15)
    assert torch.equal(images, before)


@pytest.mark.parametrize("mixed", [2, 4, 6])
def test_shares_sum_to_one_and_none_is_too_large(mixed: int):
    shares = draw_shares(4000, mixed, seeded(1))
    assert shares.shape == (4000, mixed)
    torch.testing.assert_close(shares.sum(1), torch.ones(4000), rtol=0, atol=1e-6)  # float32
    assert bool((shares > 0).all())
    assert float(shares.max()) <= LARGEST_SHARE
    # Some first draws had to be repeated, so values come close to the bound.
    assert float(shares.max()) > LARGEST_SHARE - 0.01


def test_every_image_is_mixed_with_itself_and_is_a_partner_k_times():
    partners = draw_partners(9, 4, seeded(1))
    assert partners.shape == (4, 9)
    assert partners[0].tolist() == list(range(9))
    assert all(sorted(row) == list(range(9)) for row in partners.tolist())
    assert len({tuple(row) for row in partners.tolist()}) == 4


def test_signs_are_drawn_for_every_value():
    images = torch.ones(16, 3, 8, 8)
    hidden = encrypt(images, 4, seeded(1))
    torch.testing.assert_close(hidden.abs(), images, rtol=0, atol=1e-6)  # shares sum to 1 in float32
    positive = (hidden > 0).double()
    assert float(positive.mean()) == pytest.approx(0.5, abs=0.05)  # 3072 coins: 5 sigma
    assert bool((positive.mean(0) < 1).all())
    assert not torch.equal(positive[:, 0], positive[:, 1])


def test_keys_follow_from_the_generator_alone():
    images = torch.randn(6, 1, 4, 4, generator=seeded(1))
    assert torch.equal(encrypt(images, 4, seeded(5)), encrypt(images, 4, seeded(5)))
    assert not torch.equal(encrypt(images, 4, seeded(5)), encrypt(images, 4, seeded(6)))
