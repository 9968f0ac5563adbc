"""Progress in the terminal: on a terminal, without one, and after resuming."""

import io
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
from rich.console import Console

from rayfed_ssl import Config, resume, run
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.round_loop import Dropped
from rayfed_ssl.formats import percent, size
from rayfed_ssl.progress import RunProgress
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.summary import summarize
from tune.cli.run_summary import print_run

Tiny = Callable[..., Config]

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class RecordedProgress(RunProgress):
    """Renders the live line after each event."""

    def __init__(self, config: Config, *, terminal: bool = True, record: RunRecord | None = None) -> None:
        self.screen = io.StringIO()
        console = Console(file=self.screen, force_terminal=terminal, width=120, highlight=False)
        super().__init__(config, record=record, console=console)
        self.lines: list[str] = []

    def _update(self, activity: str | None = None) -> None:
        super()._update(activity)
        if self._task is not None:
            self.lines.append(self.rendered())

    def rendered(self) -> str:
        """The live line as a terminal shows it, without the time that is left."""
        console = Console(file=io.StringIO(), width=120)
        with console.capture() as capture:
            console.print(self._live.get_renderable())
        (line,) = capture.get().splitlines()
        return re.sub(r" \S+ *$", "", line)


class InterruptedProgress(RecordedProgress):
    """Interrupts the run when round 1 is over and scored."""

    def on_round(self, round: int, cohort: Sequence[int]) -> None:
        if round == 2:
            raise KeyboardInterrupt
        super().on_round(round, cohort)


Recorded = tuple[RecordedProgress, RunRecord]


@pytest.fixture(scope="module")
def config(tiny: Tiny) -> Config:
    return tiny("flesd", "evaluation.every=1", "data.test_limit=30")


@pytest.fixture(scope="module")
def recorded(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A run from start to end, and its record."""
    progress, directory = RecordedProgress(config), tmp_path_factory.mktemp("runs") / "run"
    federation = Federation.open(config)
    progress.introduce(federation, directory)
    with progress:
        run(config, directory, observer=progress, federation=federation)
    progress.close()
    return progress, RunRecord.open(directory)


def test_the_line_counts_rounds_and_clients(recorded: Recorded):
    progress, _ = recorded
    expected = []
    for round in (1, 2):
        expected += [f"round {round}/2 {done}/3 clients" for done in range(4)]
        expected += [f"round {round}/2 scoring encoders"]
    assert [re.sub(r" [━╸╺ ]+ ", " ", line).split("  ")[0] for line in progress.lines] == expected


def test_the_line_shows_mean_loss_bytes_and_knn_accuracy_of_the_record(recorded: Recorded):
    progress, record = recorded
    first, second, third = (r["value"] for r in record.metrics if (r["round"], r["name"]) == (2, "loss"))
    losses = [re.search(r"loss (\S+)", line) for line in progress.lines[5:9]]
    means = [first, (first + second) / 2, (first + second + third) / 3]
    assert [match and match[1] for match in losses] == [None, *(f"{mean:.3f}" for mean in means)]
    knn = record.scores(1)["global"]["knn"]
    assert [f"kNN {percent(knn)}" in line for line in progress.lines] == [False] * 5 + [True] * 5
    public = sum(row["bytes"] for row in record.ledger if row["round"] == 0)
    assert public > 0
    assert f"  {size(public)}" in progress.lines[0]
    assert f"  {size(sum(row['bytes'] for row in record.ledger))}" in progress.lines[-1]


def test_lines_of_rounds_stay_and_the_live_line_goes(recorded: Recorded):
    printed = recorded[0].screen.getvalue()
    plain = [line.strip() for line in re.split(r"[\r\n]+", ESCAPES.sub("", printed))]
    for round in (1, 2):
        assert [line for line in plain if line.startswith(f"round {round}/2: 3 clients, loss")]
    assert printed.count("\x1b[?25l") == printed.count("\x1b[?25h") == 1  # the cursor is hidden once, and comes back
    assert plain[-2].startswith("done in ")


def test_decoding_shows_progress_and_bytes_on_a_terminal_and_every_half_minute_without(config, monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    shown = {}
    for terminal in (True, False):
        progress = RecordedProgress(config, terminal=terminal)
        for step in range(1, 5):
            now += 10.0
            progress.on_decode("train", step * 1000, 5000, step * 3_072_000)
        progress.on_decode("train", 5000, 5000, 15_360_000)
        shown[terminal] = [
            line.strip() for line in re.split(r"[\r\n]+", ESCAPES.sub("", progress.screen.getvalue())) if line
        ]
    counts = [f"decoding train: {step},000 of 5,000, {size(step * 3_072_000)}" for step in range(1, 5)]
    assert shown[True] == [*counts, "decoded train: 5,000 images, 15.36 MB"]
    assert shown[False] == [counts[3], "decoded train: 5,000 images, 15.36 MB"]


def test_without_a_terminal_a_long_step_is_reported_every_half_minute(config, monkeypatch):
    monkeypatch.setattr("rayfed_ssl.progress.BEAT_SECONDS", 0.05)
    progress = RecordedProgress(config, terminal=False)
    with progress:
        progress.on_round(1, [0, 1, 2])
        time.sleep(1)
    said = progress.screen.getvalue()
    assert said.count("round 1/2: 0 of 3 clients\n") >= 2
    time.sleep(0.3)
    assert progress.screen.getvalue() == said


def test_an_interrupted_run_shows_the_cursor_again(config: Config):
    progress = InterruptedProgress(config)
    progress.on_round(1, [0, 1])
    with pytest.raises(KeyboardInterrupt), progress:
        progress.on_round(2, [0, 1])
    assert "\x1b[?25l" not in progress.screen.getvalue().rpartition("\x1b[?25h")[2]
    assert "\x1b[?25l" in progress.screen.getvalue()


def test_without_a_terminal_there_are_plain_lines_and_resuming_counts_from_the_record(
    config: Config, recorded: Recorded, tmp_path: Path
):
    interrupted = InterruptedProgress(config, terminal=False)
    with pytest.raises(KeyboardInterrupt), interrupted:
        run(config, tmp_path / "run", observer=interrupted)
    resumed = RecordedProgress(config, terminal=False, record=RunRecord.open(tmp_path / "run"))
    with resumed:
        resume(tmp_path / "run", observer=resumed)
    repeated = RecordedProgress(config, terminal=False, record=RunRecord.open(tmp_path / "run"))
    with repeated:
        resume(tmp_path / "run", round=1, observer=repeated)
    knn = [recorded[1].scores(round)["global"]["knn"] for round in (1, 2)]
    lines = [*interrupted.screen.getvalue().splitlines(), *resumed.screen.getvalue().splitlines()]
    start = recorded[1].manifest.starts["cnn"]
    first = f"  random start: kNN {start['knn']:.2%}, linear probe {start['linear']:.2%}"
    assert (lines.pop(0), lines.pop(2)) == (first, first)  # the resumed run may have other settings of the probes
    lines = [line for line in lines if not line.startswith("warning: ")]  # of the probe, which has two epochs
    assert [line.split(",")[0] for line in lines] == [
        "round 1/2: 3 clients",
        f"  kNN accuracy {knn[0]:.2%}",
        "round 2/2: 3 clients",
        f"  kNN accuracy {knn[1]:.2%}",
    ]
    moved = f", {size(sum(row['bytes'] for row in recorded[1].ledger))} moved, "
    assert moved in lines[2]
    assert moved in repeated.screen.getvalue()
    assert "\x1b" not in "".join(lines)


def test_a_quiet_run_prints_nothing(config: Config, capfd: pytest.CaptureFixture[str]):
    progress = RunProgress(config, quiet=True)
    with progress:
        progress.on_round(1, [0, 1])
        progress.on_evaluations(True)
        progress.on_warning("a tracker failed")
    progress.close()
    assert capfd.readouterr() == ("", "")


def test_brackets_and_long_lines_are_printed_as_they_are(
    config: Config, recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    progress = RecordedProgress(config, terminal=False)
    progress.introduce(Federation.open(config), Path("x[/bold]"))
    assert "-> x[/bold]" in progress.screen.getvalue()
    reason = "engine.trackers=[wandb] " * 10
    progress.on_dropped(Dropped(1, reason))
    assert f"  left out: client 1: {reason}\n" in progress.screen.getvalue()
    directory = tmp_path / "x[/bold]" / "y[bold]"
    copytree(recorded[1].directory, directory)
    print_run(summarize(RunRecord.open(directory)), [])
    assert f"record: {directory}" in capsys.readouterr().out


def test_a_warning_stands_once_and_with_quiet_in_the_result(recorded: Recorded, capsys) -> None:
    summary = replace(summarize(recorded[1]), warnings=("it leans", "it fell"))
    quiet, loud = RunProgress(summary.config, quiet=True), RecordedProgress(summary.config)
    for progress in (quiet, loud):
        progress.on_warning("it leans")
    assert (quiet.warned, loud.warned) == (set(), {"it leans"})
    print_run(summary, warned=loud.warned)
    assert [line for line in capsys.readouterr().out.splitlines() if "warning" in line] == ["warning: it fell"]


def test_the_head_shows_a_policy_with_the_fields_that_follow_from_the_run(tiny: Tiny) -> None:
    federation = Federation.open(tiny("fedavg", "clock=even", "clock.policy=fedbuff", "clients.number=5"))
    progress = RecordedProgress(federation.config, terminal=False)
    progress.introduce(federation, Path("x"))
    (clock,) = (line for line in progress.screen.getvalue().splitlines() if line.startswith("  clock: "))
    assert {"clock: fedbuff", "buffer 2", "lr 1.0"} <= set(clock.strip().split(", "))


def test_a_batch_above_all_clients_and_actors_of_no_executor_are_noted(tiny: Tiny) -> None:
    federation = Federation.open(tiny("fedavg", "training.batch=1000", "engine.actors=100"))
    progress = RecordedProgress(federation.config, terminal=False)
    progress.introduce(federation, Path("x"))
    largest = max(map(len, federation.shards.values()))
    assert (
        f"  note: training.batch=1,000 is above the {largest} samples of the largest client\n"
        in progress.screen.getvalue()
    )
    assert "  note: engine.actors=100 has no meaning with engine.executor=local\n" in progress.screen.getvalue()
