from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import ray
import torch

from actors.errors import UploadLostError
from actors.objects.client_states import ClientStates, StateRef, StateRefs
from actors.objects.object_store import ItemRef, Uploads, fetch, insert_refs, pack
from rayfed_ssl.methods.local_only import ClientState
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.trees import digest, to_numpy


@dataclass(frozen=True)
class Download:
    weights: Any
    others: Any = None


@pytest.fixture
def weights():
    return {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(7)}


def travel(messages):
    parts, plan = pack(messages)
    refs = [ray.put(to_numpy(part)) for part in parts]
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
    assert plan[0] == plan[99]
    message = {0: Download(None, {"name": "cnn", "count": 3})}
    assert pack(message) == ([], message)


def test_downloads_arrive_with_the_same_bits(cluster, weights):
    messages = {k: Download(weights, (weights["a"], torch.full((2,), k), "text")) for k in range(3)}
    arrived = travel(messages)
    assert {k: digest(message) for k, message in arrived.items()} == {k: digest(m) for k, m in messages.items()}


def test_what_arrives_is_shared_memory_and_cannot_be_written(cluster):
    (arrived,) = travel({0: Download({"a": torch.zeros(50_000)})}).values()
    assert not arrived.weights["a"].numpy().flags.owndata
    (raw,) = ray.get([ray.put({"a": np.zeros(50_000)})])
    assert not raw["a"].flags.writeable


def test_uploads_come_in_ascending_id_over_shared_memory(cluster):
    first, second = (ray.put([{"w": np.full(50_000, k)} for k in ids]) for ids in ((3, 0), (2, 1)))
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


@pytest.mark.parametrize("is_lost", [False, True], ids=["without ref", "lost"])
def test_a_state_that_is_not_in_the_object_store_is_read_from_disk(lost_ref, tmp_path, is_lost):
    state = ClientState("cnn", {"a": torch.ones(3)})
    stored = checkpoints.store(state, tmp_path, "client")
    ref = StateRef(stored, ItemRef(lost_ref, 0)) if is_lost else StateRef(stored)
    assert digest(ref.read(tmp_path)) == digest(state)


@pytest.fixture
def store(tmp_path):
    """Store a state of so many numbers."""
    return lambda n: checkpoints.store(ClientState("cnn", {"a": torch.ones(n)}), tmp_path, f"{n}")


def test_states_are_cached_while_the_capacity_lasts(cluster, store):
    cache, ref = StateRefs(1000), ItemRef(ray.put([0]), 0)
    small, large = store(100), store(1000)
    cache.add(0, small, ref)
    cache.add(1, large, ref)
    assert cache.find(0, small).item is ref
    assert cache.find(1, large) == StateRef(large)
    assert cache.find(0, large) == StateRef(large)


def test_a_state_that_is_replaced_or_removed_frees_its_bytes(cluster, store):
    cache, ref = StateRefs(1000), ItemRef(ray.put([0]), 0)
    first, second = store(200), store(201)
    cache.add(0, first, ref)
    cache.add(0, second, ref)
    assert cache.find(0, second).item is ref
    cache.add(0, first, None)
    cache.add(1, second, ref)
    assert cache.find(1, second).item is ref


def test_states_are_mapped_in_ascending_id(tmp_path):
    stored = checkpoints.store(ClientState("cnn", {"a": torch.ones(3)}), tmp_path, "client")
    states = ClientStates({5: StateRef(stored), 1: StateRef(stored)}, tmp_path)
    assert list(states) == [1, 5]
    assert states[5].architecture == "cnn"
