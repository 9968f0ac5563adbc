"""Federated self-supervised representation learning, simulated: same seed, same bits.

    from rayfed_ssl import Config, run

    result = run(Config.load("digits", "method=fedavg", "public=null", "rounds=4"))
    print(result.scores, result.bytes("up"), result.state_sha256)

The same through Ray actors: `from actors import run`.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "Config": "rayfed_ssl.config.schema",
    "ConfigError": "rayfed_ssl.errors",
    "CheckpointError": "rayfed_ssl.errors",
    "ClientError": "rayfed_ssl.engine.round_loop",
    "Observer": "rayfed_ssl.engine.round_loop",
    "Result": "rayfed_ssl.runs",
    "load_encoder": "rayfed_ssl.storage.encoder_file",
    "replay": "rayfed_ssl.records.replay",
    "resume": "rayfed_ssl.runs",
    "run": "rayfed_ssl.runs",
    "set_up_portable_cpu": "rayfed_ssl.machine.processor",
}

__all__ = [
    "CheckpointError",
    "ClientError",
    "Config",
    "ConfigError",
    "Observer",
    "Result",
    "load_encoder",
    "replay",
    "resume",
    "run",
    "set_up_portable_cpu",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for, so that the bare package loads in milliseconds."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'rayfed_ssl' has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value
