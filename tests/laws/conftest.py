"""Undisturbed runs that several laws compare with, one per variant."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pytest

from rayfed_ssl.config.schema import Config
from tests.laws.laws import Round, Trace, fresh, play, simulate
from tests.laws.variants import VARIANTS


class Reference(NamedTuple):
    """A run as the engine ran it, and as it was played by hand."""

    config: Config
    whole: Trace
    played: list[Round]


@pytest.fixture(scope="session")
def reference(tiny: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reference]:
    @cache
    def run(variant: str) -> Reference:
        config = tiny(*VARIANTS[variant])
        whole = simulate(config, tmp_path_factory.mktemp(variant) / "whole")
        return Reference(config, whole, play(fresh(config)))

    return run
