"""What a run begins with: what run.json says of it, and what it must still be when the run goes on."""

import hashlib
import json
import socket
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation, training_seed
from rayfed_ssl.engine.server_init_cache import start_of
from rayfed_ssl.environment import environment
from rayfed_ssl.seeds import SERVER

LATER_KEYS = (
    ("model", "start", None),
    ("clients", "labeled", None),
    ("clients", "label_choice", "balanced"),
    ("data", "validation", None),
)
"""Keys that earlier records do not have, with the default that stands for what runs did then."""


def settings_sha256(config: Config) -> str:
    """Digest of the settings that a run's states depend on: all but how it is computed and scored."""
    settings = {key: value for key, value in config.dump().items() if key not in ("engine", "evaluation")}
    for section, key, default in LATER_KEYS:
        if settings[section][key] == default:
            del settings[section][key]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def states_name(directory: Path, started: str) -> str:
    """Name a run's states where many runs keep theirs."""
    origin = f"{socket.gethostname()}:{directory.resolve()}:{started}"
    return f"{directory.resolve().name}-{hashlib.sha256(origin.encode()).hexdigest()[:8]}"


def describe(federation: Federation) -> dict[str, Any]:
    """Collect what a reader needs to know about a run that its configuration does not say."""
    config, task = federation.config, federation.task
    break_even = federation.break_even()
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "finished": None,
        "method": config.system,
        "settings_sha256": settings_sha256(config),
        "privacy": federation.method.privacy,
        "parts": dict(federation.method.rules(task)),
        "notes": list(federation.notes),
        "data": {
            "name": federation.dataset.name,
            "fingerprint": federation.dataset.fingerprint,
            "shape": list(federation.dataset.train.shape),
            "classes": list(federation.dataset.train.classes),
            "train": len(federation.dataset.train),
            "test": len(federation.dataset.test),
            "public": federation.num_public,
            "shards": {str(client_id): len(rows) for client_id, rows in federation.shards.items()},
        },
        "start": start_of(federation),
        "precision": {"device": str(task.device), **asdict(task.precision)},
        "seeds": {"run": config.seed, "server_round_1": training_seed(config, 1, SERVER)},
        "break_even": None if break_even is None else asdict(break_even),
        "rounds": [],
        **environment(),
    }


def describes_a_run(summary: Any) -> bool:
    """Whether run.json has what others look for, of the kinds that they expect."""
    if not isinstance(summary, dict) or not {"rounds", "data", "method", "privacy"} <= set(summary):
        return False
    if not (isinstance(summary["rounds"], list) and isinstance(summary["data"], dict)):
        return False
    rounds = all(isinstance(entry, dict) and isinstance(entry.get("round"), int) for entry in summary["rounds"])
    return rounds and isinstance(summary.get("checkpoints"), str | None)
