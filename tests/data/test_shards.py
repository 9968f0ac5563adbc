"""Shards: which samples a batch holds, and which shards stay on a device."""

import numpy as np
import torch

from rayfed_ssl.data.shards import ResidentShards, Shard
from rayfed_ssl.testing.pretend_device import DEVICE, PretendDevice

IMAGES = np.arange(12 * 3 * 2 * 2, dtype=np.uint8).reshape(12, 3, 2, 2)
ROWS = np.array([7, 2, 9, 4, 11])


def pixels(positions: list[int]) -> torch.Tensor:
    return torch.from_numpy(IMAGES[ROWS[positions]])


def test_batches_hold_a_shards_own_samples_wherever_it_is() -> None:
    positions = [torch.tensor([3, 0]), torch.tensor([4]), torch.tensor([1, 2])]
    with PretendDevice() as device:
        for shard, copies in (
            (Shard.of(IMAGES, ROWS, "cpu"), 0),
            (Shard.of(IMAGES, ROWS, DEVICE), 1),
            (Shard.of(IMAGES, ROWS, torch.device("lazy")), 1),  # as in engine.device=cuda, without a number
            (Shard.of(IMAGES, ROWS, DEVICE, resident=False), 1 + len(positions)),
        ):
            device.operations.clear()
            batches = list(shard.batches(positions))
            assert device.operations["_to_copy.default"] == copies
            for wanted, (index, images) in zip(positions, batches, strict=True):
                assert index.device.type == images.device.type == shard.device.type
                assert torch.equal(index.cpu(), wanted)
                assert torch.equal(images.cpu(), pixels(wanted.tolist()))
            assert torch.equal(shard.batch(torch.tensor([2, 2])).cpu(), pixels([2, 2]))
            assert torch.equal(shard.select(torch.tensor([4, 1])).batch(torch.tensor([1, 0])).cpu(), pixels([1, 4]))


def test_labels_lie_on_the_device() -> None:
    with PretendDevice():
        shard = Shard.of(IMAGES, ROWS, DEVICE, np.arange(12), resident=False)
        assert shard.labels is not None
        chosen = shard.select(torch.tensor([4, 1])).labels
        assert chosen is not None
        assert chosen.tolist() == ROWS[[4, 1]].tolist()
        assert shard.labels.device == DEVICE
        assert shard.labels.tolist() == ROWS.tolist()


def test_the_least_recently_used_shard_leaves_the_device() -> None:
    size = IMAGES[0].nbytes
    with PretendDevice():
        held = ResidentShards(lambda: 8 * size)

        def shard(client_id: int, count: int) -> Shard:
            return held.shard(client_id, IMAGES, np.arange(count), DEVICE, None)

        first, second = shard(1, 4), shard(2, 4)
        assert first.images.device == second.images.device == DEVICE
        assert shard(1, 4) is first
        third = shard(3, 3)  # in the place of client 2, whose shard was used before client 1's
        assert third.images.device == DEVICE
        assert shard(1, 4) is first
        assert shard(2, 4) is not second
        assert shard(4, 9).images.device.type == "cpu"  # too large to stay


def test_a_shard_in_use_stays() -> None:
    size = IMAGES[0].nbytes
    with PretendDevice():
        held = ResidentShards(lambda: 8 * size)
        public = held.shard("public", IMAGES, np.arange(4), DEVICE)
        beside = held.shard(0, IMAGES, np.arange(5), DEVICE, beside="public")
        assert (public.is_resident, beside.is_resident) == (True, False)
        assert held.shard("public", IMAGES, np.arange(4), DEVICE) is public
        assert held.shard(1, IMAGES, np.arange(4), DEVICE, beside="public").is_resident


def test_on_a_cpu_no_pixel_is_copied() -> None:
    held = ResidentShards(lambda: 10**6)
    shard = held.shard(0, IMAGES, ROWS, torch.device("cpu"), None)
    assert shard.images.data_ptr() == IMAGES.ctypes.data
