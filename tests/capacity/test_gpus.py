from pathlib import Path

import pytest

from rayfed_ssl.capacity.gpus import gpus, parse_gpus

ANSWER = """\
0, GPU-aaaa-1111, NVIDIA H100 80GB HBM3, 81559, 80994
1, GPU-bbbb-2222, NVIDIA H100 80GB HBM3, 81559, 3000
2, GPU-cccc-3333, NVIDIA GB10, [N/A], [N/A]
"""


def test_free_memory_is_read_without_torch():
    first, second = parse_gpus(ANSWER, None)
    assert (first.total, first.free) == (81559 * 2**20, 80994 * 2**20)
    assert (first.is_crowded, second.is_crowded) == (False, True)


@pytest.mark.parametrize(
    ("visible", "free"),
    [("1", [3000]), ("1,0", [3000, 80994]), ("GPU-bb", [3000]), ("", []), ("0,7,1", [80994]), ("-1", [])],
)
def test_only_gpus_that_cuda_shows_are_listed_in_its_order(visible, free):
    listed = parse_gpus(ANSWER, visible)
    assert [gpu.free // 2**20 for gpu in listed] == free
    assert [gpu.index for gpu in listed] == list(range(len(free)))


def test_a_machine_without_the_tool_has_no_known_gpu_and_one_with_it_has(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpus() == ()
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho '{ANSWER}'\n")
    tool.chmod(0o755)
    assert [gpu.free for gpu in gpus()] == [3000 * 2**20]
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert gpus() == ()
