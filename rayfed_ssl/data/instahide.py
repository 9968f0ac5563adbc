"""InstaHide: images mixed with others and with the sign of every value drawn anew, as FCL encrypts them.

Huang, Song, Li, Arora: InstaHide: Instance-hiding Schemes for Private Distributed Learning, ICML 2020, in the form that
mixes within one dataset (its authors' code "inside"; reimplemented).
It protects little: Carlini et al. (Is Private Learning Possible with Instance Encoding?, S&P 2021) undo it.

Symbols: x images; k images in a mixture; lambda_1..k their shares; pi_2..k permutations of the images; sigma signs.
"""

from functools import partial

import torch
from torch import Tensor

from rayfed_ssl.randomness.draws import draw

LARGEST_SHARE = 0.65
"""c_1: shares are drawn again until none is larger (code)."""


def draw_shares(num: int, mixed: int, generator: torch.Generator) -> Tensor:
    """Draw lambda, [num, k]: absolute normals, scaled to sum to 1, again while the largest is above c_1 (code)."""
    assert mixed * LARGEST_SHARE > 1, "shares of fewer than two images cannot all stay below the largest allowed"
    shares = torch.zeros(num, mixed)
    missing = torch.arange(num)
    while len(missing):
        drawn = torch.randn(len(missing), mixed, generator=generator).abs_()
        shares[missing] = drawn / drawn.sum(dim=1, keepdim=True)
        missing = missing[shares[missing].amax(dim=1) > LARGEST_SHARE]
    return shares


def draw_partners(num: int, mixed: int, generator: torch.Generator) -> Tensor:
    """Draw which images are mixed: each with itself and with k - 1 permutations of all, int64 [k, num]."""
    return torch.stack([torch.arange(num), *(torch.randperm(num, generator=generator) for _ in range(mixed - 1))])


def mix(images: Tensor, partners: Tensor, shares: Tensor, signs: Tensor) -> Tensor:
    """Compute sigma * sum_i lambda_i x_(pi_i), [B, C, H, W].

    Args:
        images: Normalized floats, [B, C, H, W].
        partners: pi, [k, B]; the first row is the identity.
        shares: lambda, [B, k].
        signs: sigma, -1 or 1 for every value, [B, C, H, W].
    """
    mixture = torch.zeros_like(images)
    for partner, share in zip(partners, shares.T, strict=True):
        mixture.addcmul_(images[partner], share.to(images.dtype).view(-1, 1, 1, 1))
    return mixture.mul_(signs)


def encrypt(images: Tensor, mixed: int, generator: torch.Generator) -> Tensor:
    """Encrypt normalized images [B, C, H, W] with keys that are drawn and thrown away; mixed is k, in the code 4."""
    drawn = partial(draw, generator=generator, device=images.device)
    shares, partners = drawn(draw_shares, len(images), mixed), drawn(draw_partners, len(images), mixed)
    signs = drawn(torch.randint, 0, 2, images.shape).mul_(2).sub_(1)
    return mix(images, partners, shares, signs)
