"""A configuration for each variant."""

from collections.abc import Callable

import pytest

from rayfed_ssl.config.schema import Config
from tests.laws.variants import VARIANTS


@pytest.fixture(scope="session")
def variant_config(tiny: Callable[..., Config]) -> Callable[[str], Config]:
    """Build the configuration of a variant; FLESD distils long enough for its loss to fall."""

    def build(variant: str) -> Config:
        name, *overrides = VARIANTS[variant]
        return tiny(name, *overrides, *["method.distil_epochs=8"] * name.startswith("flesd"))

    return build
