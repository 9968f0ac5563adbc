"""Fixtures of the Ray layer's tests: one Ray for each worker of pytest, and a context that kills actors."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from ray.exceptions import ObjectLostError

from actors.cluster.connect import Cluster, start


@pytest.fixture(scope="session")
def cluster(own_cache: None) -> Iterator[Cluster]:
    """Ray with four CPUs, whatever the machine has, so that three actors fit."""
    started = start("local", num_cpus=4, num_workers=4, timeout=200)
    yield started
    started.stop()


@pytest.fixture
def short_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A TMPDIR short enough for Ray's sockets, for child processes too."""
    path = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    yield path
    shutil.rmtree(path)


def ask_until(question: Callable[[], Any], answer_is_right: Callable[[Any], object], seconds: float = 20) -> Any:
    """Ask again until the answer is right, and give the last one."""
    deadline = time.monotonic() + seconds
    while not answer_is_right(answer := question()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return answer


def is_gone(process: int) -> bool:
    """Whether a process has ended; nobody may have waited for it."""
    try:
        return bool(psutil.Process(process).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def run_python(code: str, *arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a program in a process of its own."""
    program = [sys.executable, "-c", code, *arguments]
    return subprocess.run(program, capture_output=True, text=True, timeout=300, check=False, **options)


@contextmanager
def killing(title: str, times: int) -> Iterator[list[int]]:
    """Kill actors by what they are doing ("ClientActor.update_client"); the list holds the ids of those that died."""
    killed: list[int] = []
    over = threading.Event()

    def hunt() -> None:
        while len(killed) < times and not over.is_set():
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error, ProcessLookupError):  # it ended by itself just now
                    is_wanted = "".join(process.cmdline()[:1]).startswith(f"ray::{title}")
                    if is_wanted and process.pid not in killed and len(killed) < times:
                        os.kill(process.pid, signal.SIGKILL)
                        killed.append(process.pid)

    thread = threading.Thread(target=hunt)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


class Owner:
    """Owns an object."""

    def put(self) -> "list[ray.ObjectRef[Any]]":
        return [ray.put(np.zeros(1))]


@pytest.fixture(scope="session")
def lost_ref(cluster: Cluster) -> "ray.ObjectRef[Any]":
    """A ref to an object whose owner is gone, as after the death of a machine."""
    owner: Any = ray.remote(num_cpus=0, max_restarts=0)(Owner).remote()
    ref: ray.ObjectRef[Any] = ray.get(owner.put.remote())[0]
    ray.kill(owner)
    while True:
        try:
            ray.get(ref)
        except ObjectLostError:
            return ref
        time.sleep(0.02)
