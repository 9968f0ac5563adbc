"""The round loop: when rounds are scored, who is told what, and in which order."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from torch import Tensor

from rayfed_ssl.engine.background_writer import BackgroundWriter
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.local_executor import LocalExecutor
from rayfed_ssl.engine.round_loop import ClientReport, Dropped, Listener, Observer, QuorumError, RunPlan, run_rounds
from rayfed_ssl.engine.steps import Steps
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.trees import map_leaves

Open = Callable[..., Federation]


@dataclass
class Diary(Observer):
    """What an observer is told, and which rounds were committed when it was."""

    directory: Path
    entries: list[tuple[Any, ...]] = field(default_factory=list)

    def on_round(self, round: int, cohort: Any) -> None:
        self._note("round", round, tuple(cohort))

    def on_client(self, report: Any) -> None:
        self._note("client", report.client)

    def on_server(self, report: Any) -> None:
        self._note("server")

    def on_round_end(self, outcome: Any) -> None:
        self._note("end", outcome.state.round)

    def on_commit(self, outcome: Any) -> None:
        time.sleep(0.3)  # an evaluation that does not wait would begin before
        self._note("commit", outcome.state.round)

    def on_evaluations(self, final: bool) -> None:
        self._note("evaluations", final)

    def on_evaluated(self, evaluations: Any) -> None:
        self._note("evaluated", *(evaluation.encoder for evaluation in evaluations))

    def _note(self, *entry: Any) -> None:
        self.entries.append((*entry, max(checkpoints.manifests(self.directory))))


def test_a_round_is_committed_before_it_is_scored_and_before_the_next(open_tiny: Open, tmp_path: Path):
    federation = open_tiny("local", "clients.number=2")
    diary = Diary(tmp_path)
    run_rounds(RunPlan(2, federation.cohort, 1, tmp_path), LocalExecutor(federation), diary)
    expected: list[tuple[Any, ...]] = []
    for round in (1, 2):
        before = round - 1
        expected += [
            ("round", round, (0, 1), before),
            ("client", 0, before),
            ("client", 1, before),
            ("server", before),
            ("end", round, before),
            ("commit", round, before),
            ("evaluations", round == 2, round),
            ("evaluated", "client-0", "client-1", round),
        ]
    assert diary.entries == expected


def test_a_round_is_written_while_the_next_one_begins_and_before_its_first_report(open_tiny: Open, tmp_path: Path):
    class WritesLate(Diary):
        """Commits round 1 only when round 2 has begun."""

        begun = Event()

        def on_round(self, round: int, cohort: Any) -> None:
            super().on_round(round, cohort)
            if round == 2:
                self.begun.set()

        def on_commit(self, outcome: Any) -> None:
            assert self.begun.wait(60), "round 2 waits for round 1 to be written"
            super().on_commit(outcome)

    federation = open_tiny("local", "clients.number=2")
    diary = WritesLate(tmp_path)
    run_rounds(RunPlan(2, federation.cohort, 0, tmp_path), LocalExecutor(federation), diary)
    assert [entry for entry in diary.entries if entry[0] in ("round", "commit", "client")] == [
        ("round", 1, (0, 1), 0),
        ("client", 0, 0),
        ("client", 1, 0),
        ("round", 2, (0, 1), 0),
        ("commit", 1, 0),
        ("client", 0, 1),
        ("client", 1, 1),
        ("commit", 2, 1),
    ]


@pytest.mark.parametrize("event", ["on_client", "on_dropped"])
def test_a_report_waits_until_the_round_before_is_written(event: str, tmp_path: Path):
    class Notes(Observer):
        def __getattribute__(self, name: str) -> Any:
            return (lambda *_: order.append(name)) if name == event else super().__getattribute__(name)

    order, released = list[str](), Event()
    arguments = {"on_client": [None], "on_dropped": [Dropped(0, "it failed")]}
    with BackgroundWriter() as writer:
        writer.submit(lambda: order.append("written") if released.wait(60) else None)
        reporting = Thread(target=getattr(Listener(Notes(), writer=writer), event), args=arguments[event])
        reporting.start()
        reporting.join(0.3)
        released.set()
        reporting.join()
    assert order == ["written", event]


def test_a_round_that_cannot_be_written_ends_the_run_before_the_next_one_s_first_report(
    open_tiny: Open, tmp_path: Path
):
    class FullDisk(Diary):
        def on_commit(self, outcome: Any) -> None:
            raise OSError("no space left")

    federation = open_tiny("local", "clients.number=2")
    diary = FullDisk(tmp_path)
    with pytest.raises(OSError, match="no space left"):
        run_rounds(RunPlan(3, federation.cohort, 0, tmp_path), LocalExecutor(federation), diary)
    assert diary.entries[-2:] == [("end", 1, 0), ("round", 2, (0, 1), 0)]
    assert list(checkpoints.manifests(tmp_path)) == [0]


@pytest.mark.parametrize(
    ("every", "due"), [(0, [5]), (1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (5, [5]), (7, [5])], ids=str
)
def test_which_rounds_are_scored(every: int, due: list[int], tmp_path: Path):
    plan = RunPlan(5, lambda round: (0,), every, tmp_path)
    assert [round for round in range(6) if plan.evaluation_is_due(round)] == due


def test_a_score_that_is_on_record_is_not_made_again(open_tiny: Open, tmp_path: Path):
    federation = open_tiny("fedavg")
    plan, diary = RunPlan(2, federation.cohort, 1, tmp_path), Diary(tmp_path)
    state = run_rounds(plan, LocalExecutor(federation), diary)
    for evaluated, told in (({2}, []), ({1}, [("evaluations", True, 2), ("evaluated", "global", 2)])):
        diary.entries.clear()
        assert run_rounds(plan, LocalExecutor(federation), diary, state, evaluated) == state
        assert diary.entries == told


def test_an_executor_that_has_forgotten_everything_reads_it_from_disk(open_tiny: Open, tmp_path: Path):
    federation = open_tiny("local")

    class Forgetful(LocalExecutor):
        """Loses its memory before every step."""

        def train_clients(self, *given: Any) -> Any:
            self._steps = Steps(self._federation)
            return super().train_clients(*given)

        def update_server(self, *given: Any) -> Any:
            self._steps = Steps(self._federation)
            return super().update_server(*given)

    states = []
    for name, make in (("whole", LocalExecutor), ("forgetful", Forgetful)):
        (tmp_path / name).mkdir()
        plan = RunPlan(2, federation.cohort, 0, tmp_path / name)
        states.append(run_rounds(plan, make(federation), Observer()).sha256)
    assert states[0] == states[1]


class Again(LocalExecutor):
    """Trains client 0 twice, and gets other bits the second time, as on another machine."""

    def train_clients(self, *given: Any) -> Any:
        self.reports = super().train_clients(*given)
        return self.reports

    def update_server(self, state: Any, cohort: Any, directory: Any) -> Any:
        report = super().update_server(state, cohort, directory)
        first = checkpoints.read(self.reports[0].state, directory)
        other = map_leaves(lambda leaf: leaf + 1 if isinstance(leaf, Tensor) else leaf, first)
        stored = checkpoints.store(other, directory, f"client-000000-{state.round:06d}")
        return replace(report, again=(ClientReport(0, stored, {"loss": 9.0}, (), 0.5),))


def test_a_client_that_was_trained_again_counts_with_what_it_did_last(open_tiny: Open, tmp_path: Path):
    federation, outcomes = open_tiny("local", "clients.number=2", "rounds=1"), []

    class Outcomes(Observer):
        def on_round_end(self, outcome: Any) -> None:
            outcomes.append(outcome)

    state = run_rounds(RunPlan(1, federation.cohort, 0, tmp_path), Again(federation), Outcomes())
    assert [(report.client, report.metrics.get("loss") == 9.0) for report in outcomes[0].clients] == [
        (0, True),
        (1, False),
    ]
    assert checkpoints.latest(tmp_path).clients == state.clients
    for stored in state.clients.values():
        checkpoints.read(stored, tmp_path)


@pytest.mark.parametrize("quorum", [0.5, 1.0])
def test_a_client_that_fails_when_it_is_trained_again_is_left_out(quorum: float, open_tiny: Open, tmp_path: Path):
    federation = open_tiny("local", "clients.number=2", "rounds=1")

    class Drops(LocalExecutor):
        """Loses client 0 while the server works."""

        def update_server(self, *given: Any) -> Any:
            return replace(super().update_server(*given), dropped=(Dropped(0, "it died", quarantined=True),))

    plan = RunPlan(1, federation.cohort, 0, tmp_path, quorum)
    if quorum == 1.0:
        with pytest.raises(QuorumError, match="1 of 2 clients delivered"):
            run_rounds(plan, Drops(federation), Observer())
    else:
        assert run_rounds(plan, Drops(federation), Observer()).clients.keys() == {1}
    assert plan.quarantined == ({} if quorum == 1.0 else {0: 1})
