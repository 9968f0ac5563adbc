"""Where a configuration says that its steps run."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayfed_ssl.config.schema import Config
    from rayfed_ssl.engine.faults import Fault, RandomFaults
    from rayfed_ssl.engine.federation import Federation
    from rayfed_ssl.engine.round_loop import Executor


def executor_for(
    config: "Config", address: str | None = None, faults: "Sequence[Fault | RandomFaults]" = ()
) -> "Callable[[Federation], Executor]":
    """Give what makes the executor; Ray is loaded only where it is asked for."""
    if config.engine.executor == "local":
        from rayfed_ssl.engine.local_executor import LocalExecutor

        return partial(LocalExecutor, faults=faults)
    from actors.runs import make_executor

    return partial(make_executor, address=address, faults=faults)
