"""Progress in the terminal: what it says while real runs go on, in wide, narrow and no terminals, and after resuming."""

import io
import re
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from rich.console import Console

from rayfed_ssl import Config, resume, run
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.summary import summarize
from tune.cli.progress import Progress, Status, accuracies, duration
from tune.cli.tables import print_comparison, print_run

Tiny = Callable[..., Config]

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Watched(Progress):
    """Keeps what the live line says after each event; its clock ticks a second at every look."""

    def __init__(self, config: Config, *, terminal: bool = True, width: int = 120) -> None:
        self.screen = io.StringIO()
        console = Console(file=self.screen, force_terminal=terminal, width=width, highlight=False)
        ticks = count()
        super().__init__(config, console=console, clock=lambda: float(next(ticks)))
        self.lines: list[str] = []

    def on_round(self, round: int, cohort: Sequence[int]) -> None:
        super().on_round(round, cohort)
        self.lines.append(self.status.line(120))

    def on_client(self, report: Any) -> None:
        super().on_client(report)
        self.lines.append(self.status.line(120))

    def on_evaluations(self, final: bool) -> None:
        super().on_evaluations(final)
        self.lines.append(self.status.line(120))


class Stopped(Watched):
    """Interrupts the run when round 1 is over and scored."""

    def on_round(self, round: int, cohort: Sequence[int]) -> None:
        if round == 2:
            raise KeyboardInterrupt
        super().on_round(round, cohort)


@pytest.fixture(scope="module")
def config(tiny: Tiny) -> Config:
    return tiny("flesd", "evaluation.every=1", "data.test_limit=30")


@pytest.fixture(scope="module")
def watched(config: Config, tmp_path_factory: pytest.TempPathFactory) -> tuple[Watched, Path]:
    """A run from start to end, and its record."""
    progress, directory = Watched(config), tmp_path_factory.mktemp("runs") / "run"
    federation = Federation.open(config)
    progress.introduce(federation, directory)
    with progress:
        run(config, directory, observer=progress, federation=federation)
    progress.close()
    return progress, directory


def test_brackets_in_a_path_are_no_markup(
    config: Config, watched: tuple[Watched, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    progress = Watched(config, terminal=False)
    progress.introduce(Federation.open(config), Path("x[/bold]"))
    assert "-> x[/bold]" in progress.screen.getvalue()
    directory = tmp_path / "x[/bold]" / "y[bold]"
    copytree(watched[1], directory)
    summary = summarize(RunRecord.open(directory))
    print_run(summary, [])
    assert f"record: {directory}" in capsys.readouterr().out
    print_comparison([summary], False)
    assert "y[bold]" in capsys.readouterr().out


def mean_losses(directory: Path, round: int) -> list[float]:
    rows = RunRecord.open(directory).metrics
    return [r["value"] for r in rows if (r["round"], r["name"]) == (round, "loss")]


def test_the_line_counts_rounds_and_clients(watched: tuple[Watched, Path]):
    progress, _ = watched
    starts = [re.sub(r" +[━╌]+ +", " ", line).split("  ")[0] for line in progress.lines]
    expected = []
    for round in (1, 2):
        expected += [f"round {round}/2 {done}/3 clients" for done in range(4)]
        expected += [f"round {round}/2 scoring encoders"]
    assert starts == expected


def test_the_line_tells_the_mean_loss_of_the_clients_that_are_done(watched: tuple[Watched, Path]):
    progress, directory = watched
    first, second, third = mean_losses(directory, 2)
    shown = [re.search(r"loss (\S+)", line) for line in progress.lines[5:9]]
    assert shown[0] is None
    means = [first, (first + second) / 2, (first + second + third) / 3]
    assert [match[1] for match in shown[1:] if match] == [f"{mean:.3f}" for mean in means]


def test_the_line_tells_the_bytes_of_the_record(watched: tuple[Watched, Path]):
    progress, directory = watched
    ledger = RunRecord.open(directory).ledger
    assert progress.status.bytes == sum(row["bytes"] for row in ledger)
    public = sum(row["bytes"] for row in ledger if row["round"] == 0)
    assert public > 0
    assert f"  {public / 1e3:.2f} kB" in progress.lines[0]


def test_the_line_tells_the_last_knn_accuracy(watched: tuple[Watched, Path]):
    progress, directory = watched
    knn = RunRecord.open(directory).scores(1)["global"]["knn"]
    assert all("kNN" not in line for line in progress.lines[:5])
    assert all(f"kNN {knn:.1%}" in line for line in progress.lines[5:])


def test_lines_of_rounds_stay_and_the_live_line_goes(watched: tuple[Watched, Path]):
    progress, _ = watched
    printed = progress.screen.getvalue()
    plain = [line.strip() for line in re.split(r"[\r\n]+", ESCAPES.sub("", printed))]
    assert [line for line in plain if line.startswith("round 1/2: 3 clients, loss")]
    assert [line for line in plain if line.startswith("round 2/2: 3 clients, loss")]
    assert plain.count("kNN accuracy " + accuracies(*(progress.status.knn or (0, 0)))) >= 1
    assert printed.count("\x1b[?25l") == printed.count("\x1b[?25h") == 1  # the cursor is hidden once, and comes back
    assert plain[-2].startswith("done in ")
    assert "clients  loss" not in plain[-2]


def test_without_a_terminal_there_is_a_line_a_round_and_no_control_character(config: Config, tmp_path: Path):
    progress = Watched(config, terminal=False)
    with progress:
        run(config, tmp_path / "run", observer=progress)
    lines = progress.screen.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "round 1/2: 3 clients",
        f"  kNN accuracy {RunRecord.open(tmp_path / 'run').scores(1)['global']['knn']:.1%}",
        "round 2/2: 3 clients",
        f"  kNN accuracy {RunRecord.open(tmp_path / 'run').scores(2)['global']['knn']:.1%}",
    ]
    assert "\x1b" not in progress.screen.getvalue()


def test_a_quiet_run_says_nothing(config: Config, capfd: pytest.CaptureFixture[str]):
    progress = Progress(config, quiet=True)
    with progress:
        progress.on_round(1, [0, 1])
        progress.on_evaluations(True)
        progress.on_warning("a tracker failed")
        progress.close()
    assert capfd.readouterr() == ("", "")


def test_the_terminal_is_given_back_however_a_run_ends(config: Config):
    progress = Stopped(config)
    progress.on_round(1, [0, 1])
    with pytest.raises(KeyboardInterrupt), progress:
        progress.on_round(2, [0, 1])
    assert progress.screen.getvalue().rpartition("\x1b[?25h")[1], "the cursor stays hidden"


def test_after_resuming_bytes_rounds_and_accuracy_go_on(config: Config, watched: tuple[Watched, Path], tmp_path: Path):
    whole, _ = watched
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", observer=Stopped(config))
    progress = Watched(config)
    progress.go_on(RunRecord.open(tmp_path / "run"))
    resume(tmp_path / "run", observer=progress)
    assert untimed(progress.lines) == untimed(whole.lines[5:])
    rows = RunRecord.open(tmp_path / "run").metrics
    timed = [r["value"] for r in rows if r["round"] == 1 and (r["participant"], r["name"]) == ("run", "seconds")]
    timed += [r["value"] for r in rows if r["round"] == 1 and r["name"] == "evaluation_seconds"]
    assert progress.status.earlier == (1, pytest.approx(sum(timed)))
    assert progress.status.bytes == whole.status.bytes


def test_going_back_a_round_counts_no_byte_twice(watched: tuple[Watched, Path], config: Config):
    whole, directory = watched
    progress = Watched(config)
    progress.go_on(RunRecord.open(directory))
    resume(directory, round=1, observer=progress)
    assert untimed(progress.lines) == untimed(whole.lines[5:])


def untimed(lines: list[str]) -> list[str]:
    return [re.sub(r"  \S+ left", "", line) for line in lines]


def status_at(now: float, **known: Any) -> Status:
    return Status(10, lambda: now, **({"begun": 100.0, "first": 1} | known))


@pytest.mark.parametrize(
    ("status", "left"),
    [
        (status_at(130, round=1, started=100), None),  # no round is done, so nothing is known
        (status_at(130, round=4, started=130), 70.0),  # 3 rounds took 30 s
        (status_at(134, round=4, started=130), 66.0),
        (status_at(150, round=4, started=130), 60.0),  # this one takes longer than its 10 s, and 6 are to come
        (status_at(110, round=6, first=5, started=110), 50.0),  # of this process's 6 rounds, one is done
        (status_at(103, round=6, first=6, started=100, earlier=(5, 40.0)), 37.0),  # as fast as before the interruption
        (status_at(199, round=10, started=190), 1.0),
        (status_at(999, round=10, started=190), 0.0),
        (Status(10, lambda: 5.0), None),
    ],
)
def test_time_left_is_the_rest_at_the_pace_so_far(status: Status, left: float | None):
    assert status.seconds_left() == pytest.approx(left)


FULL = Status(
    12,
    lambda: 160.0,
    round=4,
    clients=6,
    done=3,
    losses=[2.0, 3.0],
    knn=(0.41, 0.62),
    bytes=12_340_000,
    begun=100.0,
    started=150.0,
    first=1,
)


def test_a_narrow_terminal_loses_the_least_important_first():
    assert FULL.line(120) == (
        "round 4/12  ━━━━━╌╌╌╌╌╌╌╌╌╌╌  3/6 clients  loss 2.500  kNN 41.0% to 62.0%  12.34 MB  2:20 left"
    )
    widths = {
        80: "round 4/12  3/6 clients  loss 2.500  kNN 41.0% to 62.0%  12.34 MB  2:20 left",
        60: "round 4/12  3/6 clients  loss 2.500  2:20 left",
        40: "round 4/12  3/6 clients  2:20 left",
        30: "round 4/12  3/6 clients",
        12: "round 4/12",
        5: "round",
    }
    assert {width: FULL.line(width) for width in widths} == widths


@pytest.mark.parametrize("width", [20, 47, 200])
def test_the_live_line_never_wraps(width: int):
    screen = io.StringIO()
    Console(file=screen, width=width, force_terminal=True).print(FULL)
    (line,) = screen.getvalue().splitlines()
    assert len(line) <= width


def test_terminals_without_the_bar_s_characters_get_others():
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    Console(file=screen, width=120, force_terminal=True).print(FULL)
    assert b"#####-----------" in screen.buffer.getvalue()


def test_times_are_written_for_people():
    assert [duration(s) for s in (0.4, 59.6, 754, 11105)] == ["0:00", "1:00", "12:34", "3:05:05"]


def test_warnings_are_printed_as_they_are(config: Config):
    progress = Watched(config, terminal=False, width=40)
    progress.on_warning("wandb failed; resume with engine.trackers=[wandb] and go on as if nothing had happened")
    assert progress.screen.getvalue() == (
        "warning: wandb failed; resume with engine.trackers=[wandb] and go on as if nothing had happened\n"
    )
