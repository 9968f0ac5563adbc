"""How busy a GPU is, with a stand-in for nvidia-smi."""

import time
from types import SimpleNamespace

import pytest
import torch

from rayfed_ssl.capacity import utilization
from rayfed_ssl.capacity.utilization import busy_share, mean_of


def test_utilization_leaves_out_what_is_no_number():
    assert mean_of("90\n100\n[N/A]\n") == 95
    assert mean_of("[N/A]\n") is None


@pytest.mark.parametrize(("lines", "busy"), [("20 40", 0.3), ("0 0", 0.01), ("[N/A]", None)])
def test_a_gpu_is_as_busy_as_nvidia_smi_says_while_work_goes_on(tmp_path, monkeypatch, lines, busy):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' {lines}\n: > {tmp_path}/told\nexec /bin/sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="ab"))
    monkeypatch.setattr(utilization, "BUSY_SECONDS", 0.05)

    def work():
        while not (tmp_path / "told").exists():
            time.sleep(0.01)

    assert busy_share(work) == busy


def test_without_a_gpu_nothing_tells(monkeypatch):
    monkeypatch.setattr(utilization, "BUSY_SECONDS", 0.05)
    assert busy_share(lambda: None) is None
