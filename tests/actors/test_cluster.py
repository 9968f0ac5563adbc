"""Starting and leaving Ray, in processes of their own: these tests are about what a shell would see."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading

import psutil
import pytest

from actors.cluster.connect import start

START = """
import sys
from actors.cluster.connect import ClusterError, start
try:
    start({arguments})
except ClusterError as error:
    sys.exit(str(error))
"""

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

KILL_ONE = """
        for process in psutil.Process().children(recursive=True):
            if report.client == 0 and process.cmdline()[:1] and process.cmdline()[0].startswith("ray::ClientActor"):
                process.kill()
                return
"""


def shell(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=200, check=False
    )


def refusal(arguments):
    """Start Ray in vain: it must end by itself, with an error and one line."""
    ended = shell(START.format(arguments=arguments))
    assert ended.returncode == 1
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    return line


def test_the_package_loads_neither_ray_nor_torch():
    assert shell("import actors, sys; sys.exit(not {'ray', 'torch'}.isdisjoint(sys.modules))").returncode == 0


def test_an_address_where_nobody_listens_is_refused():
    assert refusal("'127.0.0.1:1'").startswith("there is no Ray at 127.0.0.1:1 (connection refused)")


def test_an_address_of_another_service_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert refusal(f"{address!r}").startswith(f"what answers at {address} is not Ray")


def test_an_address_that_accepts_and_says_nothing_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert "timed out" in refusal(f"{address!r}, timeout=2")


def test_an_address_that_is_none_is_refused():
    assert refusal("'ray://head:10001'").startswith("Ray's address must be host:port or auto")


@pytest.mark.parametrize("address", ["", " "])
def test_an_empty_address_is_refused(address):
    assert refusal(repr(address)).startswith("the address of Ray is empty: give host:port or auto")


def test_a_ray_that_hangs_is_given_up():
    code = "import ray, time; ray.init = lambda **_: time.sleep(1000)" + START.format(arguments="'local', timeout=0.5")
    ended = shell(code)
    assert ended.returncode == 1
    assert ended.stderr.startswith("Ray did not start on this machine (no answer within 0.5 s)")
    assert len(ended.stderr.splitlines()) == 1


def test_no_room_for_rays_files_is_refused():
    code = "import tempfile; tempfile.tempdir = '/proc'" + START.format(arguments="'local'")
    assert shell(code).stderr.startswith("Ray finds no directory for its files")


def test_ray_is_taken_as_it_is_if_this_process_has_it(cluster):
    second = start("127.0.0.1:1")
    assert not second.owned
    second.stop()
    assert len(cluster.nodes()) == 1


def test_a_run_is_silent_even_when_an_actor_dies_and_leaves_nothing(tmp_path):
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as own:  # sockets' names must be short
        code = f"import tempfile; tempfile.tempdir = {own!r}\n" + RUN.format(on_client=KILL_ONE, epochs=5)
        ended = shell(code, str(tmp_path / "run"))
        left = os.listdir(own)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert not [name for name in left if name.startswith("rayfed-")]


@pytest.mark.parametrize(("number", "send"), [(signal.SIGINT, os.killpg), (signal.SIGTERM, os.kill)])
def test_a_signal_ends_a_run_and_all_its_processes(tmp_path, number, send):
    running = subprocess.Popen(
        [
            sys.executable,
            "-c",
            RUN.format(on_client="print('one is done', flush=True)", epochs=40),
            str(tmp_path / "run"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stdout.readline() == "one is done\n"
    everybody = psutil.Process(running.pid).children(recursive=True)
    send(running.pid, number)
    running.communicate(timeout=120)
    assert running.returncode != 0
    assert psutil.wait_procs(everybody, timeout=120)[1] == []
