"""Private Rays: vital processes, stale sessions, object store; and finding a running Ray."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import ray

from actors.cluster import address, connect, machine, private_ray
from actors.cluster import health as health_module
from actors.cluster.address import LocalNode, check_address, resolve_address
from actors.cluster.health import Health
from actors.cluster.stale_sessions import MPS, RAY, SessionDirectory, remove_stale_sessions
from actors.errors import ClusterError
from tests.actors.conftest import ask_until, is_gone, run_python

OWNER = """
import subprocess, sys, time
from actors.cluster.stale_sessions import SessionDirectory
own = SessionDirectory.create()
agent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", f"--temp-dir={own.path}"])
print(own.path, agent.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def raylet(tmp_path):
    """Start a process of that name, with Ray's directory in its command line, which runs code."""
    processes = []

    def begin(code):
        program = tmp_path / "raylet"
        program.symlink_to(shutil.which("bash"))
        processes.append(subprocess.Popen([program, "-c", code]))
        return processes[0]

    yield begin
    for process in processes:
        process.kill()
        process.wait(60)


def test_a_raylet_that_was_stopped_is_killed_before_ray_is_left(tmp_path, raylet):
    health = Health(tmp_path)
    process = raylet("while true; do :; done")
    ask_until(lambda: health.find_processes() or health.vital, bool)
    health.kill_stopped()
    assert process.poll() is None
    process.send_signal(signal.SIGSTOP)
    ask_until(health.vital["raylet"].status, lambda status: status == psutil.STATUS_STOPPED)
    health.kill_stopped()
    assert process.wait(60) == -signal.SIGKILL


@pytest.fixture
def head(monkeypatch):
    """Pretend that this socket is the head of the Ray that was joined, at which a watch looks often."""
    monkeypatch.setattr(health_module, "WATCH_INTERVAL", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        context = SimpleNamespace(gcs_address=f"127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(health_module.ray, "get_runtime_context", lambda: context)
        yield server


@pytest.mark.parametrize(
    ("number", "message"),
    [(signal.SIGKILL, "Ray's raylet died: "), (signal.SIGSTOP, "was stopped by a signal: ")],
)
def test_who_watches_is_told_of_a_raylet_that_died_or_stays_stopped(tmp_path, raylet, head, number, message):
    health, deaths = Health(tmp_path), []
    process = raylet("while true; do :; done")
    ask_until(lambda: health.find_processes() or health.vital, bool)
    health.watch(deaths.append)
    assert deaths == []
    process.send_signal(number)
    (death,) = ask_until(lambda: deaths, bool)
    assert message in death


def test_who_watches_is_told_of_a_head_that_no_longer_answers(head):
    health, deaths = Health(), []
    health.watch(deaths.append)
    health._watcher.join(0.5)
    assert deaths == []
    where = f"127.0.0.1:{head.getsockname()[1]}"
    head.close()
    health._watcher.join(60)
    assert deaths == [
        f"Ray's head at {where} does not answer (connection refused): start it again, then resume the run"
    ]


def test_nobody_is_told_of_a_ray_that_was_left(tmp_path, raylet, head):
    health, deaths = Health(tmp_path), []
    process = raylet("while true; do :; done")
    ask_until(lambda: health.find_processes() or health.vital, bool)
    health.watch(deaths.append)
    health.left.set()
    process.kill()
    head.close()
    health._watcher.join(60)
    assert deaths == []


def test_processes_that_are_older_are_not_watched(tmp_path, raylet):
    process = psutil.Process(raylet("sleep 600; :").pid)
    # A child that has not become `sleep` yet has its parent's name.
    assert ask_until(lambda: [child.name() for child in process.children()], ["sleep"].__eq__)
    health = Health(tmp_path)
    health.find_processes()
    assert health.vital == {}


def test_a_killed_drivers_directory_and_processes_go_and_a_living_ones_stay(short_tmp):
    drivers = [subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    (dead, dead_agent), (alive, alive_agent) = (driver.stdout.readline().split() for driver in drivers)
    foreign = short_tmp / "rayfed-foreign"
    foreign.mkdir()
    drivers[0].kill()
    drivers[0].wait(60)
    assert remove_stale_sessions() == [Path(dead)]
    assert not Path(dead).exists()
    assert ask_until(lambda: is_gone(int(dead_agent)), bool)  # a moment after it was killed
    assert Path(alive).is_dir()
    assert psutil.Process(int(alive_agent)).is_running()
    assert foreign.is_dir()
    os.kill(int(alive_agent), signal.SIGKILL)
    drivers[1].kill()
    drivers[1].wait(60)
    assert remove_stale_sessions() == [Path(alive)]


def test_only_its_user_enters_a_sessions_directory(short_tmp):
    session = SessionDirectory.create()
    assert (session.path.parent, session.ray.parent) == (short_tmp, session.path)
    assert session.path.stat().st_mode & 0o777 == 0o700
    session.remove()
    assert not list(short_tmp.iterdir())


def test_a_session_without_an_owner_goes_unless_a_process_uses_it_or_it_is_something_else(short_tmp):
    stale, used, other, elsewhere = (short_tmp / name for name in ("rayfed-a", "rayfed-b", "rayfed-c", "elsewhere"))
    for directory in (stale / RAY, used / RAY, other / RAY, elsewhere / RAY):
        directory.mkdir(parents=True)
    (stale / MPS).mkdir()
    (other / "notes.txt").touch()
    (short_tmp / "rayfed-d").symlink_to(elsewhere)
    user = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", f"--temp-dir={used / RAY}"])
    assert ask_until(remove_stale_sessions, bool) == [stale]
    assert not stale.exists()
    assert all(path.is_dir() for path in (used / RAY, other / RAY, elsewhere / RAY))
    assert user.poll() is None
    user.kill()
    user.wait(60)
    assert remove_stale_sessions() == [used]


@pytest.mark.parametrize(
    ("memory", "shared", "expected"),
    [(10_000_000_000, 500e6, 450e6), (1_000_000_000, 50e9, 300e6), (200_000_000, 50e9, 100e6)],
)
def test_the_object_store_fits_into_shared_memory_and_is_as_large_as_planned(
    tmp_path, monkeypatch, memory, shared, expected
):
    monkeypatch.setattr(machine, "free_shared_memory", lambda: shared)
    for module in (machine, private_ray):
        monkeypatch.setattr(module, "free_memory", lambda: memory)
    chosen = private_ray.options(tmp_path, 1)["object_store_memory"]
    assert chosen == machine.this_machine().store == int(expected)


def test_without_shared_memory_a_warning_says_that_the_object_store_is_on_disk(tmp_path, monkeypatch):
    for module in (machine, private_ray):
        monkeypatch.setattr(module, "free_shared_memory", lambda: 64e6)
    with pytest.warns(RuntimeWarning, match=r"has only 64 MB free, so Ray's object store is on disk .* --shm-size=2g"):
        assert private_ray.options(tmp_path, 1)["object_store_memory"] == int(machine.MIN_STORE)


@pytest.fixture
def nodes(monkeypatch):
    """Pretend that these nodes run here."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    local_nodes = []
    monkeypatch.setattr(address, "local_nodes", lambda: iter(local_nodes))
    return local_nodes


PUBLIC = [LocalNode("10.0.0.2:6379", "/tmp/ray"), LocalNode("10.0.0.1:6380", "/tmp/ray2")]
PRIVATE = LocalNode("10.0.0.1:41000", "/tmp/rayfed-abc/r")


def test_auto_is_the_only_ray_that_is_not_private_or_the_address_that_a_submitted_job_gets(nodes, monkeypatch):
    nodes += [PUBLIC[0], PRIVATE]
    assert resolve_address("auto") == "10.0.0.2:6379"
    nodes[:] = PUBLIC
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    assert resolve_address("auto") == "10.0.0.2:6379"


@pytest.mark.parametrize(
    ("local_nodes", "message"),
    [
        ([PRIVATE], r"^no Ray runs on this machine: start one with `ray up cluster.yaml`"),
        (PUBLIC, r"^2 Rays run on this machine, at 10.0.0.1:6380 and 10.0.0.2:6379: choose one"),
    ],
)
def test_auto_without_exactly_one_ray_is_refused(nodes, local_nodes, message):
    nodes += local_nodes
    with pytest.raises(ClusterError, match=message):
        resolve_address("auto")


@pytest.mark.parametrize("named", ["auto", "127.0.0.1:9", "http://127.0.0.1:8265"])
@pytest.mark.parametrize("given", [None, "auto"])
def test_the_variable_is_named_where_it_is_what_was_used(nodes, given, named, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", named)
    with pytest.raises(
        ClusterError, match=rf"^RAY_ADDRESS={named}: .*; unset RAY_ADDRESS( and .*)? to start Ray here$"
    ):
        connect.start(given)


def test_the_option_is_named_where_it_is_what_was_used(nodes, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(
        ClusterError, match=r"^there is no Ray at 127.0.0.1:9 .*; leave --address out to start Ray here$"
    ):
        connect.start("127.0.0.1:9")


def test_a_machine_without_a_node_of_the_ray_is_refused(nodes):
    nodes.append(PRIVATE)
    with socket.create_server(("127.0.0.1", 0)) as head:
        where = f"127.0.0.1:{head.getsockname()[1]}"
        with pytest.raises(ClusterError, match=rf"^this machine is no node of the Ray at {where}, .* `ray job submit`"):
            check_address(where)


@pytest.mark.slow
def test_a_gcs_that_is_killed_ends_the_start_in_a_line(short_tmp):
    code = """
import sys, threading, time, psutil
from actors.cluster.connect import start
from actors.errors import ClusterError

def hunt():
    while True:
        for child in psutil.Process().children():
            if child.name() == "gcs_server":
                return child.kill()

threading.Thread(target=hunt, daemon=True).start()
try:
    start("local", num_cpus=1)
except ClusterError as error:
    sys.exit(str(error))
"""
    ended = run_python(code, env=os.environ | {"PYTHONWARNINGS": "ignore"})
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()[-1:]
    assert line.startswith("Ray did not start on this machine (")
    assert not list(short_tmp.glob("rayfed-*"))


@pytest.mark.parametrize(
    ("load", "advice"), [(0.5, "check space in .*, memory"), (500.0, "the load of this machine is 5")]
)
def test_a_failed_start_is_put_down_to_the_load_of_a_busy_machine(load, advice, monkeypatch):
    monkeypatch.setattr(connect.os, "getloadavg", lambda: (load, load, load))
    begun = connect._Start(connect.Cluster(True, SessionDirectory.create()), failures=[RuntimeError("its raylet died")])
    begun.done.set()
    with pytest.raises(ClusterError, match=rf"^Ray did not start on this machine \(its raylet died\): {advice}"):
        connect._finish(begun, 1)
