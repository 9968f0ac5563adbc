"""B8 and B9: what a system does when Ray cannot start, and after it was killed."""

import tempfile
from typing import Any

from benchmarks.peers.cases import Fields
from benchmarks.peers.launch import Environments, run_cases

FILE_LIMIT = 100_000
"""Blocks of 1,024 bytes that a file may have in B8, as batch systems set it: Ray cannot make its object store."""

PATIENCE = 60.0
"""Seconds after which a process that does not end is stopped."""

LIMIT = 180.0
"""Seconds that a run of B9 may take."""


def without_ray(system: str, fields: Fields, environments: Environments) -> dict[str, Any]:
    """Start a system where Ray cannot start, and wait for its end."""
    shell = ["bash", "-c", f'ulimit -f {FILE_LIMIT}; exec "$@"', "bash"]
    results, ended = run_cases(system, [fields], environments, PATIENCE, prefix=shell)
    last = [line for line in ended.stderr.splitlines() if line.strip()][-1:]
    return {"code": ended.code, "exit_seconds": ended.seconds, "results": len(results), "said": last}


def kill_and_resume(system: str, fields: Fields, environments: Environments) -> dict[str, Any]:
    """Run undisturbed; then once more, killed in round 3, and started again with the same command."""
    with tempfile.TemporaryDirectory() as folder:
        undisturbed, _ = run_cases(system, [fields | {"directory": f"{folder}/whole"}], environments, LIMIT)
    with tempfile.TemporaryDirectory() as folder:
        same = [fields | {"directory": folder}]
        _, first = run_cases(system, same, environments, LIMIT, stop_when=lambda said: "round 3\n" in said)
        results, second = run_cases(system, same, environments, LIMIT)
    again = len(results[0]["seconds"]) if results else None
    both = [*undisturbed, *results]
    return {
        "killed_code": first.code,
        "code": second.code,
        "same": both[0]["weights"] == both[1]["weights"] if len(both) == 2 else None,
        "rounds_repeated": None if again is None else again - (fields["rounds"] - 2),
    }
