"""Processes of the suite: started with equal settings, watched with a limit, and never left behind."""

import json
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers.cases import WORKERS, Fields

ROOT = Path(__file__).parents[2]

SAID = 4000
"""Characters of a process's last words that are kept."""

MARK = "RAYFED_PEERS_RUN"
"""Environment variable by which all processes of one start are known, those that Ray detaches too."""

EQUAL = {
    "OMP_NUM_THREADS": "1",
    "PFL_PYTORCH_DEVICE": "cpu",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's default of 15 would let any other process starve one system's clients and not another's.
    "RAY_worker_niceness": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "PYTHONWARNINGS": "ignore",
}
"""Settings that are the same for all systems."""


@dataclass(frozen=True)
class Environments:
    """Where the interpreters and the code are.

    Attributes:
        ours: The interpreter of plain loop, bare Ray and rayfed-ssl.
        peers: Directory of the peers' environments.
        code: The checkout or copy of rayfed-ssl that is measured.
    """

    ours: Path
    peers: Path
    code: Path = ROOT

    def python(self, system: str) -> Path:
        """Find a system's interpreter."""
        name = WORKERS[system][0]
        return self.ours if name == "ours" else self.peers / name / "bin" / "python"


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        code: Its exit code; None where it was stopped after the limit.
        seconds: How long it ran.
        stderr: The end of what it said.
    """

    code: int | None
    seconds: float
    stderr: str


def run(
    command: Sequence[str],
    limit: float,
    *,
    code: Path = ROOT,
    stop_when: Callable[[str], bool] | None = None,
) -> Ended:
    """Run a command to its end, to a limit or until something has happened, which kills it, and leave nothing behind.

    Args:
        command: What to run.
        limit: Seconds after which it is killed.
        code: Where it runs, and where Python looks for rayfed-ssl.
        stop_when: Is given what the process has said so far; when true, the process is killed with SIGKILL.
    """
    mark = secrets.token_hex(8)
    own = os.environ | EQUAL | {"PYTHONPATH": f"{code}:{ROOT}", MARK: mark}
    begun, status = time.monotonic(), None
    with tempfile.NamedTemporaryFile("w") as said:
        process = subprocess.Popen(command, cwd=code, env=own, stdout=said, stderr=said)
        try:
            while time.monotonic() - begun < limit and (status := process.poll()) is None:
                if stop_when is not None and stop_when(Path(said.name).read_text(errors="replace")):
                    process.kill()
                    status = process.wait()
                    break
                time.sleep(0.02)
        finally:
            seconds = time.monotonic() - begun
            clear(mark)
            process.wait()
        return Ended(status, seconds, Path(said.name).read_text(errors="replace")[-SAID:])


def clear(mark: str) -> None:
    """Kill every process that carries a mark."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                process.kill()


def run_cases(
    system: str,
    cases: Sequence[Fields],
    environments: Environments,
    limit: float,
    prefix: Sequence[str] = (),
    **options: Any,
) -> tuple[list[dict[str, Any]], Ended]:
    """Run cases in one process of a system.

    Args:
        system: Whose.
        cases: What it measures, in this order.
        environments: The interpreters.
        limit: Seconds that all of it may take.
        prefix: Comes before the command, such as a shell that sets a limit.
        options: Of `run`.

    Returns:
        The results that it wrote, and how it ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        listed, out = Path(folder) / "cases.json", Path(folder) / "results.jsonl"
        listed.write_text(json.dumps(cases))
        command = [*prefix, str(environments.python(system)), "-m", f"benchmarks.peers.{WORKERS[system][1]}"]
        ended = run([*command, str(listed), str(out)], limit, code=environments.code, **options)
        lines = out.read_text().splitlines() if out.exists() else []
        return [json.loads(line) for line in lines], ended
