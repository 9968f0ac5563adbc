"""The pytest-xdist scheduler of this test suite."""

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling


class TogetherScheduling(LoadScopeScheduling):
    """Runs the tests of a file, or of one variant of the laws, in one worker, as they share fixtures."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, rest = nodeid.partition("::")
        variant = rest.partition("[")[2]
        return f"law {variant}" if file.endswith("test_laws.py") and variant else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TogetherScheduling:
    """Spread tests over workers."""
    return TogetherScheduling(config, log)
