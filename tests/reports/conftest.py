"""Finished runs to report on: one setting with two seeds, and clients that train alone."""

from pathlib import Path

import pytest

from rayfed_ssl.runs import run
from tests.conftest import TinyConfig


@pytest.fixture(scope="session")
def sweep(tiny: TinyConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of three runs; read-only."""
    folder = tmp_path_factory.mktemp("reports") / "sweep"
    for seed in (0, 1):
        run(tiny("flesd", f"seed={seed}", "evaluation.every=1"), folder / f"flesd-{seed}")
    run(tiny("local", "evaluation.every=1"), folder / "local-0")
    return folder
