"""Draws on the host: the same numbers one by one or ahead of a step, in one transfer."""

import pytest
import torch
from torch import Tensor

from rayfed_ssl.randomness.draws import StepDraws, draw
from tests.tensors import seeded

CPU = torch.device("cpu")


def some_draws(generator: torch.Generator, other: torch.Generator, num: int) -> list[Tensor]:
    """Draws of several types and sizes, as a step makes them."""
    return [
        draw(torch.rand, num, 3, generator=generator, device=CPU).clone(),
        draw(torch.randperm, num, generator=other, device=CPU).clone(),
        draw(torch.randint, 2, (num,), generator=generator, device=CPU).to(torch.bool),
        draw(torch.randn, 1, generator=generator, device=CPU).clone(),
    ]


def test_draws_made_ahead_are_those_made_one_by_one() -> None:
    plain = seeded(1), seeded(2)
    expected = [some_draws(*plain, num) for num in (5, 5, 3, 5, 3)]
    draws, ahead = StepDraws(CPU), (seeded(1), seeded(2))
    seen = []
    for num in (5, 5, 3, 5, 3):
        draws.ahead(num)
        with draws.serving(num):
            seen.append(some_draws(*ahead, num))
    for step, (first, second) in enumerate(zip(seen, expected, strict=True)):
        assert all(map(torch.equal, first, second)), step
    assert all(torch.equal(a.get_state(), b.get_state()) for a, b in zip(plain, ahead, strict=True))


@pytest.mark.parametrize("nums", [(5,), (), (4, 4)])
def test_a_step_that_draws_otherwise_than_its_kind_is_noticed(nums: tuple[int, ...]) -> None:
    draws, generator = StepDraws(CPU), seeded()
    with draws.serving("kind"):
        draw(torch.randperm, 4, generator=generator, device=CPU)
    draws.ahead("kind")

    def step() -> None:
        with draws.serving("kind"):
            for num in nums:
                draw(torch.randperm, num, generator=generator, device=CPU)

    with pytest.raises(AssertionError, match="the same draws"):
        step()


def test_a_first_step_that_fails_is_not_taken_for_its_kind() -> None:
    draws, generator = StepDraws(CPU), seeded()
    with pytest.raises(TypeError), draws.serving("kind"):
        draw(torch.randperm, "four", generator=generator, device=CPU)
    with draws.serving("kind"):
        assert len(draw(torch.randperm, 6, generator=generator, device=CPU)) == 6
