"""Names of runs in a reproduction or a sweep: the same as in earlier versions, and for all that changes no bit."""

from collections.abc import Callable

import pytest

from rayfed_ssl.config.schema import Config
from rayfed_ssl.config.sections import BITS, Engine
from rayfed_ssl.records.manifest import settings_sha256
from tune.reproductions.runner import run_name

Tiny = Callable[..., Config]

EARLIER = {
    "fedca": ("fedca-s0-fa86834f79", "358e6bca50971489ee5b92e3fbbe3ed67775419d23c46b1d46419574aec7cef8"),
    "fedavg": ("fedavg-s0-1cbe578f41", "0c930e1efbd4d0090b1c1e047a74edbb56425c0b12dfd3fa58f4efd91ca358ea"),
}
"""What version 0.1.0 called these runs, and the digests of their settings, before there were held-out samples."""


@pytest.mark.parametrize("name", EARLIER)
def test_names_and_digests_are_those_of_earlier_versions(tiny: Tiny, name: str):
    config = tiny(name)
    assert (run_name(config), settings_sha256(config)) == EARLIER[name]


def test_held_out_samples_make_another_run(tiny: Tiny):
    plain, apart, more = tiny("fedca"), tiny("fedca", "data.validation=0.2"), tiny("fedca", "data.validation=0.3")
    assert len({run_name(config) for config in (plain, apart, more)}) == 3
    assert len({settings_sha256(config) for config in (plain, apart, more)}) == 3


def test_what_the_server_shares_makes_no_other_run(tiny: Tiny):
    plain, shared = tiny("fedca"), tiny("fedca", "engine.shared=/some/where")
    assert run_name(shared) == run_name(plain)
    assert settings_sha256(shared) == settings_sha256(plain)


def test_what_changes_bits_is_part_of_the_engine():
    assert set(BITS) <= set(Engine.model_fields)
    assert "shared" not in BITS
