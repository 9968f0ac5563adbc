"""The pretend accelerator computes what the CPU does, refuses what CUDA refuses and counts what CUDA waits for."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.testing.pretend_device import DEVICE, PretendDevice


@pytest.fixture
def device() -> Iterator[PretendDevice]:
    with PretendDevice() as device:
        yield device


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8, 4))


def trained(net: nn.Module, images: Tensor, labels: Tensor) -> list[Tensor]:
    """Make two steps; gives loss, weights, buffers and gradients."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
    return [loss.detach(), *net.state_dict().values(), *(p.grad for p in net.parameters() if p.grad is not None)]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_training_gives_the_bits_of_the_cpu(device: PretendDevice, layout: torch.memory_format):
    images, labels = torch.rand(6, 3, 9, 9), torch.arange(6) % 4
    net = network().to(memory_format=layout)
    there = deepcopy(net).to(DEVICE).to(memory_format=layout)
    expected, results = trained(net, images, labels), trained(there, images.to(DEVICE), labels.to(DEVICE))
    assert all(result.device == DEVICE for result in results)
    assert [result.stride() for result in results] == [value.stride() for value in expected]
    assert all(torch.equal(result.cpu(), value) for result, value in zip(results, expected, strict=True))


def test_inference_mode_gives_the_bits_of_the_cpu(device: PretendDevice):
    images, net = torch.rand(6, 3, 9, 9), network().eval()
    with torch.inference_mode():
        expected = net(images)
        result = net.to(DEVICE)(images.to(DEVICE)).cpu()
    assert type(result) is Tensor
    assert torch.equal(result, expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda device: torch.tensor([1.0, 2.0], device=device),
        lambda device: torch.arange(5, device=device),
        lambda device: torch.zeros(2, 3, device=device).new_tensor([4, 5]),
        lambda device: torch.ones(3, device=device).new_full((2,), 7.0),
        lambda device: torch.empty(4, device=device).fill_(1),
        lambda device: torch.full((2, 3), 4).to(device).t_(),
        lambda device: deepcopy(torch.eye(3, device=device)),
        lambda device: F.one_hot(torch.arange(3, device=device), 4),
    ],
)
def test_tensors_are_made_where_they_are_asked_for(device: PretendDevice, make: Callable[[Any], Tensor]):
    there, expected = make(DEVICE), make("cpu")
    assert there.device == DEVICE
    assert (there.shape, there.dtype, there.tolist()) == (expected.shape, expected.dtype, expected.tolist())


@pytest.mark.parametrize(
    "mix",
    [
        lambda there: there + torch.ones(3),
        lambda there: torch.cat([there, torch.ones(1)]),
        lambda there: torch.add(there, 1, out=torch.empty(3)),
        lambda there: F.linear(there, torch.ones(2, 3)),
        lambda there: torch.ones(3)[there.long()],
        lambda there: there.index_select(0, torch.tensor([0])),
        lambda there: there.index_copy_(0, torch.tensor([0]), there[:1]),
        lambda there: F.mse_loss(there, torch.ones(3)),
    ],
)
def test_tensors_of_two_devices_do_not_mix(device: PretendDevice, mix: Callable[[Tensor], Tensor]):
    with pytest.raises(RuntimeError, match="expected all tensors on one device"):
        mix(torch.ones(3, device=DEVICE))


def test_scalars_and_indices_of_the_cpu_may_be_used(device: PretendDevice):
    there = torch.arange(3.0, device=DEVICE)
    assert (there * torch.tensor(2.0)).tolist() == [0, 2, 4]
    assert there[torch.tensor([2, 0])].tolist() == [2, 0]


def test_a_generator_of_the_cpu_draws_nothing_for_the_device(device: PretendDevice):
    with pytest.raises(RuntimeError, match="got one of the CPU"):
        torch.rand(2, generator=torch.Generator(), device=DEVICE)


WAITS: list[tuple[Callable[[Tensor], object], int]] = [
    (lambda there: there.item(), 1),
    (lambda there: there.tolist(), 1),
    (lambda there: there.cpu(), 1),
    (lambda there: torch.zeros(1).copy_(there), 1),
    (lambda there: bool((there > 0).all()), 1),
    (lambda there: (there > 0).nonzero(), 1),
    (lambda there: there[there > 0], 1),
    (lambda there: there.index_put_((there > 0,), there), 1),
    (lambda there: there.masked_select(there > 0), 1),
    (lambda there: there.unique(), 1),
    (lambda there: torch.equal(there, there), 1),
    (lambda there: there.repeat_interleave(there.long()), 1),
    (lambda there: there.repeat_interleave(there.long(), output_size=1), 0),
    (lambda there: there.long().bincount(), 1),
    (lambda there: there[there.long() - 1], 0),
    (lambda there: there.masked_fill(there > 0, 2), 0),
    (lambda there: torch.where(there > 0, there, -there), 0),
    (lambda there: there.sort().values.argmax(), 0),
    (lambda there: there.to(torch.float64), 0),
    (lambda there: torch.zeros(1).to(there), 0),
]


@pytest.mark.parametrize(("work", "waits"), WAITS)
def test_what_depends_on_values_waits(device: PretendDevice, work: Callable[[Tensor], object], waits: int):
    there = torch.ones(1, device=DEVICE)
    assert device.waits.total() == 0
    work(there)
    assert device.waits.total() == waits


def test_operations_are_counted(device: PretendDevice):
    torch.ones(2) + 1
    there = torch.ones(2).to(DEVICE)
    ((there + 1) * 2).t()
    assert device.operations == {"_to_copy.default": 1, "add.Tensor": 1, "mul.Tensor": 1, "t.default": 1}


def test_the_device_is_gone_after_the_block():
    with PretendDevice():
        there = torch.ones(2, device=DEVICE)
    with pytest.raises(RuntimeError, match="outside `with PretendDevice"):
        there + 1
    with pytest.raises(NotImplementedError):
        torch.ones(2, device=DEVICE)
