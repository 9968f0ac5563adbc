from pathlib import Path
from typing import Any

import pytest
import torch

from rayfed_ssl.engine.gpu_memory import (
    CONTEXT_BYTES,
    allowance,
    even_share,
    explain,
    gpus,
    limit_process,
    parse_gpus,
    release,
)
from rayfed_ssl.engine.round_loop import ClientError, ServerError

ANSWER = """\
0, GPU-aaaa-1111, NVIDIA H100 80GB HBM3, 81559, 80994
1, GPU-bbbb-2222, NVIDIA H100 80GB HBM3, 81559, 3000
2, GPU-cccc-3333, NVIDIA GB10, [N/A], [N/A]
"""
TORCH_SAYS = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.20 GiB is free. "
    "Including non-PyTorch memory, this process has 19.00 GiB memory in use.{} Of the allocated memory 18.00 GiB is "
    "allocated by PyTorch, and 12.00 MiB is reserved by PyTorch but unallocated."
)


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


@pytest.mark.parametrize("actors", [2, 3, 4, 8])
def test_processes_that_share_a_gpu_and_the_server_stay_within_it(actors):
    total = 80_000_000_000
    held = allowance(total, even_share(1 / actors)) + CONTEXT_BYTES
    assert total * 0.99 < actors * held + CONTEXT_BYTES <= total


def test_a_share_smaller_than_cuda_itself_leaves_nothing():
    assert allowance(8_000_000_000, 0.01) == 0


@pytest.mark.parametrize(
    ("least", "share"), [(1.0, 1.0), (0.51, 1.0), (0.5, 0.5), (0.34, 0.5), (0.3333, 0.3333), (0.1, 0.1)]
)
def test_an_even_share_is_the_smallest_that_suffices(least, share):
    assert even_share(least) == share


def test_a_client_that_outgrows_its_share_is_told_the_share_that_it_needs():
    error = torch.OutOfMemoryError(TORCH_SAYS.format(" 20.00 GiB allowed;"))
    message = explain(error, 0.25)
    assert message == (
        "out of GPU memory: it asked for 2.15 GB more with 20.40 GB in use of 21.47 GB that it may take: set "
        "engine.gpus_per_actor=0.3333 (it is 0.25), or lower training.batch; `rayfed-ssl doctor --measure` says what fits"
    )


def test_a_client_that_outgrows_a_whole_gpu_is_told_so():
    message = explain(torch.OutOfMemoryError(TORCH_SAYS.format("")), None)
    assert "in use of 85.09 GB: lower training.batch, or see with `nvidia-smi` who else uses the GPU" in message


def test_a_machine_out_of_memory_is_told_in_one_line_and_other_errors_as_they_are():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55, dtype=torch.uint8)
    assert explain(caught.value) == (
        "out of memory: it asked for 36028797.02 GB more: lower engine.actors or training.batch"
    )
    assert explain(ValueError("the loss is nan")) == "ValueError: the loss is nan"


class Greedy:
    """A method whose steps find no memory."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def update_client(self, *words: Any) -> Any:
        raise torch.OutOfMemoryError(TORCH_SAYS.format(" 20.00 GiB allowed;"))

    update_server = update_client


def test_running_out_of_gpu_memory_is_a_client_s_or_the_server_s_error_with_advice(open_tiny):
    federation = open_tiny("fedavg", "engine.gpus_per_actor=0.5")
    federation.method = Greedy(federation.method)
    state = federation.init_server()
    with pytest.raises(
        ClientError, match=r"^client 1 failed in round 2 .* set engine.gpus_per_actor=1 \(it is 0.5\)"
    ) as one:
        federation.update_client(2, 1, federation.method.download(state, 1), None)
    with pytest.raises(
        ServerError, match=r"^the server failed in round 2: out of GPU memory: it asked for 2.15 GB"
    ) as two:
        federation.update_server(2, state, {})
    assert "\n" not in str(one.value) + str(two.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_nothing_is_limited_or_released():
    limit_process(0.5)
    release()
    assert not torch.cuda.is_initialized()
