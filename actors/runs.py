"""Run and resume a federation on Ray: `rayfed_ssl.runs` with the executor that the configuration names."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from actors.injection import Kill, due_kills
from rayfed_ssl import runs
from rayfed_ssl.capacity.client_cost import check_memory
from rayfed_ssl.config.recipes import Setting
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.local_executor import LocalExecutor
from rayfed_ssl.engine.round_loop import Executor, Observer
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.runs import Result


def make_executor(
    federation: Federation,
    *,
    address: str | None = None,
    kills: Sequence[Kill] = (),
    on_ray_death: Callable[[str], None] | None = None,
) -> Executor:
    """Make the executor that `engine.executor` names; a local one loads no Ray. Arguments as in `RayExecutor`."""
    if federation.config.engine.executor == "local":
        check_fits(federation, address, kills)
        return LocalExecutor(federation)
    from actors.executor import RayExecutor

    return RayExecutor(federation, address=address, kills=kills, on_ray_death=on_ray_death)


def check_fits(federation: Federation, address: str | None = None, kills: Sequence[Kill] = ()) -> None:
    """Raise ConfigError or ClusterError where a run cannot fit the machine; a Ray that runs elsewhere is asked later.

    A ConfigError says, too, which of the kills can never happen.
    """
    config = federation.config
    due_kills(kills, federation)
    if config.engine.executor == "local":
        if kills:
            raise ConfigError(f"--inject {kills[0]}: it needs engine.executor=ray, got local")
        if address is not None:
            raise ConfigError(
                "--address names a Ray, which engine.executor=local does not use: leave one of the two out"
            )
        if config.engine.mps == "on":
            raise ConfigError(
                "engine.mps=on is for actors that share a GPU, and engine.executor=local has none: leave one of the two out"
            )
        check_memory(federation)
    else:
        from actors.placement import plan

        plan.check_fits(federation, address)


def run(
    config: Config,
    directory: Path | str | None = None,
    *,
    observer: Observer | None = None,
    address: str | None = None,
    kills: Sequence[Kill] = (),
) -> Result:
    """`rayfed_ssl.run` on Ray, unless `engine.executor=local`; `ClusterError` if Ray does not start or is too small.

    `directory` must be on a disk that all machines share. `address` is a Ray to join, "host:port" or "auto"; None starts
    one, unless this process has one already. `kills` are actors to kill on the way (`actors.injection`).
    """
    executor = partial(make_executor, address=address, kills=kills)
    return runs.run(config, directory, observer=observer, executor=executor)


def resume(
    directory: Path | str,
    *overrides: Setting,
    observer: Observer | None = None,
    round: int | None = None,
    trust: bool = False,
    address: str | None = None,
    kills: Sequence[Kill] = (),
) -> Result:
    """`rayfed_ssl.resume` on Ray, unless `engine.executor=local`; arguments as in `run`."""
    executor = partial(make_executor, address=address, kills=kills)
    return runs.resume(directory, *overrides, observer=observer, round=round, executor=executor, trust=trust)
