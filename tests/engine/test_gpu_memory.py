from unittest.mock import Mock

import pytest
import torch

from rayfed_ssl.engine.gpu_memory import (
    CONTEXT_BYTES,
    allowance,
    even_share,
    explain,
    limit_process,
    release,
)
from rayfed_ssl.engine.round_loop import ClientError, ServerError

TORCH_SAYS = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.20 GiB is free. "
    "Including non-PyTorch memory, this process has 19.00 GiB memory in use.{} Of the allocated memory 18.00 GiB is "
    "allocated by PyTorch, and 12.00 MiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize("actors", [2, 3, 4, 8])
def test_processes_that_share_a_gpu_and_the_server_stay_within_it(actors):
    total = 80_000_000_000
    held = allowance(total, even_share(1 / actors)) + CONTEXT_BYTES
    assert total * 0.99 < actors * held + CONTEXT_BYTES <= total
    assert allowance(8_000_000_000, 0.01) == 0  # less than CUDA itself takes


@pytest.mark.parametrize(
    ("least", "share"), [(1.0, 1.0), (0.51, 1.0), (0.5, 0.5), (0.34, 0.5), (0.3333, 0.3333), (0.1, 0.1)]
)
def test_an_even_share_is_the_smallest_that_suffices(least, share):
    assert even_share(least) == share


def test_memory_that_runs_out_is_explained_with_what_to_do():
    error = torch.OutOfMemoryError(TORCH_SAYS.format(" 20.00 GiB allowed;"))
    assert explain(error, 0.25).startswith("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total")
    assert "20.00 GiB allowed; Set engine.gpus_per_actor=0.3333 (it is 0.25), or lower training.batch" in explain(
        error, 0.25
    )
    assert "Set a smaller training.batch, or see with `nvidia-smi` who else uses the GPU" in explain(error)
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55, dtype=torch.uint8)
    assert "tried to allocate 36028797018963968 bytes" in explain(caught.value)
    assert explain(caught.value).endswith("lower training.batch or engine.actors")
    assert explain(ValueError("the loss is nan")) == "ValueError: the loss is nan"


def test_running_out_of_gpu_memory_is_a_client_s_or_the_server_s_error_with_advice(open_tiny):
    federation = open_tiny("fedavg", "engine.gpus_per_actor=0.5")
    state = federation.init_server()
    federation.method = Mock(wraps=federation.method)
    error = torch.OutOfMemoryError(TORCH_SAYS.format(" 20.00 GiB allowed;"))
    federation.method.update_client.side_effect = federation.method.update_server.side_effect = error
    advice = r"out of memory.*Set engine.gpus_per_actor=1 \(it is 0.5\)"
    with pytest.raises(ClientError, match=rf"^client 1 failed in round 2 .*{advice}"):
        federation.update_client(2, 1, federation.method.download(state, 1), None)
    with pytest.raises(ServerError, match=r"^the server failed in round 2: CUDA out of memory.*training.batch"):
        federation.update_server(2, state, {})


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_nothing_is_limited_or_released():
    limit_process(0.5)
    release()
    assert not torch.cuda.is_initialized()
