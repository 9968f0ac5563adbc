from dataclasses import dataclass
from typing import Any

import pytest
import ray
import torch

from actors.errors import UploadLostError
from actors.object_store import ItemRef, Uploads, fetch, insert_refs, pack
from rayfed_ssl.trees import digest, flatten


@dataclass(frozen=True)
class Download:
    weights: Any
    others: Any = None


@pytest.fixture
def weights():
    return {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(7)}


def travel(messages):
    parts, plan = pack(messages)
    refs = [ray.put(flatten(part)) for part in parts]
    return {key: fetch(message) for key, message in insert_refs(plan, refs).items()}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (lambda shared, k: shared, 2),
        (lambda shared, k: shared | {"own": torch.full((k + 1,), float(k))}, 2 + 3),
        (lambda shared, k: {"a": torch.full((2,), k), "b": torch.full((3,), k)}, 3),
    ],
    ids=["a shared model", "shared tensors and own ones", "own tensors"],
)
def test_what_clients_share_is_sent_once(weights, message, expected):
    parts, _ = pack({k: Download(message(dict(weights), k)) for k in range(3)})
    assert len(parts) == expected


def test_one_model_for_all_is_one_part_and_what_has_no_tensors_stays_in_the_message(weights):
    parts, plan = pack({client_id: Download(weights) for client_id in range(100)})
    assert len(parts) == 1
    assert parts[0] is weights
    assert plan[0] is plan[99]
    filled = insert_refs(plan, ["ref"])
    assert filled[0] is filled[99]
    assert filled[0] == Download("ref")
    message = {0: Download(None, {"name": "cnn", "count": 3})}
    assert pack(message) == ([], message)


def test_downloads_arrive_with_the_same_bits(cluster, weights):
    messages = {k: Download(weights, (weights["a"], torch.full((2,), k), "text")) for k in range(3)}
    arrived = travel(messages)
    assert {k: digest(message) for k, message in arrived.items()} == {k: digest(m) for k, m in messages.items()}


def test_what_arrives_is_shared_memory_and_cannot_be_written(cluster):
    (arrived,) = travel({0: Download({"a": torch.zeros(50_000)})}).values()
    assert not arrived.weights["a"].numpy().flags.owndata
    (raw,) = ray.get([ray.put(flatten({"a": torch.zeros(50_000)}))])
    assert not raw.arrays[0].flags.writeable


def test_uploads_come_in_ascending_id_over_shared_memory(cluster):
    first, second = (ray.put([flatten({"w": torch.full((50_000,), k)}) for k in ids]) for ids in ((3, 0), (2, 1)))
    uploads = Uploads({3: ItemRef(first, 0), 0: ItemRef(first, 1), 2: ItemRef(second, 0), 1: ItemRef(second, 1)})
    assert list(uploads) == [0, 1, 2, 3]
    assert len(uploads) == 4
    for k, upload in uploads.items():
        assert upload["w"].eq(k).all()
        assert not upload["w"].numpy().flags.owndata


def test_an_upload_that_was_lost_names_its_client(lost_ref):
    with pytest.raises(UploadLostError) as caught:
        Uploads({4: ItemRef(lost_ref, 0)})[4]
    assert caught.value.client_id == 4
