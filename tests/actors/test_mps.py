"""NVIDIA's MPS with a private Ray, whose control program a script stands for: nothing here was seen on a GPU."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from actors import federation_actor, runs
from actors.cluster import mps
from actors.cluster.mps import MpsDaemon, visible_gpus
from actors.cluster.stale_sessions import MPS_PIPE, SessionDirectory, remove_stale_sessions
from actors.errors import ClusterError
from actors.federation_actor import ending_without_gpu
from actors.placement.allocation import Placement
from actors.placement.plan import check_fits, mps_obstacle
from rayfed_ssl.errors import ConfigError
from tests.actors.conftest import ask_until, is_gone, run_python

CONTROL = """#!/bin/bash
file=$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid
if [ "$1" = -d ]; then
    [ -e "$0.refuses" ] && { echo; echo "no permission"; exit 1; }
    sleep 600 &
    echo $! > "$file"
    exit
fi
read -r command
process=$(cat "$file" 2> /dev/null) && grep -qs sleep "/proc/$process/cmdline" || exit 1
echo "$command" >> "$0.commands"
[ "$command" = quit ] && kill "$process"
exit 0
"""
"""A daemon, which keeps its outputs open, and the program that asks it and ends it."""


@pytest.fixture
def control(tmp_path, monkeypatch):
    """Put a stand-in for the control program on the PATH, and one that works for a first CUDA program."""
    program = tmp_path / "bin" / mps.PROGRAM
    program.parent.mkdir()
    program.write_text(CONTROL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.delenv(MPS_PIPE, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(mps, "CLIENT", ("true",))
    return program


@pytest.fixture
def daemon(control, tmp_path):
    """A daemon that has started."""
    started = MpsDaemon(tmp_path / "mps")
    assert started.start()
    yield started
    started.stop()


def process_of(directory: Path) -> int:
    return int((directory / "pipe" / f"{mps.PROGRAM}.pid").read_text())


def test_a_daemon_has_directories_that_only_its_user_enters_and_quits_when_it_is_stopped(daemon, control):
    process = process_of(daemon.directory)
    modes = [path.stat().st_mode & 0o777 for path in (daemon.directory, *daemon.directory.iterdir())]
    assert modes == [0o700] * 3
    pipe, log = (str(daemon.directory / name) for name in ("pipe", "log"))
    assert daemon.environment == {"CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_MPS_LOG_DIRECTORY": log}
    assert not is_gone(process)
    daemon.stop()
    assert is_gone(process)
    assert Path(f"{control}.commands").read_text().splitlines()[-1] == "quit"
    assert not daemon.directory.exists()


def test_processes_that_are_started_meanwhile_inherit_the_environment_and_later_ones_do_not(daemon, monkeypatch):
    monkeypatch.setenv(MPS_PIPE, "/nowhere")
    with daemon.exported():
        assert daemon.environment.items() <= os.environ.items()
    assert os.environ[MPS_PIPE] == "/nowhere"
    assert "CUDA_MPS_LOG_DIRECTORY" not in os.environ


REFUSED = r"NVIDIA's MPS did not start \(no permission\)"
UNSERVED = r"NVIDIA's MPS did not start \(CUDA's error is 805\)"


@pytest.mark.parametrize(("is_refused", "message"), [(True, REFUSED), (False, UNSERVED)])
def test_a_daemon_that_cannot_serve_is_one_line_and_leaves_nothing(control, tmp_path, monkeypatch, is_refused, message):
    if is_refused:
        Path(f"{control}.refuses").touch()
    monkeypatch.setattr(mps, "CLIENT", ("sh", "-c", 'echo; echo "CUDA\'s error is 805"; exit 1'))
    with pytest.warns(RuntimeWarning, match=f"^{message}: actors share GPUs without it$"):
        assert not MpsDaemon(tmp_path / "mps").start()
    with pytest.raises(ClusterError, match=f"^engine.mps=on, but {message}: see .*, or set engine.mps=auto$"):
        MpsDaemon(tmp_path / "mps", is_required=True).start()
    assert not (tmp_path / "mps").exists()
    assert not [process for process in psutil.process_iter(["environ"]) if is_served(process, tmp_path)]


def is_served(process: psutil.Process, directory: Path) -> bool:
    is_running = process.status() != psutil.STATUS_ZOMBIE
    return is_running and (process.info["environ"] or {}).get(MPS_PIPE, "").startswith(str(directory))


def test_a_program_that_hangs_is_given_up(control, tmp_path, monkeypatch):
    monkeypatch.setattr(mps, "TIMEOUT", 1.0)
    monkeypatch.setattr(mps, "CLIENT", ("sleep", "600"))
    with pytest.warns(RuntimeWarning, match=r"did not start \(sleep takes longer than 1 s\)"):
        assert not MpsDaemon(tmp_path / "mps").start()


def test_a_daemon_that_died_is_one_warning_and_its_pipes_go(daemon, recwarn):
    daemon.check()
    os.kill(process_of(daemon.directory), signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match=r"^NVIDIA's MPS died: actors share GPUs without it$"):
        ask_until(lambda: daemon.check() or daemon._is_lost, bool)
    assert not (daemon.directory / "pipe").exists()
    recwarn.clear()
    daemon.check()
    assert not recwarn


def test_a_required_daemon_that_died_ends_the_run_in_one_line(control, tmp_path):
    daemon = MpsDaemon(tmp_path / "mps", is_required=True)
    assert daemon.start()
    daemon.check()
    os.kill(process_of(daemon.directory), signal.SIGKILL)
    with pytest.raises(ClusterError, match=r"^engine.mps=on, but NVIDIA's MPS died: "):
        ask_until(daemon.check, bool)
    daemon.stop()


def test_two_runs_have_a_daemon_each(daemon, tmp_path):
    other = MpsDaemon(tmp_path / "other")
    assert other.start()
    first, second = process_of(daemon.directory), process_of(other.directory)
    other.stop()
    assert is_gone(second)
    assert not is_gone(first)
    assert daemon.environment[MPS_PIPE] != other.environment[MPS_PIPE]


OWNER = """
import time
from actors.cluster import mps
from actors.cluster.stale_sessions import MPS, SessionDirectory
mps.CLIENT = ("true",)
session = SessionDirectory.create()
daemon = mps.MpsDaemon(session.path / MPS)
daemon.start()
print(session.path, daemon._guard.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("kills_guard", [False, True])
def test_a_killed_drivers_daemon_ends_at_once_or_with_its_stale_session(control, short_tmp, kills_guard):
    driver = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    session, guard = driver.stdout.readline().split()
    daemon = process_of(Path(session) / "mps")
    living = SessionDirectory.create()
    if kills_guard:
        os.kill(int(guard), signal.SIGKILL)
    driver.kill()
    driver.wait(60)
    if not kills_guard:
        assert ask_until(lambda: is_gone(daemon), bool)
    assert is_gone(daemon) is not kills_guard
    assert remove_stale_sessions() == [Path(session)]
    assert ask_until(lambda: is_gone(daemon), bool)
    living.remove()


def test_gpus_that_were_chosen_by_number_are_named_by_what_mps_does_not_number_anew(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"ab-{index}"))
    for chosen, named in (("2,3", "GPU-ab-0,GPU-ab-1"), ("GPU-ab-0", None), ("MIG-1", None), ("", None)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        assert visible_gpus() == ({"CUDA_VISIBLE_DEVICES": named} if named else {})


SHARED = Placement(8, 1.0, 0.25, "cuda")


@pytest.mark.parametrize(
    ("placement", "obstacle"),
    [
        (SHARED, ""),
        (Placement(2, 1.0, 1.0, "cuda"), "no GPU has two client actors, got 2 on cuda: set engine.actors"),
        (Placement(2, 1.0, 0.0, "cpu"), "no GPU has two client actors, got 2 on cpu: set engine.actors"),
        (Placement(64, 1.0, 0.0156, "cuda"), "it serves 48 processes a GPU, got 64 actors and the server: lower "),
    ],
)
def test_only_actors_that_share_a_gpu_get_mps(control, placement, obstacle):
    assert mps_obstacle(placement).startswith(obstacle)
    assert bool(mps_obstacle(placement)) == bool(obstacle)


def test_without_the_control_program_there_is_no_mps(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mps_obstacle(SHARED) == f"{mps.PROGRAM} is not on the PATH: install it with NVIDIA's driver"


@pytest.fixture
def no_ray(monkeypatch):
    """A process that has joined no Ray yet."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.is_initialized", lambda: False)


def test_mps_that_is_asked_for_where_it_cannot_be_is_refused_in_one_line(control, no_ray, open_tiny):
    setting = "engine.actors=1"
    with pytest.raises(ClusterError, match=r"^engine.mps=on .* no GPU has two client actors, got 1 on cpu: "):
        check_fits(open_tiny("fedavg", setting, "engine.mps=on"), None)
    with pytest.raises(
        ClusterError, match=r"^engine.mps=on .* this one runs already: start it as docs/cluster.md says"
    ):
        check_fits(open_tiny("fedavg", setting, "engine.mps=on"), "head:6379")
    with pytest.raises(ConfigError, match=r"^engine.mps=on .* engine.executor=local has none: leave one"):
        runs.check_fits(open_tiny("fedavg", setting, "engine.mps=on", "engine.executor=local"))
    assert check_fits(open_tiny("fedavg", setting), None)[0] == "off"


def test_a_daemon_of_the_users_own_is_joined_and_left_alone(daemon, no_ray, open_tiny, monkeypatch):
    monkeypatch.setenv(MPS_PIPE, daemon.environment[MPS_PIPE])
    assert check_fits(open_tiny("fedavg", "engine.actors=1", "engine.mps=on"), "head:6379")[0] == "joined"
    assert check_fits(open_tiny("fedavg", "engine.actors=1", "engine.mps=off"), None)[0] == "off"
    monkeypatch.setenv(MPS_PIPE, "/nowhere")
    assert check_fits(open_tiny("fedavg", "engine.actors=1"), None)[0] == "off"


@pytest.mark.parametrize(
    ("is_served", "works", "ends"), [(True, False, SystemExit), (True, True, ValueError), (False, False, ValueError)]
)
def test_a_process_that_lost_its_gpu_with_mps_ends_and_others_raise(monkeypatch, is_served, works, ends):
    def synchronize():
        if not works:
            raise RuntimeError("CUDA error: MPS client failed to connect")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(federation_actor.os, "_exit", sys.exit)
    monkeypatch.delenv(MPS_PIPE, raising=False)
    if is_served:
        monkeypatch.setenv(MPS_PIPE, "/mps")
    with pytest.raises(ends), ending_without_gpu():
        raise ValueError("the step failed")


DRIVER = """
import os, signal, sys, time
import ray
from actors.cluster import mps
from actors.cluster.connect import start
mps.CLIENT = ("true",)
signal.signal(signal.SIGINT, signal.default_int_handler)
cluster = start("local", num_cpus=1, timeout=200, mps="on")
try:
    served = ray.get(ray.remote(lambda: os.environ["CUDA_MPS_PIPE_DIRECTORY"]).remote())
    print(served, "CUDA_MPS_PIPE_DIRECTORY" in os.environ, flush=True)
    time.sleep(float(sys.argv[1]))
finally:
    cluster.stop()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_private_rays_daemon_serves_its_actors_and_ends_with_the_driver(control, short_tmp, number):
    words = [sys.executable, "-c", DRIVER, "600" if number else "3"]
    driver = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    pipe, is_in_driver = driver.stdout.readline().split()
    assert (Path(pipe).parents[2], is_in_driver) == (short_tmp, "False")
    daemon = process_of(Path(pipe).parent)
    if number:
        (os.killpg if number == signal.SIGINT else os.kill)(driver.pid, number)  # Ctrl-C reaches the group
    driver.communicate(timeout=120)
    assert bool(driver.returncode) == bool(number)
    assert ask_until(lambda: is_gone(daemon), bool)
    assert Path(f"{control}.commands").read_text().splitlines()[-1] == "quit"
    assert (list(short_tmp.glob("rayfed-*")) != []) == (number == signal.SIGKILL)
    remove_stale_sessions()
    assert not list(short_tmp.glob("rayfed-*"))


RUN = """
import os, signal, sys
from pathlib import Path
from actors import run
from actors.cluster import health, mps
from actors.placement import plan
from rayfed_ssl import Config, Observer

health.CHECK_INTERVAL, mps.CLIENT, plan.mps_obstacle = 0.3, ("true",), lambda placement: ""

class Kill(Observer):
    def on_client(self, report):
        for file in Path(os.environ["TMPDIR"]).glob("rayfed-*/mps/pipe/*.pid"):
            os.kill(int(file.read_text()), signal.SIGKILL)

if __name__ == "__main__":
    overrides = ["data.train_limit=150", "data.test_limit=60", "evaluation.linear.epochs=1", "public=null", sys.argv[2]]
    config = Config.load("digits", "method=fedavg", "rounds=2", "training.epochs=4", "engine.actors=1", *overrides)
    print(run(config, sys.argv[1], observer=Kill()).state_sha256)
"""


@pytest.mark.slow
def test_a_run_whose_daemon_dies_continues_to_the_same_bits_unless_it_requires_mps(control, short_tmp, tmp_path):
    settings = ("engine.executor=local", "engine.mps=auto", "engine.mps=on")
    alone, without, required = (run_python(RUN, str(tmp_path / setting), setting) for setting in settings)
    assert without.stderr.count("NVIDIA's MPS died: actors share GPUs without it") == 1
    assert (without.returncode, without.stdout) == (0, alone.stdout)
    assert len(alone.stdout) == 65
    assert required.returncode == 1
    assert "ClusterError: engine.mps=on, but NVIDIA's MPS died: " in required.stderr.splitlines()[-1]
    assert not list(short_tmp.glob("rayfed-*"))
