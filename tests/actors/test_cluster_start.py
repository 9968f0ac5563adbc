"""Private Rays: vital processes, stale sessions, object store; and finding a running Ray."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import psutil
import pytest

from actors.cluster import address, machine, private_ray
from actors.cluster import health as health_module
from actors.cluster.address import LocalNode, check_address, resolve_address
from actors.cluster.health import Health
from actors.cluster.stale_sessions import RAY, SessionDirectory, remove_stale_sessions
from actors.errors import ClusterError, death_reason, first_line
from tests.actors.conftest import run_python

OWNER = """
import subprocess, sys, time
from actors.cluster.stale_sessions import SessionDirectory
own = SessionDirectory.create()
agent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", f"--temp-dir={own.path}"])
print(own.path, agent.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def short_tmp(monkeypatch):
    """A TMPDIR short enough for Ray's sockets, for child processes too."""
    path = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    yield path
    shutil.rmtree(path)


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


def ask_until(question, answer_is_right, seconds=20):
    deadline = time.monotonic() + seconds
    while not answer_is_right(answer := question()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return answer


def is_gone(process: int) -> bool:
    try:
        return bool(psutil.Process(process).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_a_dead_raylet_is_reported_with_the_last_error_of_its_log(tmp_path, raylet):
    logs = tmp_path / "session_latest" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("[2026-01-01 00:00:00,123 I 7 7] (raylet) main.cc:1: all is well\n")
    (logs / "raylet.err").write_text(
        "[2026-01-01 00:00:00,124 C 7 7] (raylet) store.cc:38: You have found a bug in Ray. Check failed: No room on disk. "
        + "Please see the manual. " * 20
    )
    health = Health(tmp_path)
    process = raylet("while true; do :; done")

    def failure():
        health.find_processes()
        return health.failure()

    ask_until(failure, lambda _: "raylet" in health.vital)
    assert (health.vital["raylet"].pid, failure()) == (process.pid, None)
    process.kill()
    message = "raylet died: No room on disk. " + "Please see the manual. " * 5 + "Please see the manual"
    assert ask_until(failure, bool) == message
    with pytest.raises(ClusterError, match=r"^Ray's raylet on this machine died: No room on disk"):
        health.check_processes()


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


@pytest.mark.parametrize(
    ("number", "message"),
    [(signal.SIGKILL, "Ray's raylet on this machine died: "), (signal.SIGSTOP, "was stopped by a signal: ")],
)
def test_who_watches_is_told_of_a_raylet_that_died_or_stays_stopped(tmp_path, raylet, monkeypatch, number, message):
    monkeypatch.setattr(health_module, "WATCH_INTERVAL", 0.05)
    health, deaths = Health(tmp_path), []
    process = raylet("while true; do :; done")
    ask_until(lambda: health.find_processes() or health.vital, bool)
    health.watch(deaths.append)
    assert deaths == []
    process.send_signal(number)
    (death,) = ask_until(lambda: deaths, bool)
    assert message in death


def test_nobody_is_told_of_a_ray_that_was_left(tmp_path, raylet):
    health, deaths = Health(tmp_path), []
    process = raylet("while true; do :; done")
    ask_until(lambda: health.find_processes() or health.vital, bool)
    health.watch(deaths.append)
    health.left.set()
    process.kill()
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


def test_a_full_disk_is_refused_and_nothing_left(short_tmp, monkeypatch):
    monkeypatch.setattr(private_ray, "DISK_NEEDED", 1e18)
    with pytest.raises(ClusterError, match=r"but .* has [\d]+ MB free: set TMPDIR to one with free space"):
        private_ray.session_directory()
    assert not list(short_tmp.iterdir())


def test_the_object_store_fits_into_shared_memory_and_is_as_large_as_planned(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=int(500e6)))
    assert private_ray.object_store(tmp_path) == {"object_store_memory": int(450e6)}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=int(50e9)))
    for free, expected in ((1_000_000_000, 300_000_000), (200_000_000, 100_000_000)):
        for module in (machine, private_ray):
            monkeypatch.setattr(module, "free_memory", lambda free=free: free)
        assert private_ray.object_store(tmp_path)["object_store_memory"] == machine.this_machine().store == expected


def test_the_object_store_is_on_disk_without_shared_memory(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(machine, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: usage._replace(free=int(64e6 if path.name == "shm" else 1e9))
    )
    with pytest.warns(RuntimeWarning, match=r"has only 58 MB free, so Ray's object store is on disk .* --shm-size=2g"):
        chosen = private_ray.object_store(tmp_path)
    assert chosen == {"object_store_memory": int(800e6), "_plasma_directory": str(tmp_path)}


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


class HeadWithToken(grpc.GenericRpcHandler):
    """Answers as the head of a Ray does that requires a token."""

    def __init__(self, token):
        self._token = f"Bearer {token}"

    def service(self, call):
        allowed = ("authorization", self._token) in call.invocation_metadata

        def answer(request, context):
            if not allowed:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer) if call.method == address.CHEAPEST_CALL else None


@pytest.fixture
def head_with_token(nodes, monkeypatch, tmp_path):
    """An address that requires a token, with a node of its Ray here; returns address and token."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(address, "use_token", lambda: None)  # it changes the whole process
    token = secrets.token_hex(16)
    server = grpc.server(ThreadPoolExecutor(2), handlers=[HeadWithToken(token)])
    where = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    nodes.append(LocalNode(where, "/tmp/ray"))
    yield where, token
    server.stop(None)


def test_the_right_token_is_accepted(head_with_token, monkeypatch, tmp_path):
    address, token = head_with_token
    (tmp_path / "token").write_text(token + "\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    check_address(address, 5)


@pytest.mark.parametrize(
    ("token", "mode", "message"),
    [
        (None, None, r"requires a token, but there is none in .*/.ray/auth_token: set RAY_AUTH_TOKEN_PATH"),
        ("wrong", None, r"refuses the token in RAY_AUTH_TOKEN: set"),
        ("right", "disabled", r"requires a token, but RAY_AUTH_MODE=disabled: unset it"),
        ("right", None, r"^this machine is no node of the Ray at 127.0.0.1:\d+, .* `ray job submit`"),
    ],
)
def test_what_keeps_a_driver_out_is_named(head_with_token, nodes, monkeypatch, token, mode, message):
    if token is not None:
        monkeypatch.setenv("RAY_AUTH_TOKEN", head_with_token[1] if token == "right" else token)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    nodes.clear()
    with pytest.raises(ClusterError, match=message):
        check_address(head_with_token[0], 5)


def test_a_version_mismatch_is_one_line():
    text = "Version mismatch: The cluster was started with:\n  Ray: 2.60.0\n\nThis process runs:\n  Ray: 2.59.0\n"
    expected = "Version mismatch: The cluster was started with: Ray: 2.60.0 This process runs: Ray: 2.59.0"
    assert first_line(RuntimeError(text)) == expected
    assert first_line(RuntimeError("one\ntwo")) == "one"


@pytest.mark.slow
def test_a_gcs_that_is_killed_ends_the_start_at_once(short_tmp):
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
    assert ended.stderr.startswith("Ray did not start on this machine (its gcs_server died)")
    assert not list(short_tmp.glob("rayfed-*"))


def test_an_actor_that_fails_to_start_shows_the_last_line_of_its_exception():
    last = "ModuleNotFoundError: No module named 'actors.client_actor'; 'actors' is not a package"
    text = f"The actor died because of an error raised in its creation task, ray::ClientActor.__init__()\n  File x\n{last}\n"
    assert death_reason(RuntimeError(text)) == last
