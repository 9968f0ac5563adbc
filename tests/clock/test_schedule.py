from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from rayfed_ssl.clock.devices import DAY, DEVICES, SECOND, Device, Even
from rayfed_ssl.clock.policies import (
    Deadline,
    FedAsync,
    FedBuff,
    Partial,
    Policy,
    Synchronous,
    TaskSeconds,
    View,
)
from rayfed_ssl.clock.schedule import KINDS, USED, Schedule, Work
from rayfed_ssl.clock.simulation import plan
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.randomness.seeds import SERVER, Purpose, derive_seed

HOUR = 3600 * SECOND

# By hand, of two epochs. Client 4: 1 s down, 10 samples of 0.1 s, 2 s up. Client 6: 1.5 s, 20 samples of 0.5 s, 1.5 s.
# Client 9: 1 s, 30 samples of 1e8 FLOPs at 1e9 FLOP/s, 1 s.
CLIENTS = (4, 6, 9)
DEVICES_BY_HAND = (
    Device(None, 0.1, down_mbit=8, up_mbit=4),
    Device(None, 0.5, down_mbit=8, up_mbit=8, latency_ms=500),
    Device(1e9, None, down_mbit=8, up_mbit=8),
)
WORK = Work((10, 20, 30), (1e8,) * 3, (0.0,) * 3, (10**6,) * 3, (10**6,) * 3, epochs=2)
TASK = {4: (1, 3, 5), 6: (1.5, 21.5, 23), 9: (1, 7, 8)}  # seconds after which it is downloaded, trained, uploaded


def by_hand(policy: Policy, steps: int = 1, devices: Any = DEVICES_BY_HAND, **options: Any) -> Schedule:
    return plan(policy, CLIENTS, devices, WORK, **{"size": 3, "steps": steps, "seed": 0} | options)


def used(schedule: Schedule) -> list[dict[int, tuple[int, int]]]:
    """Version and staleness of each contribution, by step and client."""
    steps = range(1, len(schedule.times) + 1)
    return [{c.client: (c.version, c.staleness) for c in schedule.contributions(step).values()} for step in steps]


def seconds(schedule: Schedule) -> list[float]:
    return [time / SECOND for time in schedule.times]


def test_a_synchronous_timeline_is_the_one_computed_by_hand():
    schedule = by_hand(Synchronous(), 2)
    assert seconds(schedule) == [23, 46]
    assert used(schedule) == [{4: (0, 0), 6: (0, 0), 9: (0, 0)}, {4: (1, 0), 6: (1, 0), 9: (1, 0)}]
    expected = [(0.0, client, "asked") for client in CLIENTS]
    for kind, place in (("downloaded", 0), ("trained", 1), ("uploaded", 2)):
        expected += [(TASK[client][place], client, kind) for client in CLIENTS]
    expected.append((23.0, SERVER, "aggregated"))
    rows = [row for row in schedule.table().to_pylist() if row["step"] == 1]
    events = [(row["time"] / SECOND, row["client"], row["event"]) for row in rows]
    assert events == sorted(expected, key=lambda event: event[:2])
    assert [row["count"] for row in rows if row["client"] == 4] == [0, 1, 2, 3]


def test_a_deadline_drops_who_is_late_and_counts_the_bytes():
    schedule = by_hand(Deadline(over=0.0, seconds=10.0))
    assert seconds(schedule) == [10]
    assert used(schedule) == [{4: (0, 0), 9: (0, 0)}]
    assert schedule.metrics(1) == {"virtual_seconds": 10.0, "wasted_bytes": 1e6}  # client 6 trains: it has downloaded
    gone = [row for row in schedule.table().to_pylist() if row["event"] == "gone"]
    assert [(row["time"] / SECOND, row["client"], row["used"]) for row in gone] == [(10, 6, 0)]
    uploading = by_hand(Deadline(over=0.0, seconds=22.0))
    assert uploading.metrics(1)["wasted_bytes"] == 2e6


def test_a_deadline_before_the_first_upload_waits_for_it_alone():
    schedule = by_hand(Deadline(over=0.0, seconds=2.0))
    assert (seconds(schedule), used(schedule)) == ([5], [{4: (0, 0)}])


def test_over_selection_steps_as_soon_as_a_cohort_has_arrived():
    schedule = by_hand(Deadline(over=0.5), size=2)
    assert (seconds(schedule), used(schedule)) == ([8], [{4: (0, 0), 9: (0, 0)}])


def test_slow_clients_do_as_many_epochs_as_fit_and_at_least_one():
    schedule = by_hand(Partial(seconds=7.0))
    epochs = {client: part.epochs for client, part in schedule.contributions(1).items()}
    assert epochs == {4: 2, 6: 1, 9: 1}  # client 9: 2 s of transfers and 3 s an epoch
    assert seconds(schedule) == [13]
    assert Partial(seconds=8.0).epochs(TaskSeconds(fixed=2, epoch=3), 2) == 2


def test_a_buffer_is_filled_by_whoever_comes_and_stale_uploads_say_so():
    schedule = by_hand(FedBuff(buffer=2), 3)
    assert seconds(schedule) == [8, 16, 23]
    assert used(schedule) == [{4: (0, 0), 9: (0, 0)}, {4: (1, 0), 9: (1, 0)}, {4: (2, 0), 6: (0, 2)}]
    assert schedule.contributions(3)[6].weight == pytest.approx(3**-0.5, rel=1e-15)


def test_an_upload_beyond_the_bound_is_wasted_and_its_client_asked_again():
    schedule = by_hand(FedBuff(buffer=2, bound=1), 3)
    assert seconds(schedule) == [8, 16, 24]
    assert used(schedule)[2] == {4: (2, 0), 9: (2, 0)}
    assert schedule.metrics(3)["wasted_bytes"] == 2e6


def test_each_upload_is_a_step_of_fedasync():
    schedule = by_hand(FedAsync(alpha=0.5, staleness="hinge", a=3.0, b=0), 4)
    assert seconds(schedule) == [5, 8, 10, 15]
    assert used(schedule) == [{4: (0, 0)}, {9: (0, 1)}, {4: (1, 1)}, {4: (3, 0)}]
    assert [schedule.policy.weight(staleness) for staleness in (0, 1, 2)] == [0.5, 0.5 / 4, 0.5 / 7]
    assert [FedAsync(alpha=0.5, staleness="constant").weight(staleness) for staleness in (0, 9)] == [0.5, 0.5]


def test_the_server_waits_for_devices_and_a_device_that_leaves_delivers_nothing():
    late = replace(DEVICES_BY_HAND[0], windows=((8 * HOUR, HOUR),))
    early = replace(DEVICES_BY_HAND[1], windows=((7 * HOUR, HOUR + 10 * SECOND),))
    schedule = by_hand(Synchronous(), devices=(late, early, DEVICES_BY_HAND[2]))
    assert schedule.times == (8 * HOUR + 10 * SECOND,)
    assert used(schedule) == [{4: (0, 0), 9: (0, 0)}]
    rows = [row for row in schedule.table().to_pylist() if row["event"] in ("available", "gone")]
    assert [(row["time"], row["client"], row["event"]) for row in rows] == [
        (7 * HOUR, 6, "available"),
        (8 * HOUR, 4, "available"),
        (8 * HOUR + 10 * SECOND, 6, "gone"),
    ]


def test_a_cohort_that_fails_is_followed_by_another():
    failing = replace(DEVICES_BY_HAND[0], failure=0.7)
    schedule = plan(Synchronous(), [4], [failing], WORK, size=1, steps=20, seed=0)
    assert all(len(step) == 1 for step in used(schedule))
    assert len(schedule.tasks["place"]) > 30
    assert schedule.tasks["number"].tolist() == list(range(len(schedule.tasks["place"])))


NUM = 40
SOME_WORK = Work(
    [20 + 7 * place % 50 for place in range(NUM)], [1e8] * NUM, [3.0] * NUM, [10**6] * NUM, [2 * 10**6] * NUM, 2
)
POLICIES = (
    Synchronous(),
    Deadline(seconds=60.0),
    Partial(seconds=30.0),
    FedAsync(),
    FedBuff(buffer=4, bound=5),
)


def planned(policy: Policy, name: str = "phones", steps: int = 25, seed: int = 3) -> Schedule:
    devices = DEVICES[name]().draw(range(NUM), derive_seed(seed, Purpose.CLOCK))
    return plan(policy, range(NUM), devices, SOME_WORK, size=8, steps=steps, seed=seed)


@pytest.mark.parametrize("name", ["even", "phones", "hospitals"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_laws_of_every_policy(policy: Policy, name: str):
    schedule = planned(policy, name)
    tasks, table = schedule.tasks, schedule.table()
    again = planned(policy, name)
    assert again.table().equals(table)
    assert again.digests == schedule.digests
    assert planned(policy, name, seed=4).digests[-1] != schedule.digests[-1]
    assert planned(policy, name, steps=30).digests[:26] == schedule.digests, "later steps change no earlier ones"
    order = list(zip(*(table[key].to_pylist() for key in ("time", "client", "count")), strict=True))
    assert order == sorted(set(order)), "one total order"
    kinds = table["event"].to_pylist()
    assert set(kinds) <= set(KINDS)
    assert kinds.count("asked") == kinds.count("uploaded") + kinds.count("gone") == len(tasks["place"])
    by_client = np.lexsort((tasks["asked"], tasks["place"]))
    same = np.diff(tasks["place"][by_client]) == 0
    gaps = tasks["asked"][by_client][1:] - tasks["ended"][by_client][:-1]
    assert (gaps[same] >= 0).all(), "a client has one task at a time"
    for step in range(1, 26):
        places = schedule.of_step(step)["place"][schedule.of_step(step)["end"] == USED]
        assert len(places) == len(set(places.tolist())) > 0, "and is once in a step at most"


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_ahead_of_a_step_are_tasks_that_need_nothing_of_it(policy: Policy):
    schedule = planned(policy)
    total = 0
    for step in range(1, 26):
        expected, seen = {}, set(schedule.of_step(step)["place"].tolist())
        for later in range(step + 1, 26):
            for client, contribution in schedule.contributions(later).items():
                if contribution.version < step and client not in seen:
                    expected[client] = later
                seen.add(client)
        assert schedule.ahead_of(step) == expected
        total += len(expected)
    assert bool(total) == (not policy.is_synchronous)


def test_a_deadline_that_never_comes_is_synchronous():
    assert planned(Deadline(over=0.0)).digests == planned(Synchronous()).digests


def test_on_even_devices_a_buffer_of_the_cohort_is_synchronous():
    devices, work = Even().draw(range(6), 0), Work([9] * 6, [1e8] * 6, [0.0] * 6, [1] * 6, [1] * 6, 1)
    results = [
        plan(policy, range(6), devices, work, size=size, steps=4, seed=5).digests
        for policy, size in ((Synchronous(), 4), (FedBuff(buffer=4), 4))
    ]
    assert results[0] == results[1]


@dataclass(frozen=True, kw_only=True)
class Never(Synchronous):
    def aggregates(self, view: View) -> bool:
        return False


def test_what_can_never_happen_is_one_line():
    with pytest.raises(ConfigError, match=r"clock\.policy never comes to server step 1 \(nobody is at work; 3 uploads"):
        by_hand(Never())
    with pytest.raises(ConfigError, match=r"never comes to server step 1 .* 3 uploads wait"):
        by_hand(FedBuff(buffer=4))
    apart = [replace(d, windows=((n * 8 * HOUR, HOUR),)) for n, d in enumerate(DEVICES_BY_HAND)]
    with pytest.raises(ConfigError, match="3 clients, which server step 1 needs, are never available at once"):
        by_hand(Synchronous(), devices=apart)
    with pytest.raises(ConfigError, match=r"step 1 \(\d+ tasks have begun since the last one"):
        by_hand(Synchronous(), devices=[replace(device, failure=1.0) for device in DEVICES_BY_HAND])
    slow = (replace(DEVICES_BY_HAND[0], sample_seconds=1e9), *DEVICES_BY_HAND[1:])
    with pytest.raises(ConfigError, match="a task of client 4 takes 1e\\+10 s, more than a hundred years"):
        by_hand(Synchronous(), devices=slow)


@dataclass(frozen=True)
class Own(Synchronous):
    """A user's policy that says what cannot be."""

    local: int = 1
    factor: Any = 1.0

    def epochs(self, seconds: TaskSeconds, epochs: int) -> int:
        return self.local

    def weight(self, staleness: int) -> Any:
        return self.factor


@pytest.mark.parametrize("local", [0, -5, 3])
def test_a_policys_epochs_are_those_that_a_client_can_do(local: int):
    with pytest.raises(ConfigError, match=f"clock.policy must give 1 to 2 local epochs, got {local}"):
        by_hand(Own(local=local))


@pytest.mark.parametrize("factor", [float("nan"), -1.0, "x"])
def test_a_policys_weights_are_numbers(factor: Any):
    with pytest.raises(ConfigError, match=f"clock.policy must give weights of at least 0, got {factor!r}"):
        by_hand(Own(factor=factor)).contributions(1)


def test_a_task_of_days_leaves_time_to_wait_for_others():
    """The server waits for two days from the end of the last task, not from its start."""
    long = Device(None, 3 * 86_400.0, 1000, 1000)
    later = Device(None, 60.0, 1000, 1000, windows=((2 * HOUR, 8 * HOUR),))
    work = Work((1, 1), (1.0,) * 2, (0.0,) * 2, (1, 1), (1, 1), epochs=1)
    schedule = plan(FedBuff(buffer=2), (0, 1), (long, later), work, size=1, steps=1, seed=0)
    assert schedule.times[0] > 3 * DAY
    with pytest.raises(ConfigError, match="never comes to server step 1"):
        plan(FedBuff(buffer=3), (0, 1), (long, later), work, size=1, steps=1, seed=0)


@pytest.mark.parametrize(
    "device", [Device(1e-300, None, 1, 1), Device(None, 1.0, 1e-310, 1), Device(None, 3e9, 1e-8, 1)]
)
def test_a_task_that_takes_for_ever_is_one_line(device: Device):
    work = Work((1,) * 3, (1e10,) * 3, (0.0,) * 3, (10**6,) * 3, (10**6,) * 3, epochs=20)
    for policy in (Synchronous(), Partial(seconds=9)):
        with pytest.raises(ConfigError, match=r"a task of client 4 takes .* s, more than a hundred years"):
            plan(policy, CLIENTS, [device] * 3, work, size=3, steps=1, seed=0)


def test_centuries_of_virtual_time_are_refused():
    slow = [replace(device, flops=None, sample_seconds=5e7) for device in DEVICES_BY_HAND]
    with pytest.raises(ConfigError, match="server step 2 of 9 comes after more than a hundred years"):
        by_hand(Synchronous(), 9, devices=slow)


def test_an_asynchronous_cohort_is_filled_up_as_soon_as_clients_are_available():
    later = ((HOUR, HOUR),)
    devices = [
        replace(DEVICES_BY_HAND[0], sample_seconds=3600.0),
        *(replace(d, windows=later) for d in DEVICES_BY_HAND[1:]),
    ]
    asked = by_hand(FedBuff(buffer=1), 5, devices=devices).table().to_pylist()
    first = {row["client"]: row["time"] for row in reversed(asked) if row["event"] == "asked"}
    assert first == {6: HOUR, 9: HOUR}, "client 4, which works until 20:00, does not hold them up"


def test_asynchronous_clients_wait_for_their_windows():
    devices = [replace(device, windows=((6 * HOUR, HOUR),)) for device in DEVICES_BY_HAND]
    schedule = by_hand(FedAsync(), 2000, devices=devices)
    assert schedule.times[0] == 6 * HOUR + 5 * SECOND
    assert schedule.times[-1] > DAY
    assert all(6 * HOUR <= time % DAY <= 7 * HOUR for time in schedule.times)


@pytest.mark.slow
def test_a_million_events_are_in_order():
    num = 1000
    devices = DEVICES["hospitals"]().draw(range(num), 0)
    work = Work([50] * num, [1e8] * num, [0.0] * num, [10**6] * num, [10**6] * num, 1)
    times = plan(Deadline(), range(num), devices, work, size=100, steps=2000, seed=0).table()["time"].to_numpy()
    assert len(times) > 1_000_000
    assert (np.diff(times) >= 0).all()
