"""engine.cpu=portable: the same bits on every x86-64 processor with AVX2, from the process that the command starts."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.arithmetic import different, fingerprint
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.machine.processor import PORTABLE, NotPortableError, set_up_portable_cpu
from rayfed_ssl.models.precision import choose_precision
from rayfed_ssl.records.manifest import RunManifest

# Measured with torch 2.15.0 on an AMD EPYC (Zen 3) without AVX-512. Whoever runs this test tries another processor.
FINGERPRINT = json.loads(resources.files("rayfed_ssl.recipes").joinpath("digests.json").read_text())["fingerprint"]

# The same AMD EPYC, and an Intel Xeon with AMX.
DIGITS = "2b32eb3bc87b0b8213a54071dd9ae3c3d8524a43c63fc60ff45a0d312f89c5cc"

needs_pinned_torch = pytest.mark.skipif(
    torch.__version__.partition("+")[0] != "2.15.0", reason="the digests are those of torch 2.15.0"
)


def start(*command: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False, env={**os.environ, **(environment or {})}
    )


@needs_pinned_torch
def test_a_portable_process_has_the_published_fingerprint():
    program = """
import json, rayfed_ssl
rayfed_ssl.set_up_portable_cpu()
import torch
from rayfed_ssl.engine.arithmetic import fingerprint
from rayfed_ssl.models.precision import choose_precision
torch.set_num_threads(1)
print(json.dumps(fingerprint(torch.device("cpu"), choose_precision("cpu"))))
"""
    done = start(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == FINGERPRINT


@pytest.mark.slow
@needs_pinned_torch
@pytest.mark.parametrize("executor", ["local", "ray"])
def test_a_portable_run_of_digits_has_the_published_digest(executor: str, tmp_path: Path):
    settings = ("engine.cpu=portable", f"engine.executor={executor}", "evaluation.every=0")
    done = start("rayfed-ssl", "run", "--out", str(tmp_path / "run"), *settings)
    assert done.returncode == 0, done.stderr
    assert f"state_sha256 {DIGITS}\n" in done.stdout
    manifest = RunManifest.read(tmp_path / "run" / "run.json")
    assert (manifest.precision.dtype, manifest.fingerprint) == ("fp32", FINGERPRINT)


@pytest.mark.slow
def test_the_command_line_starts_itself_again_with_the_variables(tmp_path: Path):
    small = ("data.train_limit=60", "data.test_limit=30", "training.epochs=1", "rounds=1", "evaluation.linear.epochs=1")
    settings = ("fedsimclr", "engine.cpu=portable", "engine.executor=local", "clients.number=2", *small)
    done = start("rayfed-ssl", "run", "--quiet", "--out", str(tmp_path / "run"), *settings)
    assert done.returncode == 0, done.stderr
    assert RunManifest.read(tmp_path / "run" / "run.json").precision.reason == "auto: kernels are limited to AVX2"
    scored = start("rayfed-ssl", "evaluate", str(tmp_path / "run"))
    assert scored.returncode == 0, scored.stderr


def test_a_process_that_loaded_torch_cannot_be_set_up():
    with pytest.raises(
        ConfigError, match=r"must be set up before numpy and torch are imported: call rayfed_ssl\.set_up"
    ):
        set_up_portable_cpu()


def test_a_process_without_the_variables_computes_no_portable_run(tiny: Callable[..., Config]):
    with pytest.raises(NotPortableError, match=r"^engine\.cpu=portable must be set up before torch is imported: call "):
        Federation.open(tiny("fedavg", "engine.cpu=portable"))


def test_a_processor_without_avx2_is_named(tiny: Callable[..., Config], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rayfed_ssl.machine.processor.cpu_flags", lambda: frozenset({"fma"}))
    with pytest.raises(
        ConfigError, match=r"needs an x86-64 processor with AVX2 and FMA, .* lacks avx2: take engine\.cpu"
    ):
        Federation.open(tiny("fedavg", "engine.cpu=portable"))


@pytest.mark.parametrize("setting", ["device=cuda", "precision=bf16", "compile=true"])
def test_what_differs_between_processors_is_refused(setting: str, tiny: Callable[..., Config]):
    with pytest.raises(ConfigError, match=rf"^engine: engine\.cpu=portable computes in fp32 .*, got {setting}: leave"):
        tiny("fedavg", "engine.cpu=portable", f"engine.{setting}")


def test_numpy_takes_no_avx512_from_the_variables():
    program = "from numpy._core._multiarray_umath import __cpu_features__ as f; print(f.get('X86_V4', f['AVX512F']))"
    assert start(sys.executable, "-c", program, environment=PORTABLE).stdout == "False\n"


def test_a_fingerprint_is_the_same_each_time_and_names_what_differs():
    device = torch.device("cpu")
    full: dict[str, Any] = fingerprint(device, choose_precision(device, "fp32"))
    half = fingerprint(device, choose_precision(device, "bf16"))
    assert full == fingerprint(device, choose_precision(device, "fp32"))
    assert different(full, full) == different(full, {}) == []
    assert different(full, half) == ["convolution", "matrix product"]


def test_a_process_with_the_variables_computes_no_native_run(
    tiny: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
):
    for name, value in PORTABLE.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        ConfigError, match=r"^engine.cpu=native cannot be computed with the variables of .*: unset ATEN_"
    ):
        Federation.open(tiny("fedavg"))
