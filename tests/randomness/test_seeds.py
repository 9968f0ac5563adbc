"""Seeds: distinct for distinct uses, and the same for ever."""

from itertools import product

import torch

from rayfed_ssl.randomness.seeds import SERVER, Purpose, derive_seed, generator


def test_neighboring_uses_never_share_a_seed():
    uses = list(product(range(4), Purpose, range(5), [*range(6), SERVER]))
    seeds = {derive_seed(run, purpose, round=round, participant=who) for run, purpose, round, who in uses}
    assert len(seeds) == len(uses)


def test_seeds_fit_torch_and_numpy():
    seeds = [derive_seed(run, Purpose.TRAINING) for run in range(200)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62


def test_seeds_are_part_of_every_published_result_and_never_change():
    assert derive_seed(0, Purpose.TRAINING, round=1, participant=2) == 3192021475534356442
    assert derive_seed(7, Purpose.COHORT, round=3) == 4064374570681395613
    assert [purpose.value for purpose in Purpose] == list(range(1, 19))


def test_generators_of_one_seed_draw_the_same_and_leave_the_global_one_alone():
    before = torch.random.get_rng_state()
    first, second, other = (torch.rand(5, generator=generator(seed)) for seed in (11, 11, 12))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)
