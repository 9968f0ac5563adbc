"""The fingerprint of a run's arithmetic is taken on the device that clients compute on."""

from collections.abc import Callable
from dataclasses import replace

from rayfed_ssl.engine.arithmetic import LARGE, OPERATIONS, Arithmetic, different
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.testing.pretend_device import DEVICE, PretendDevice


def test_a_fingerprint_is_taken_on_the_device_of_the_task(open_tiny: Callable[..., Federation]):
    federation = open_tiny("fedavg")
    task, engine = replace(federation.task, device=DEVICE), federation.config.engine
    with PretendDevice() as device:
        there = Arithmetic.of(task, engine)
    assert there.device == "lazy:0"
    assert device.operations["convolution.default"] == device.operations["convolution_backward.default"] == 3
    assert device.operations["_fused_adam_.tensor_lr"] == 3
    here = Arithmetic.of(federation.task, engine)
    assert list(here.fingerprint) == [*OPERATIONS, "Adam", "normal draws"]
    assert there.fingerprint.keys() - here.fingerprint.keys() == LARGE.keys()
    assert different(here.fingerprint, there.fingerprint) == []  # the CPU computes what the pretend device is asked for


def test_a_device_that_chooses_kernels_by_time_has_no_fingerprint(open_tiny: Callable[..., Federation]):
    federation = open_tiny("fedavg", "engine.deterministic=false")
    engine = federation.config.engine
    with PretendDevice():
        assert Arithmetic.of(replace(federation.task, device=DEVICE), engine).fingerprint == {}
    assert Arithmetic.of(federation.task, engine).fingerprint
