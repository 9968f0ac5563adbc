"""Trees of tensors: walking, digests, bytes."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from rayfed_ssl import trees
from rayfed_ssl.testing.pretend_device import DEVICE, PretendDevice


@dataclass(frozen=True)
class Pair:
    first: Any
    second: Any


TREE = {
    "weights": {"b": torch.tensor([[1.0, -2.0, 3.0]]), "a": torch.arange(4, dtype=torch.int64)},
    "pair": Pair((1, 2.5), [None, "word", np.arange(3, dtype=np.int16)]),
}


def test_leaves_come_with_paths_in_one_order_whatever_order_keys_were_added_in():
    turned = {"pair": TREE["pair"], "weights": dict(reversed(TREE["weights"].items()))}
    paths = [path for path, _ in trees.leaves(TREE)]
    assert paths == [
        "/pair/first/0",
        "/pair/first/1",
        "/pair/second/0",
        "/pair/second/1",
        "/pair/second/2",
        "/weights/a",
        "/weights/b",
    ]
    assert [path for path, _ in trees.leaves(turned)] == paths


def test_map_leaves_keeps_the_kinds_of_nodes():
    mapped = trees.map_leaves(lambda leaf: "x", TREE)
    assert mapped == {"weights": {"b": "x", "a": "x"}, "pair": Pair(("x", "x"), ["x", "x", "x"])}


def test_numpy_and_back_is_the_same_tree_in_the_same_memory():
    tensor = torch.arange(6.0).reshape(2, 3)
    flat = trees.flatten({"t": tensor})
    (array,) = flat.arrays
    assert isinstance(array, np.ndarray)
    back = trees.restore(flat)["t"]
    assert back.data_ptr() == tensor.data_ptr()
    assert trees.digest({"t": back}) == trees.digest({"t": tensor}) == trees.digest({"t": array.reshape(2, 3)})


def test_read_only_arrays_become_tensors_without_a_warning(recwarn: pytest.WarningsRecorder):
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    trees.to_torch([array])
    assert not recwarn.list


def test_frozen_weights_do_not_follow_the_model():
    layer = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    weights = trees.frozen(layer.state_dict())
    before = trees.digest(weights)
    for parameter in layer.parameters():  # one lies in channels-last order, one is contiguous already
        torch.nn.init.ones_(parameter)
    assert trees.digest(weights) == before
    assert weights["weight"].is_contiguous()
    assert not any(value.requires_grad for value in weights.values())


def test_frozen_weights_leave_a_device_in_one_transfer_as_they_are():
    tensors = {
        "flag": torch.tensor([True, False, True]),
        "count": torch.tensor(5),
        "empty": torch.empty(0, 3),
        "maps": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "half": torch.randn(3).half(),
        "rows": torch.randn(6, 5)[::2, 1:].requires_grad_(),
    }
    with PretendDevice() as device:
        there = {name: value.to(DEVICE) for name, value in tensors.items()}
        weights = trees.frozen(there | {"host": torch.ones(2)})
        assert device.waits.total() == 1
    assert list(weights) == [*tensors, "host"]
    assert trees.digest(weights) == trees.digest(trees.frozen(tensors | {"host": torch.ones(2)}))
    assert weights["maps"].is_contiguous()
    assert len({value.untyped_storage().data_ptr() for value in weights.values() if len(value.shape)}) == 6
    assert not any(value.requires_grad for value in weights.values())


def test_bytes_count_tensors_numbers_and_utf8():
    assert trees.nbytes(TREE) == 3 * 4 + 4 * 8 + 8 + 8 + 0 + 4 + 3 * 2
    assert trees.nbytes({"none": None, "word": "tröt", "half": torch.zeros(5, dtype=torch.float16)}) == 5 + 10


@pytest.mark.parametrize(
    "other",
    [
        {"x": torch.tensor([1.0, math.nextafter(2.0, 3.0)], dtype=torch.float64)},
        {"x": torch.tensor([1.0, 2.0])},
        {"x": torch.tensor([[1.0, 2.0]], dtype=torch.float64)},
        {"y": torch.tensor([1.0, 2.0], dtype=torch.float64)},
        {"x": [1.0, 2.0]},
        {"x": torch.tensor([2.0, 1.0], dtype=torch.float64)},
    ],
    ids=["last bit", "dtype", "shape", "name", "kind", "order"],
)
def test_digest_tells_apart(other: Any):
    assert trees.digest({"x": torch.tensor([1.0, 2.0], dtype=torch.float64)}) != trees.digest(other)


def test_digest_tells_minus_zero_and_kinds_of_numbers_apart():
    digests = {
        trees.digest([value]) for value in (0, 0.0, -0.0, False, None, "0", torch.tensor(0.0), torch.tensor(-0.0))
    }
    assert len(digests) == 8


def test_digest_does_not_depend_on_memory_layout():
    tensor = torch.arange(120.0).reshape(2, 3, 4, 5)
    assert trees.digest([tensor]) == trees.digest([tensor.to(memory_format=torch.channels_last)])
    assert trees.digest([tensor[:, 1]]) == trees.digest([tensor[:, 1].clone()])


def test_lerp_goes_from_start_to_end_and_takes_integers_from_the_end():
    start = {"w": torch.tensor([0.0, 4.0]), "steps": torch.tensor(1)}
    end = {"w": torch.tensor([8.0, 0.0]), "steps": torch.tensor(7)}
    middle = trees.lerp(start, end, 0.25)
    assert middle["w"].tolist() == [2.0, 3.0]
    assert int(middle["steps"]) == 7
    assert torch.equal(trees.lerp(start, end, 0.0)["w"], start["w"])
    assert torch.equal(trees.lerp(start, end, 1.0)["w"], end["w"])


def test_a_tree_of_all_kinds_comes_back_with_its_bits():
    large = torch.randn(trees.JOINED_BYTES // 8, 4).T
    tree = {
        "small": [torch.arange(6.0).reshape(2, 3), torch.tensor(7), torch.zeros(0, 3)],
        "other types": (torch.tensor([True, False]), torch.ones(3).half(), torch.arange(5, dtype=torch.int64)),
        "images": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "large": Pair(large, "text"),
        "no tensors": {"none": None, "number": 1.5},
        "trained": torch.ones(2, requires_grad=True),
    }
    assert trees.digest(trees.restore(trees.flatten(tree))) == trees.digest(tree)


def test_small_tensors_travel_in_one_array_and_large_ones_without_a_copy():
    large = torch.zeros(trees.JOINED_BYTES // 4)
    flat = trees.flatten({str(k): torch.full((3,), float(k)) for k in range(50)} | {"large": large})
    assert [array.size for array in flat.arrays] == [150, len(large)]
    assert np.shares_memory(flat.arrays[1], large.numpy())
