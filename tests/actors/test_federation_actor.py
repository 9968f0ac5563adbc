"""Machines that compute for one run: other versions are refused, for other hardware there is a warning."""

import re
import socket

import pytest
import ray
import torch

from actors.dispatch.starts import wait_until_ready
from actors.errors import ClusterError
from actors.federation_actor import check_versions, hardware, hardware_warning, local_versions
from actors.placement.allocation import Placement
from actors.placement.plan import actor_config
from actors.server_actor import ServerActor
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.machine.environment import cpu_model


def test_other_versions_are_refused_in_one_line():
    driver = {"python": "3.11.2", "ray": "2.60.0", "torch": "2.15.0", "rayfed-ssl": "0.1.0"}
    check_versions(driver, dict(driver))
    message = "has torch 2.14.1, rayfed-ssl None where the driver has torch 2.15.0, rayfed-ssl 0.1.0"
    with pytest.raises(ConfigError, match=f"^{re.escape(f'{socket.gethostname()} {message}')}$"):
        check_versions(driver, driver | {"torch": "2.14.1", "rayfed-ssl": None})


def test_builds_of_torch_are_no_other_versions(monkeypatch):
    same = {"python": "3.11.2", "ray": "2.60.0", "torch": "2.15.0+cu130", "rayfed-ssl": None}
    monkeypatch.setattr("actors.federation_actor.environment", lambda: {"versions": same})
    assert local_versions() == {"python": "3.11.2", "ray": "2.60.0", "torch": "2.15.0", "rayfed-ssl": None}


def test_hardware_of_other_bits_is_warned_of_and_its_name_means_nothing():
    names, same = ["NVIDIA H200", "NVIDIA H100", "NVIDIA H100"], {"convolution": "0", "sum": "1"}
    assert hardware_warning(names[1:], {"NVIDIA H100": same}) is None
    assert hardware_warning(names, {"NVIDIA H200": same, "NVIDIA H100": dict(same)}) is None
    assert hardware_warning(names, {"NVIDIA H200": same, "NVIDIA H100": same | {"sum": "2"}}) == (
        "actors run on different hardware (2 on NVIDIA H100; 1 on NVIDIA H200), which computes other bits (sum): the "
        "results depend on which actor runs which step"
    )


def test_a_processor_is_described_by_its_name_and_what_it_can_do(tmp_path):
    assert hardware(torch.device("cpu")).startswith(f"{cpu_model()}, {torch.backends.cpu.get_cpu_capability()}, torch ")
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 7763\nmodel name\t: AMD EPYC 7763\n")
    assert cpu_model(tmp_path / "cpuinfo") == "AMD EPYC 7763"
    assert cpu_model(tmp_path / "none")


@pytest.mark.ray
@pytest.mark.slow
def test_an_actor_of_another_version_cannot_be_used(cluster, open_tiny):
    federation = open_tiny("fedavg")
    config = actor_config(federation, Placement(1, 1.0, 0.0, "cpu"))
    make = ray.remote(num_cpus=0)(ServerActor).remote
    like, other = make(config, local_versions()), make(config, local_versions() | {"torch": "1.0.0"})
    assert wait_until_ready([like]) == [hardware(federation.task.device)]
    message = r"has torch 2\S+ where the driver has torch 1.0.0\): every machine needs the same"
    with pytest.raises(ClusterError, match=message):
        wait_until_ready([other])
    for actor in (like, other):
        ray.kill(actor)
