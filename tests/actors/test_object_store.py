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


def test_a_shared_model_is_one_part_however_many_clients_receive_it(weights):
    parts, plan = pack({client_id: Download(weights) for client_id in range(100)})
    assert len(parts) == 1
    assert parts[0] is weights
    assert plan[0] == plan[99]


def test_tensors_that_values_share_are_parts_of_their_own(weights):
    own = {k: weights | {"own": torch.full((k + 1,), float(k))} for k in range(3)}
    parts, _ = pack({k: Download(own[k]) for k in range(3)})
    assert len(parts) == 5


def test_what_each_client_has_alone_is_one_part_per_client():
    parts, _ = pack({k: Download({"a": torch.full((2,), k), "b": torch.full((3,), k)}) for k in range(4)})
    assert len(parts) == 4


def test_values_without_tensors_stay_in_the_message():
    parts, plan = pack({0: Download(None, {"name": "cnn", "count": 3})})
    assert parts == []
    assert plan == {0: Download(None, {"name": "cnn", "count": 3})}


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


def test_a_state_without_ref_is_read_from_disk(tmp_path):
    state = ClientState("cnn", {"a": torch.ones(3)})
    stored = checkpoints.store(state, tmp_path, "client")
    assert digest(StateRef(stored).read(tmp_path)) == digest(state)


def test_a_state_whose_ref_was_lost_is_read_from_disk(lost_ref, tmp_path):
    state = ClientState("cnn", {"a": torch.ones(3)})
    stored = checkpoints.store(state, tmp_path, "client")
    assert digest(StateRef(stored, ItemRef(lost_ref, 0)).read(tmp_path)) == digest(state)


def test_states_are_kept_while_they_find_room(cluster, tmp_path):
    cache, ref = StateRefs(1000), ItemRef(ray.put([0]), 0)
    small, large = (checkpoints.store(ClientState("cnn", {"a": torch.ones(n)}), tmp_path, f"{n}") for n in (100, 1000))
    cache.add(0, small, ref)
    cache.add(1, large, ref)
    assert cache.find(0, small).item is ref
    assert cache.find(1, large) == StateRef(large)
    assert cache.find(0, large) == StateRef(large)


def test_a_state_gives_back_its_room(cluster, tmp_path):
    cache, ref = StateRefs(1000), ItemRef(ray.put([0]), 0)
    first, second = (checkpoints.store(ClientState("cnn", {"a": torch.ones(n)}), tmp_path, f"{n}") for n in (200, 201))
    cache.add(0, first, ref)
    cache.add(0, second, ref)
    assert cache.find(0, second).item is ref
    cache.add(0, first, None)
    cache.add(1, second, ref)
    assert cache.find(1, second).item is ref


def test_states_are_mapped_in_ascending_id(tmp_path):
    stored = checkpoints.store(ClientState("cnn", {"a": torch.ones(3)}), tmp_path, "client")
    memories = ClientStates({5: StateRef(stored), 1: StateRef(stored)}, tmp_path)
    assert list(memories) == [1, 5]
    assert memories[5].architecture == "cnn"
