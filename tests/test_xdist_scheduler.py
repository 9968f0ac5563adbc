"""A test that kills its xdist worker fails once, and the other tests of its file still run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
from tests.xdist_scheduler import pytest_xdist_make_scheduler
"""
DEADLY = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(4))
def test_one_of_four(number):
    with pathlib.Path("begun").open("a") as file:
        file.write(f"{number} ")
    if number in DEADLY:
        os._exit(1)
"""


def run(folder, deadly: str) -> tuple[str, str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_deadly.py").write_text(DEADLY.replace("DEADLY", deadly))
    (folder / "test_other.py").write_text("def test_other(): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "--numprocesses=2", "-p", "no:cacheprovider", "."]
    ended = subprocess.run(
        command, cwd=folder, env=own_path(), capture_output=True, text=True, timeout=200, check=False
    )
    return ended.stdout.splitlines()[-1], (folder / "begun").read_text()


def own_path() -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return environment | {"PYTHONPATH": str(Path(__file__).parents[1])}


@pytest.mark.slow
def test_a_test_that_kills_its_worker_fails_once_and_the_others_of_its_file_are_run(tmp_path):
    summary, begun = run(tmp_path, "{1, 3}")
    assert summary.startswith("2 failed, 3 passed")
    assert begun == "0 1 2 3 "
