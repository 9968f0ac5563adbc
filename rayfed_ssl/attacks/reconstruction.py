"""Reconstruction: how well a picture that an attack has made shows one that the client trained on.

Beside `psnr` stands `psnr-mean`, that of the mean auxiliary picture, which a server has without any upload. The original of
a reconstruction is chosen by the attack's measure, which finds something alike among any pictures. So `psnr-chance` and
`rank-chance` measure the same reconstructions against as many pictures that no client has (up to 500), chosen alike. `auc`,
for which nothing is chosen, shows whether a picture was a member at all.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from rayfed_ssl.attacks.attack import Finding, Pictures, Seen, Truth
from rayfed_ssl.attacks.measures import mean_with_interval, psnr, separation, ssim
from rayfed_ssl.data.augmentation import normalize
from rayfed_ssl.data.shards import Shard

CANDIDATES = 1000
"""Auxiliary pictures among which the true one is looked for."""

SHOWN = 8
"""Pictures in the report."""


def pixels(seen: Seen, samples: Shard) -> Tensor:
    """Give samples as a model sees them without augmentation, but in [0, 1], float32 [N, C, S, S]."""
    unscaled = replace(seen.task.views.first, mean=(0.0,), std=(1.0,))
    return normalize(samples.batch(torch.arange(len(samples))), unscaled, size=seen.task.size)


def split_auxiliary(seen: Seen) -> tuple[Shard, Shard]:
    """Divide the auxiliary pictures at random: candidates, at most half of them, and those that an attack may train on."""
    order = torch.randperm(len(seen.auxiliary), generator=seen.generator(9))
    number = min(CANDIDATES, len(order) // 2)
    return seen.auxiliary.select(order[:number]), seen.auxiliary.select(order[number:])


def assign(costs: Tensor) -> tuple[Tensor, Tensor]:
    """Give each row another column so that costs [R, N] add up to the least: rows and columns, min(R, N) of each."""
    rows, columns = linear_sum_assignment(costs.nan_to_num().double().cpu().numpy())
    return torch.from_numpy(rows), torch.from_numpy(columns)


def squared_distances(pictures: Tensor, others: Tensor) -> Tensor:
    """Sum of squared differences of pictures [M, C, S, S] and others [D, C, S, S], [M, D]."""
    return torch.cdist(pictures.flatten(1).double(), others.flatten(1).double()).square()


def ranks(reconstructions: Tensor, originals: Tensor, candidates: Tensor) -> Tensor:
    """Share of candidates [D, C, S, S] that are nearer to a reconstruction than its original is, [M]; a tie counts half."""
    own = (reconstructions.double() - originals.double()).flatten(1).square().sum(1, keepdim=True)
    ahead = own - squared_distances(reconstructions, candidates)
    return (ahead.sign() + 1).mean(1) / 2


def compare(
    seen: Seen, reconstructions: Tensor, choose: Callable[[Shard], tuple[Tensor, Tensor]], truth: Truth
) -> Iterator[Finding | Pictures]:
    """Measure reconstructions, float [R, C, S, S] in [0, 1], against the originals that are chosen for them.

    Values of reconstructions that are not finite, of a model that diverged, count as black. `choose` pairs reconstructions
    with samples: it gives positions of both, as `assign` does.

    Yields:
        Means over reconstructions. With at least two samples that were held out, how well members are told from these by
        the distance to the nearest reconstruction. Some of the pictures.
    """
    drawn = reconstructions.nan_to_num(0, 0, 0).clamp(0, 1)
    auxiliary = split_auxiliary(seen)[0]
    number = min(len(truth.members), len(auxiliary) // 2)
    strangers, rest = auxiliary.select(torch.arange(number)), auxiliary.select(torch.arange(number, len(auxiliary)))
    candidates, (places, chosen) = pixels(seen, rest), choose(truth.members)
    own, originals = drawn[places], pixels(seen, truth.members)[chosen]
    yield mean_with_interval("psnr", psnr(own, originals))
    yield mean_with_interval("psnr-mean", psnr(candidates.mean(0).expand_as(originals), originals))
    yield mean_with_interval("ssim", ssim(own, originals))
    yield mean_with_interval("rank", ranks(own, originals, candidates))
    if number:
        places, chosen = choose(strangers)
        alike = pixels(seen, strangers)[chosen]
        yield mean_with_interval("psnr-chance", psnr(drawn[places], alike))
        yield mean_with_interval("rank-chance", ranks(drawn[places], alike, candidates))
    if len(truth.others) > 1:
        groups = (pixels(seen, samples) for samples in (truth.members, truth.others))
        members, others = (-squared_distances(group, drawn).amin(1).cpu().numpy() for group in groups)
        yield from separation(members, others, seen.seed)
    shown = (originals, own)
    yield Pictures(*((values[:SHOWN] * 255).round().to(torch.uint8).cpu() for values in shown))
