"""The peers' suite: what its numbers are made of, without any peer."""

import io
import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import cases, faults, launch, meter, table, work, worker_ours
from rayfed_ssl.engine.round_loop import Dropped, RoundOutcome, ServerReport
from rayfed_ssl.storage.checkpoints import RunState, Stored


def row(bench: str, name: str, system: str, repeat: int = 0, **fields: Any) -> dict[str, Any]:
    case = {"cohort": 20, "actors": 2}
    return {"bench": bench, "name": name, "system": system, "repeat": repeat, "code": 0, "case": case, **fields}


def test_spread_is_the_median_and_the_range_of_repeats() -> None:
    assert table.spread([3.0, 1.0, 2.0]) == {"median": 2.0, "low": 1.0, "high": 3.0, "repeats": 3}
    assert table.spread([]) is None


def test_a_repeat_counts_with_the_median_of_its_rounds() -> None:
    rows = [row("B1", "1 MB", "flower", repeat, seconds=[1.0, 2.0 + repeat, 9.0]) for repeat in range(3)]
    summary = table.summarize(rows)
    assert summary["B1 1 MB: s/round"]["flower"] == {"median": 3.0, "low": 2.0, "high": 4.0, "repeats": 3}


def test_cpu_efficiency_pairs_repeats_and_leaves_out_lost_ones() -> None:
    plain = [row("B2", "SimCLR", "plain", repeat, seconds=[4.0], core_seconds=6.0 + repeat) for repeat in range(2)]
    ours = [row("B2", "SimCLR", "rayfed-ssl", 1, seconds=[5.0], core_seconds=14.0)]
    lost = [row("B2", "SimCLR", "rayfed-ssl", 0, lost="killed")]
    summary = table.summarize([*plain, *ours, *lost])
    assert summary["B2: CPU efficiency against the plain loop"]["rayfed-ssl"]["median"] == 0.5
    assert summary["B2: clients/s"]["rayfed-ssl"]["median"] == 4.0


def test_the_ideal_makespan_is_bound_by_the_sum_and_by_the_longest_client() -> None:
    even = row("B5", "log-normal", "flower", seconds=[6.0], clients=[2.0, 2.0, 2.0, 2.0])
    uneven = row("B5", "log-normal", "flower", seconds=[6.0, 6.0], clients=[5.0, 1.0, 5.0, 1.0])
    assert table.ideal_ratio(even) == 6.0 / 4.0
    assert table.ideal_ratio(uneven) == 12.0 / 10.0


def test_memory_per_added_client_is_paired_by_repeat() -> None:
    few = row("B4", "100 clients", "rayfed-ssl", seconds=[1.0], data_mb=800.0)
    many = row("B4", "1000 clients", "rayfed-ssl", seconds=[1.1], data_mb=1250.0)
    summary = table.summarize([few, many])
    assert summary["B4: MB per added client"]["rayfed-ssl"]["median"] == 0.5
    without = [{key: value for key, value in one.items() if key != "data_mb"} for one in (few, many)]
    assert "B4: MB per added client" not in table.summarize(without)
    assert summary["B4: s/round of 1,000 over 100"]["rayfed-ssl"]["median"] == 1.1


DEATH = {"killed": [{"pid": 7, "round": 2}]}


@pytest.mark.parametrize(
    ("killed", "expected"),
    [
        ({"seconds": [1.0], "failed": [0, 0], "weights": "a", **DEATH}, "0 0, exit 0, same hash, a death in round 2"),
        ({"seconds": [1.0], "failed": [0, 5], "weights": "b", **DEATH}, "0 5, exit 0, other hash, a death in round 2"),
        ({"seconds": [1.0], "failed": [0, 0], "weights": "a"}, "0 0, exit 0, same hash, nobody seen to die"),
        ({"code": None, **DEATH}, "run lost, hung, a death in round 2"),
        ({"code": 1, "killed": []}, "run lost, exit 1, nobody seen to die"),
    ],
)
def test_a_death_is_reported_with_failed_clients_exit_code_and_hash(killed: dict[str, Any], expected: str) -> None:
    whole = row("B6", "undisturbed", "pfl", seconds=[1.0], failed=[0, 0], weights="a")
    assert (
        table.summarize([whole, row("B6", "killed", "pfl", **killed)])["B6: failed clients by round"]["pfl"] == expected
    )


def test_repeats_that_end_differently_are_all_reported() -> None:
    rows = [
        row("B6", name, "pfl", repeat, seconds=[1.0], failed=[0], weights="ab"[name == "killed" and repeat == 2])
        for repeat in range(3)
        for name in ("undisturbed", "killed")
    ]
    text = table.summarize(rows)["B6: failed clients by round"]["pfl"]
    assert text == (
        "2 of 3: 0, exit 0, same hash, nobody seen to die; 1 of 3: 0, exit 0, other hash, nobody seen to die"
    )


def test_exits_are_reported_with_their_spread_and_hangs() -> None:
    rows = [row("B8", "no Ray", "flower", repeat, exit_seconds=2.0 + repeat) for repeat in range(3)]
    hung = row("B8", "no Ray", "flower", 3) | {"code": None, "exit_seconds": 60.0}
    text = table.summarize([*rows, hung])["B8: seconds to exit, exit code"]["flower"]
    assert text == "hung (over 60 s); 3 (2 to 4) s, 0"


def test_a_system_that_gives_nothing_does_not_end_the_suite(tmp_path: Path) -> None:
    nothing = launch.Environments(Path("/bin/false"), tmp_path)
    fields = cases.resumed(str(tmp_path))
    result = faults.kill_and_resume("rayfed-ssl", fields, nothing)
    assert (result["code"], result["same"], result["rounds_repeated"]) == (1, None, None)


def test_a_killed_process_is_recorded_with_its_round() -> None:
    file = io.StringIO()
    watched = meter.Meter(work.Case(bench="B6", name="killed", data=""), "plain", file)
    watched.start_round()
    with subprocess.Popen(["sleep", "600.125"]) as victim:
        watched.kill_one("sleep 600.125", 0.0)
        assert victim.wait(60) == -signal.SIGKILL
    while not file.getvalue().endswith("\n"):
        time.sleep(0.01)
    assert json.loads(file.getvalue())["killed"] == [{"pid": victim.pid, "round": 1}]


def test_clients_that_are_dropped_count_as_failed() -> None:
    file = io.StringIO()
    watched = meter.Meter(work.Case(bench="B6", name="killed", data="", warm=0), "rayfed-ssl", file)
    watch, server = worker_ours.Watch(watched), Stored("server", "00", 1)
    watch.on_round(1, [3, 4])
    state, report = RunState(1, server), ServerReport(server, {}, 0.0)
    watch.on_round_end(RoundOutcome(state, (), report, 1.0, dropped=(Dropped(3, "its actor died"),)))
    watched.finish()
    assert json.loads(file.getvalue())["failed"] == [1]


def test_distinct_cohorts_and_hashes_are_counted() -> None:
    runs = [("a", [1, 2]), ("a", [1, 2]), ("b", [2, 3])]
    rows = [
        row("B7", f"run {number}", "flower", seconds=[1.0], weights=weights, cohorts=[cohort, [7, 8]])
        for number, (weights, cohort) in enumerate(runs)
    ]
    assert table.summarize(rows)["B7: distinct first cohorts / hashes"]["flower"] == "2 / 2 of 3 runs"


def test_the_table_has_a_column_per_system_and_a_line_per_measurement() -> None:
    rows = [row("B1", "1 MB", "plain", repeat, seconds=[0.5 + repeat]) for repeat in range(3)]
    lines = table.markdown(table.summarize(rows)).splitlines()
    assert lines[0] == "| | plain loop | bare Ray | pfl-research | BlazeFL | Flower | rayfed-ssl |"
    assert lines[2] == "| B1 1 MB: s/round | 1.5 (0.5 to 2.5) |  |  |  |  |  |"
