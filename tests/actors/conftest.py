"""Fixtures of the Ray layer's tests: one Ray for all of them, and a hand that kills actors."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import psutil
import pytest
import ray

from actors.cluster.connect import Cluster, start
from actors.fault_injection import LostObject

Killer = Callable[..., AbstractContextManager[list[int]]]


@pytest.fixture(scope="session")
def cluster(own_cache: None) -> Iterator[Cluster]:
    """Ray with four CPUs, whatever the machine has, so that three actors fit."""
    started = start("local", num_cpus=4, timeout=200)
    yield started
    started.stop()


def processes(title: str) -> list[psutil.Process]:
    """Find actors by what they are doing: "ClientActor" when idle, "ClientActor.update_client" in that call."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "".join(process.cmdline()[:1]).startswith(f"ray::{title}"):
                found.append(process)
        except psutil.Error:
            continue
    return found


@contextmanager
def killing(title: str, times: int) -> Iterator[list[int]]:
    """Kill so many actors that show this title, at once; the list holds the ids of those that died."""
    killed: list[int] = []
    over = threading.Event()

    def hunt() -> None:
        while len(killed) < times and not over.is_set():
            for process in processes(title):
                if process.pid not in killed and len(killed) < times:
                    with suppress(ProcessLookupError):  # it ended by itself just now
                        os.kill(process.pid, signal.SIGKILL)
                        killed.append(process.pid)

    thread = threading.Thread(target=hunt)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


@pytest.fixture
def kill() -> Killer:
    """A context in which actors die: kill("ClientActor.update_client", times=1)."""
    return killing


@pytest.fixture
def lost_ref(cluster: Cluster) -> "ray.ObjectRef[Any]":
    """A ref to an object whose owner is gone."""

    return LostObject().ref
