from collections.abc import Callable
from pathlib import Path

import pytest

from actors.cluster.machine import Node
from actors.cluster.mps import PROGRAM
from actors.placement.actor_cost import ACTOR_BYTES
from rayfed_ssl.capacity.client_cost import StepCost
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.machine.resources import cores
from tune.cli.doctor_checks import mps_line, proposal

FREE = 79_000_000_000


def test_doctor_says_what_is_here_what_a_client_takes_and_whether_the_run_fits(cli, recipes):
    result = cli("doctor", recipes["flesd"])
    assert result.exit_code == 0, result.output
    assert f"  {cores()} cores (" in result.stdout
    assert "object store would take" in result.stdout
    assert f"disk free for runs in {Path.cwd()}" in result.stdout
    assert "  3 clients, " in result.stdout
    assert "an actor: " in result.stdout
    assert "by estimate; --measure runs one step" in result.stdout
    assert f"engine.actors=2: {min(2, cores())} client actors, about " in result.stdout
    assert result.stdout.endswith("  fits\n")


@pytest.mark.slow
def test_doctor_measures_a_step_remembers_it_and_proposes_settings_to_paste(cli, recipes, tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('the working directory was imported from')\n")
    monkeypatch.chdir(tmp_path)
    words = ("doctor", recipes["fedavg"], "training.batch=13")
    measured = cli(*words, "--measure")
    assert measured.exit_code == 0, measured.output
    assert f"  proposed: engine.actors={min(3, cores())}\n" in measured.stdout
    (line,) = [line for line in measured.stdout.splitlines() if "(measured)" in line]
    assert line in cli(*words).stdout


def test_doctor_exits_with_1_and_the_reason_where_a_run_does_not_fit(cli, recipes):
    crowded = cli("doctor", recipes["flesd"], "engine.actors=1000", "engine.cpus_per_actor=1000")
    assert crowded.exit_code == 1
    (line,) = [line for line in crowded.stdout.splitlines() if line.startswith("  does not fit: ")]
    assert "3 client actors (engine.actors=1000, and one a client is the most) of 1000 CPUs each do not fit" in line
    assert "\n  fits" not in crowded.stdout


def test_doctor_refuses_mps_where_a_run_would(cli, recipes):
    refused = cli("doctor", recipes["flesd"], "engine.mps=on")
    assert refused.exit_code == 1
    assert "  does not fit: engine.mps=on asks for NVIDIA's MPS, but " in refused.stdout


def test_a_proposal_takes_no_more_actors_than_cores_memory_and_clients(open_tiny: Callable[..., Federation]):
    cost = StepCost(1_000_000_000 - ACTOR_BYTES, seconds=1.0)
    for cpus, memory, actors in ((2, 9e9, 2), (64, 9e9, 3), (64, 1.5e9, 1), (64, 0.5e9, 1)):
        nodes = [Node("a", cpus=cpus, memory=memory)]
        assert proposal(open_tiny("fedavg"), nodes, None, cost, mps=False) == [f"  proposed: engine.actors={actors}"]


@pytest.mark.parametrize(
    ("gigabytes", "mps", "words"),
    [
        (2, True, "engine.actors=21 engine.gpus_per_actor=0.1428"),
        (2, False, "engine.actors=12 engine.gpus_per_actor=0.25"),
        (25, True, "engine.actors=9 engine.gpus_per_actor=0.3333"),
        (30, True, "engine.actors=6 engine.gpus_per_actor=0.5"),
        (60, True, "engine.actors=3 engine.gpus_per_actor=1"),
        (90, True, "engine.actors=3 engine.gpus_per_actor=1"),
    ],
)
def test_a_proposal_shares_gpus_among_as_many_actors_as_pay_and_their_memory_holds(open_tiny, gigabytes, mps, words):
    federation = open_tiny("fedavg", "clients.number=30", "partition=iid")
    cost = StepCost(0, seconds=1.0, gpu_memory=gigabytes * 10**9, busy=0.3)
    settings, reason = proposal(federation, [Node("a", cpus=48, gpus=3, memory=500e9)], FREE, cost, mps=mps)
    assert settings == f"  proposed: {words}"
    assert reason.startswith("  because a step keeps its GPU busy for 30% of the time: ")


def test_a_proposal_gives_every_actor_of_a_gpu_a_core(open_tiny):
    nodes, cost = [Node("a", cpus=2, gpus=1, memory=500e9)], StepCost(0, seconds=1.0, gpu_memory=10**9, busy=0.1)
    settings, _ = proposal(open_tiny("fedavg"), nodes, FREE, cost, mps=True)
    assert settings == "  proposed: engine.actors=2 engine.gpus_per_actor=0.5"


def test_doctor_says_whether_mps_is_here(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mps_line().endswith("is not on the PATH): client actors that share a GPU take turns")
    (tmp_path / PROGRAM).touch(mode=0o755)
    assert mps_line() == f"NVIDIA's MPS is here ({PROGRAM}): client actors that share a GPU compute at the same time"
