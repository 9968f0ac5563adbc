from dataclasses import replace

import pytest
import torch

from actors.cluster.machine import Node, object_store_size, this_machine
from actors.errors import ClusterError
from actors.placement.actor_cost import ACTOR_BYTES, ActorCost
from actors.placement.allocation import Placement, allocate
from actors.placement.plan import actor_config, actor_options, check_fits, plan
from rayfed_ssl.capacity.client_cost import StepCost, estimate, record
from rayfed_ssl.config.schema import Engine
from rayfed_ssl.engine.gpu_memory import CONTEXT_BYTES
from rayfed_ssl.machine.resources import cores, free_memory

TWO_CORES = [Node("a", cpus=2)]
TWO_GPUS = [Node("a", cpus=16, gpus=2)]
MEASURED = ActorCost(1_000_000_000, 10_000_000_000, is_measured=True)


@pytest.mark.parametrize(
    ("settings", "clients", "nodes", "number", "gpus"),
    [
        ({}, 6, TWO_CORES, 2, 0.0),  # one actor per core or GPU
        ({}, 6, TWO_GPUS, 2, 1.0),
        ({}, 1, TWO_CORES, 1, 0.0),  # never more actors than clients
        ({"actors": 2}, 1, TWO_CORES, 1, 0.0),
        ({"cpus_per_actor": 0}, 6, TWO_CORES, 2, 0.0),
        ({"cpus_per_actor": 0.25}, 6, TWO_CORES, 2, 0.0),
        ({"cpus_per_actor": 2}, 6, [Node("a", cpus=3), Node("b", cpus=3)], 2, 0.0),  # no actor spans two machines
        ({"actors": 2}, 6, TWO_GPUS, 2, 1.0),
        ({"actors": 4}, 6, TWO_GPUS, 4, 0.5),
        ({"actors": 5}, 6, TWO_GPUS, 5, 0.3333),
        ({"actors": 6}, 6, TWO_GPUS, 6, 0.3333),
        ({"gpus_per_actor": 0.4}, 9, TWO_GPUS, 4, 0.4),  # no fraction spans two GPUs
        ({"gpus_per_actor": 2}, 9, TWO_GPUS, 1, 2.0),
    ],
)
def test_actors_are_allocated_within_machines_and_gpus(settings, clients, nodes, number, gpus):
    placement = allocate(Engine(**settings), clients, nodes, use_gpu=nodes is TWO_GPUS)
    device, cpus = "cuda" if nodes is TWO_GPUS else "cpu", settings.get("cpus_per_actor", 1.0)
    assert placement == Placement(number, cpus, gpus, device)


@pytest.mark.parametrize(
    ("settings", "nodes", "use_gpu", "message"),
    [
        ({"actors": 3}, TWO_CORES, False, r"^3 client actors of 1 CPUs each .* Ray's 2 CPUs .* set engine.actors=2"),
        (
            {"actors": 100},
            TWO_CORES,
            False,
            r"^9 client actors \(engine.actors=100, and one a client is the most\) of 1 CPUs",
        ),
        ({"cpus_per_actor": 4}, TWO_CORES, False, r"0 fit: lower engine.cpus_per_actor"),
        ({"gpus_per_actor": 0.4, "actors": 5}, TWO_GPUS, True, r"engine.actors=4, or .* or engine.gpus_per_actor"),
        ({"gpus_per_actor": 1.5}, TWO_GPUS, True, r"whole number"),
        ({"device": "cuda"}, TWO_CORES, True, r"needs a GPU, but Ray has none"),
        (
            {"gpus_per_actor": 0.5},
            TWO_CORES,
            False,
            r"gpus_per_actor=0.5 has no meaning .* remove it, or wait until machines",
        ),
        ({"gpus_per_actor": 0.5, "device": "cpu"}, TWO_GPUS, False, r"has no meaning .* remove it$"),
        ({"gpus_per_actor": 0.5, "device": "cpu"}, TWO_CORES, False, r"has no meaning .* remove it$"),
    ],
)
def test_actors_that_do_not_fit_are_refused_with_what_does(settings, nodes, use_gpu, message):
    with pytest.raises(ClusterError, match=message):
        allocate(Engine(**settings), 9, nodes, use_gpu=use_gpu)


def test_per_client_takes_as_many_actors_as_clients():
    assert allocate(Engine(actors="per-client", cpus_per_actor=0.25), 6, TWO_CORES, use_gpu=False).num_actors == 6


def test_auto_makes_no_more_actors_than_each_machine_carries():
    machines = [Node("a", cpus=64, memory=3.5e9), Node("b", cpus=2, memory=100e9)]
    placement = allocate(Engine(), 100, machines, use_gpu=False, cost=MEASURED)
    assert (placement.num_actors, placement.memory) == (3 + 2, MEASURED.memory)


def test_more_actors_than_memory_carries_are_refused_with_the_number_that_it_does():
    machine = [Node("a", cpus=16, memory=3.5e9)]
    message = (
        r"^4 client actors of 1.00 GB \(as measured here\) each .* 3.50 GB of memory .* 3 fit: set engine.actors=3"
    )
    with pytest.raises(ClusterError, match=message):
        allocate(Engine(actors=4), 6, machine, use_gpu=False, cost=MEASURED)
    with pytest.raises(ClusterError, match=r"do not fit into Ray's 16 CPUs .* where 3 fit: set engine.actors=3"):
        allocate(Engine(actors=17), 20, machine, use_gpu=False, cost=MEASURED)


def test_an_estimate_refuses_a_single_actor_only_beyond_what_the_object_store_may_take():
    machine, estimated = [Node("a", cpus=2, memory=0.5e9, store=0.6e9)], replace(MEASURED, is_measured=False)
    placement = allocate(Engine(), 6, machine, use_gpu=False, cost=estimated)
    assert (placement.num_actors, placement.memory) == (1, 500_000_000)
    with pytest.raises(ClusterError, match=r"1.00 GB \(by estimate; .*0 fit: lower training.batch"):
        allocate(Engine(), 6, [replace(machine[0], store=0.4e9)], use_gpu=False, cost=estimated)
    with pytest.raises(ClusterError, match=r"0 fit: lower training.batch"):
        allocate(Engine(), 6, machine, use_gpu=False, cost=MEASURED)


def test_a_container_has_the_cores_and_the_memory_of_its_limits(tmp_path):
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cores(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cores(tmp_path) == cores(tmp_path / "none")
    (tmp_path / "memory.max").write_text("100000000\n")
    (tmp_path / "memory.current").write_text("70000000\n")
    (tmp_path / "memory.stat").write_text("anon 40000000\ninactive_file 30000000\n")
    assert free_memory(tmp_path) == 60_000_000


def test_this_machine_leaves_actors_what_the_object_store_does_not_take():
    here = this_machine()
    assert here.cpus == cores()
    assert here.gpus == torch.cuda.device_count()
    assert here.store == pytest.approx(object_store_size(int(here.store + here.memory)))
    assert here.memory > 0


def test_what_was_measured_here_decides_before_the_estimate(open_tiny):
    federation = open_tiny("fedavg", "seed=41")
    first = plan(federation, [Node("a", cpus=2, memory=8e9)])
    assert first.cost == ActorCost.of(estimate(federation, "cpu"))
    record(federation, "cpu", StepCost(7_000_000_000, seconds=1.0))
    machine = [Node("a", cpus=16, memory=20e9)]
    placement = plan(open_tiny("fedavg", "seed=41", "engine.actors=auto"), machine)
    assert placement.cost == ActorCost(ACTOR_BYTES + 7_000_000_000, 0, True)
    assert placement.num_actors == 2


def test_what_cannot_fit_is_refused_before_ray_starts(open_tiny, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    crowd = open_tiny("fedavg", "engine.actors=3", f"engine.cpus_per_actor={cores()}")
    with pytest.raises(ClusterError, match="3 client actors of"):
        check_fits(crowd, None)
    check_fits(crowd, "head:6379")
    check_fits(open_tiny("fedavg", "engine.actors=1"), None)


@pytest.mark.ray
def test_actors_reserve_their_memory(cluster):
    options = actor_options(Placement(2, 1.0, 0.0, "cpu", memory=123))
    assert options == {"num_cpus": 1.0, "num_gpus": 0.0, "memory": 123}
    assert all(node.memory > CONTEXT_BYTES for node in cluster.nodes())


@pytest.mark.parametrize(("device", "share", "expected"), [("cuda", 0.25, 0.25), ("cpu", 0.0, None)])
def test_an_actors_configuration_has_its_device_and_its_share_of_it(open_tiny, device, share, expected):
    federation = open_tiny("fedavg", "engine.device=auto")
    engine = actor_config(federation, Placement(4, 1.0, share, device))["engine"]
    assert (engine["device"], engine["gpus_per_actor"]) == (device, expected)
