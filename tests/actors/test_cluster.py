"""Starting and leaving Ray: refusals in this process, runs in processes of their own."""

import os
import signal
import subprocess
import sys
import tempfile
import threading

import psutil
import pytest
import ray

from actors.cluster import stale_sessions
from actors.cluster.connect import start
from actors.cluster.stale_sessions import MAX_TEMP_PATH
from actors.errors import ClusterError
from tests.actors.conftest import run_python

RUN = """
import os, signal, sys
import psutil
from actors import run
from rayfed_ssl import Config, Observer

class Watch(Observer):
    def on_client(self, report):
        {on_client}

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    overrides = ["data.train_limit=150", "data.test_limit=60", "evaluation.linear.epochs=1", "public=null"]
    config = Config.load("digits", "method=fedavg", "rounds=2", "training.epochs={epochs}", "engine.actors=1", *overrides)
    run(config, sys.argv[1], observer=Watch())
"""

AHEAD = """
import sys
import psutil
from actors.cluster.connect import start, start_ahead, starts_private_ray

start_ahead(1)
assert "torch" not in sys.modules
is_private = starts_private_ray(None)
cluster = start()
children = psutil.Process().children(recursive=True)
print(is_private, cluster.owned, sum(child.name() == "ray::IDLE" for child in children))
cluster.stop()
"""

KILL_ONE = """
        for process in psutil.Process().children(recursive=True):
            if report.client == 0 and process.cmdline()[:1] and process.cmdline()[0].startswith("ray::ClientActor"):
                process.kill()
                return
"""


@pytest.fixture
def no_ray(monkeypatch):
    """A process that has joined no Ray yet."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)


def test_the_package_loads_neither_ray_nor_torch():
    assert run_python("import actors, sys; sys.exit(not {'ray', 'torch'}.isdisjoint(sys.modules))").returncode == 0


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", r"^there is no Ray at 127.0.0.1:1 \(connection refused\)"),
        ("ray://head:10001", r"^Ray's address must be host:port or auto"),
        (" ", r"^the address of Ray is empty: give host:port or auto"),
    ],
)
def test_addresses_without_ray_are_refused_in_one_line(no_ray, address, message):
    with pytest.raises(ClusterError, match=message) as caught:
        start(address)
    assert len(str(caught.value).splitlines()) == 1


def test_a_start_that_hangs_is_given_up_and_leaves_nothing(no_ray, monkeypatch, tmp_path):
    done = threading.Event()
    monkeypatch.setattr(ray, "init", lambda **_: done.wait(60))
    monkeypatch.setattr(stale_sessions, "_parent", lambda: tmp_path)
    with pytest.raises(ClusterError, match=r"^Ray did not start on this machine \(no answer within 0.5 s\): "):
        start("local", timeout=0.5)
    done.set()
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_created_is_refused(no_ray, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    with pytest.raises(ClusterError, match=r"^Ray has no directory for its files"):
        start("local")


def test_what_ray_opens_to_all_lies_where_only_its_user_enters_and_its_sockets_names_fit(cluster):
    session = cluster.directory
    assert session.ray.stat().st_mode & 0o777 == 0o777
    assert session.path.stat().st_mode & 0o777 == 0o700
    sockets = [path.relative_to(session.path.parent) for path in session.ray.glob("session_2*/sockets/*")]
    longest = (
        "/tmp".ljust(MAX_TEMP_PATH, "x") + "/" + max(map(str, sockets), key=len).replace(str(os.getpid()), "1234567")
    )
    assert len(longest) <= 107


def test_workers_of_a_private_ray_have_imported_what_their_actors_need(cluster):
    has_imported = ray.remote(num_cpus=0)(lambda: {"actors.client_actor", "actors.server_actor"} <= set(sys.modules))
    assert ray.get(has_imported.remote(), timeout=300)


def test_a_ray_that_this_process_has_joined_is_used(cluster):
    second = start("127.0.0.1:1")
    assert not second.owned
    second.stop()
    assert len(cluster.nodes()) == 1


@pytest.mark.slow
def test_a_ray_that_was_started_ahead_is_the_one_that_is_taken_next():
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as own:
        done = run_python(AHEAD, env={**os.environ, "TMPDIR": own})
        assert (done.returncode, done.stdout, done.stderr, os.listdir(own)) == (0, "True True 1\n", "", [])


@pytest.mark.slow
def test_a_run_is_silent_even_when_an_actor_dies_and_leaves_nothing(tmp_path):
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as own:  # sockets' names must be short
        # Of so small a run's probe the run itself warns, as it should.
        code = (
            f"import tempfile, warnings; tempfile.tempdir = {own!r}; warnings.simplefilter('ignore', RuntimeWarning)\n"
        )
        code += RUN.format(on_client=KILL_ONE, epochs=5)
        completed = run_python(code, str(tmp_path / "run"))
        left = os.listdir(own)
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")
    assert not [name for name in left if name.startswith("rayfed-")]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "send"), [(signal.SIGINT, os.killpg), (signal.SIGTERM, os.kill)])
def test_a_signal_ends_a_run_and_all_its_processes(tmp_path, number, send):
    program = RUN.format(on_client="print('client done', flush=True)", epochs=40)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    running = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "run")], **pipes)
    assert running.stdout.readline() == "client done\n"
    processes = psutil.Process(running.pid).children(recursive=True)
    send(running.pid, number)
    running.communicate(timeout=120)
    assert running.returncode != 0
    assert psutil.wait_procs(processes, timeout=120)[1] == []
