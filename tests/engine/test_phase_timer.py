"""Where the wall time of a run goes."""

import subprocess
import sys
import time

import pytest

from rayfed_ssl.engine.phase_timer import PHASES, PhaseTimer, phases_text

AGE = "from rayfed_ssl.engine.phase_timer import process_age; print(process_age())"


def test_phases_add_up_to_the_time_between_and_one_may_come_again(monkeypatch: pytest.MonkeyPatch):
    times = iter((10.0, 11.0, 14.0, 14.5, 20.0, 21.0))
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    timer = PhaseTimer()  # at 10
    timer.begin("data")
    timer.begin("rounds")
    timer.begin("data")
    timer.begin("writing")
    seconds = timer.seconds()
    assert seconds == dict.fromkeys(PHASES, 0.0) | {"other": 1.0, "data": 8.5, "rounds": 0.5, "writing": 1.0}
    assert list(seconds) == list(PHASES)


def test_the_events_of_the_round_loop_are_phases(monkeypatch: pytest.MonkeyPatch):
    times = iter(2.0**power for power in range(6))
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    timer = PhaseTimer()
    timer.on_round(1, (0, 1))
    timer.on_server(None)
    timer.on_evaluations(True)
    timer.on_evaluated(())
    assert timer.seconds() == dict.fromkeys(PHASES, 0.0) | {
        "other": 1.0,
        "rounds": 2.0,
        "writing": 4.0 + 16.0,
        "evaluation": 8.0,
    }


def test_the_imports_of_a_process_count_since_it_was_created():
    began = time.monotonic()
    age = float(subprocess.run([sys.executable, "-c", AGE], capture_output=True, text=True, check=True).stdout)
    assert 0 < age <= time.monotonic() - began + 0.01  # the kernel counts hundredths


def test_a_phase_that_took_no_time_is_not_shown():
    assert phases_text({"imports": 8.04, "Ray": 0.04, "rounds": 300.0}) == "5 min 08 s: imports 8.0, rounds 300.0"
