"""What a command that runs a federation does before it imports torch, which takes seconds."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rayfed_ssl.config.recipes import never, parse_setting, read_recipe, set_value
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.machine.processor import check_process
from rayfed_ssl.machine.resources import cores, free_memory

is_own_process = False
"""Whether this process runs one command and ends: only then may it begin what it has to abandon after a mistake."""

CLIENTS = 6
"""Clients of a configuration that names no number."""

WORKER_BYTES = 10**9
"""Memory for each worker that imports ahead: imports take a third of it, and where there is less, fewer actors may fit."""


def prepare(source: str | Path, settings: Sequence[str], address: str | None) -> None:
    """Begin to start the private Ray that a run with these settings wants, in a process of its own.

    Raises:
        NotPortableError: The process is to be restarted for `engine.cpu=portable`.
    """
    if is_own_process and address is None and (num_workers := workers_wanted(source, settings)):
        from actors.cluster.connect import start_ahead

        start_ahead(num_workers)


def workers_wanted(source: str | Path, settings: Sequence[str]) -> int:
    """Count the actors that a run on a private Ray may have here, the server's included; 0 where it wants no Ray.

    Mistakes are left to those who read all settings.

    Raises:
        NotPortableError: The process is to be restarted for `engine.cpu=portable`.
    """
    try:
        tree = read_recipe(source, never)
        for setting in settings:
            set_value(tree, *parse_setting(setting, never))
        engine, clients = ({} | tree.get(section, {}) for section in ("engine", "clients"))
    except (ConfigError, OSError, TypeError):
        return 0
    if engine.get("cpu") == "portable":
        check_process("portable")
    if engine.get("executor", "ray") != "ray":
        return 0
    numbers = engine.get("actors"), clients.get("number"), CLIENTS
    actors = next(number for number in numbers if isinstance(number, int) and number > 0)
    return 1 + min(actors, cores(), free_memory() // WORKER_BYTES)


def abandon() -> bool:
    """End a Ray that was started ahead and that no run took; the process must then end by `os._exit`."""
    connect = sys.modules.get("actors.cluster.connect")
    return connect is not None and connect.abandon()
