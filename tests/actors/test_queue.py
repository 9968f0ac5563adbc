"""The work queue: affinity, longest first, several items in one call."""

from hypothesis import given
from hypothesis import strategies as st

from actors.dispatch.queue import MAX_CALL_BYTES, WorkItem, WorkQueue, assign_clients, client_items


def test_clients_are_assigned_so_that_slots_hold_about_as_many_samples():
    assert assign_clients({0: 10, 1: 50, 2: 20, 3: 20}, 2) == {1: 0, 2: 1, 3: 1, 0: 1}
    assert sorted(assign_clients(dict.fromkeys(range(7), 5), 7).values()) == list(range(7))


@given(st.dictionaries(st.integers(0, 99), st.integers(1, 1000), min_size=1), st.integers(1, 5))
def test_no_slot_is_fuller_than_an_even_share_and_one_client(sizes: dict[int, int], num_slots: int):
    assigned = assign_clients(sizes, num_slots)
    assert assigned.keys() == sizes.keys()
    held = [sum(sizes[k] for k, slot in assigned.items() if slot == at) for at in range(num_slots)]
    assert max(held) <= sum(sizes.values()) / num_slots + max(sizes.values())


def test_a_step_is_expected_to_take_what_the_last_did_and_a_first_one_its_share_at_the_others_speed():
    sizes = {0: 10, 1: 30, 2: 20, 3: 5}
    assert client_items([0, 2], sizes, {}, {}) == [WorkItem(0, 10), WorkItem(2, 20)]
    items = client_items([0, 2, 3], sizes, {0: 1.0, 1: 7.0}, {0: 40, 1: 90})
    assert items == [WorkItem(0, 1.0, 1.0, 40), WorkItem(2, 4.0, 4.0, 90), WorkItem(3, 1.0, 1.0, 90)]


@given(st.lists(st.floats(0.001, 1.0), max_size=30), st.integers(1, 4), st.floats(0.0, 0.5))
def test_every_item_is_taken_once_and_no_call_of_several_is_longer_than_allowed(
    lengths: list[float], num_slots: int, call_seconds: float
):
    items = [WorkItem(k, seconds, seconds) for k, seconds in enumerate(lengths)]
    queue = WorkQueue(items, {k: k % num_slots for k in range(len(items))}, call_seconds)
    taken = []
    while queue:
        call = queue.take(len(taken) % num_slots, num_slots)
        assert len(call) == 1 or sum(item.seconds for item in call) <= call_seconds + 1e-9
        taken += [item.key for item in call]
    assert sorted(taken) == [item.key for item in items]


def test_an_item_of_unknown_duration_goes_alone():
    queue = WorkQueue([WorkItem(0, 3.0), WorkItem(1, 2.0)], {}, call_seconds=10.0)
    assert [[item.key for item in queue.take(0, 1)] for _ in range(2)] == [[0], [1]]


def test_a_requeued_item_goes_next_and_alone():
    queue = WorkQueue([WorkItem(k, 0.001, 0.001) for k in range(3)], {}, call_seconds=1.0)
    assert len(queue.take(0, 1)) == 3
    queue.requeue(WorkItem(2))
    queue.requeue(WorkItem(1))
    assert [[item.key for item in queue.take(0, 1)] for _ in range(2)] == [[1], [2]]
    assert not queue


def test_an_idle_slot_takes_an_item_of_another_although_it_costs_nothing():
    queue = WorkQueue([WorkItem(0), WorkItem(1)], {0: 0, 1: 1}, call_seconds=0.0)
    assert [[item.key for item in queue.take(0, 2)] for _ in range(3)] == [[0], [1], []]


def test_short_work_is_shared_out_in_a_call_for_each_slot_and_one_for_what_another_has_left():
    queue = WorkQueue(
        [WorkItem(k, 0.001, 0.001) for k in range(20)], {k: int(k >= 13) for k in range(20)}, call_seconds=1.0
    )
    assert [len(queue.take(slot, 2)) for slot in (0, 1, 1)] == [10, 7, 3]


def test_a_call_returns_no_more_than_an_actor_may_hold():
    sizes = (MAX_CALL_BYTES, MAX_CALL_BYTES // 2, MAX_CALL_BYTES // 2, 1)
    queue = WorkQueue([WorkItem(k, 0.01, 0.01, nbytes) for k, nbytes in enumerate(sizes)], {}, call_seconds=10.0)
    assert [[item.key for item in queue.take(0, 1)] for _ in range(3)] == [[3, 2], [1], [0]]
    assert not queue
