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

    def remove_node(self, node: Any) -> str | None:
        """Leave out the test in which a worker died: xdist would run it again and again, in one new worker after another."""
        work = self.assigned_work.pop(node)
        died = next((name for unit in work.values() for name, done in unit.items() if not done), None)
        if died is None:
            return None
        for scope, unit in work.items():
            left = {name: done or name == died for name, done in unit.items()}
            if not all(left.values()):
                self.workqueue[scope] = left
        for other in self.assigned_work:
            self._reschedule(other)
        return died


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TogetherScheduling:
    """Spread tests over workers."""
    return TogetherScheduling(config, log)
