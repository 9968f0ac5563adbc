"""Terminal progress of a run: a live line where there is a terminal, plain lines where output goes to a file."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from types import TracebackType

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.faults import Fault
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.ledger import total
from rayfed_ssl.engine.round_loop import ClientReport, Dropped, Evaluation, Observer, RoundOutcome
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.training.state_parts import describe

BAR = 16
"""Cells of the bar over all rounds."""

DONE, TODO = "━", "╌"


@dataclass
class Status:
    """What is known of a running run, and one line that says it.

    Attributes:
        rounds: T.
        clock: Seconds that only ever grow.
        round: The running round, from 1.
        clients: Clients of its cohort.
        done: How many of them are done.
        losses: Of its clients that are done.
        scoring: Whether encoders are being scored.
        knn: Lowest and highest kNN accuracy over encoders when they were last scored.
        bytes: Moved since the run began, by earlier processes too.
        begun: When this process began its first round.
        started: When the running round began.
        first: This process's first round, 0 before it.
        earlier: Rounds that are done by earlier processes, and their seconds.
    """

    rounds: int
    clock: Callable[[], float]
    round: int = 0
    clients: int = 0
    done: int = 0
    losses: list[float] = field(default_factory=list)
    scoring: bool = False
    knn: tuple[float, float] | None = None
    bytes: int = 0
    begun: float = 0.0
    started: float = 0.0
    first: int = 0
    earlier: tuple[int, float] = (0, 0.0)

    def seconds_left(self) -> float | None:
        """Estimate from the rounds that this process has done, scoring included, or else from the record's."""
        done, seconds = self.earlier
        if self.round > self.first:
            done, seconds = self.round - self.first, self.started - self.begun
        if not done:
            return None
        each, spent = seconds / done, self.clock() - self.started
        return max(0.0, each - spent) + each * (self.rounds - self.round)

    def parts(self) -> list[tuple[int, str]]:
        """The line's parts from left to right, each with its rank: where there is no room, the highest goes first."""
        before = self.round - 1 + (self.done / self.clients if self.clients else 0.0)
        filled = round(BAR * before / self.rounds)
        doing = "scoring encoders" if self.scoring else f"{self.done}/{self.clients} clients"
        left = self.seconds_left()
        return [
            (0, f"round {self.round}/{self.rounds}"),
            (6, DONE * filled + TODO * (BAR - filled)),
            (1, doing),
            *([(3, f"loss {fmean(self.losses):.3f}")] if self.losses else []),
            *([(4, f"kNN {accuracies(*self.knn)}")] if self.knn else []),
            (5, megabytes(self.bytes)),
            *([(2, f"{duration(left)} left")] if left else []),
        ]

    def line(self, width: int) -> str:
        """Say it in one line of at most `width` cells."""
        parts = self.parts()
        while len(text := "  ".join(part for _, part in parts)) > width and len(parts) > 1:
            parts.remove(max(parts))
        return text[:width]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Show the line in the terminal's width and characters."""
        line = self.line(options.max_width)
        if options.ascii_only:
            line = line.replace(DONE, "#").replace(TODO, "-")
        yield Text(line, no_wrap=True, overflow="crop")


class Progress(Observer):
    """Tells the user what happens, on standard error, so that standard output holds results only.

    As a context it takes its live line away, however the run ends.

    Args:
        config: The run.
        quiet: Whether to say nothing.
        console: Where to; None takes standard error.
        clock: Seconds that only ever grow.
    """

    def __init__(
        self,
        config: Config,
        *,
        quiet: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._config = config
        self._console = console or Console(stderr=True, quiet=quiet, highlight=False)
        self.status = Status(config.rounds, clock)
        self._live = Live(self.status, console=self._console, transient=True, refresh_per_second=4)
        self._shown = self._console.is_terminal and not quiet
        self._start = clock()
        self._record: RunRecord | None = None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def on_decode(self, split: str, done: int, of: int) -> None:
        """Images of a split were decoded into the store."""
        if self._console.is_terminal:
            self._console.print(f"decoding {split}: {done:,} of {of:,}", end="\r")
        if done == of:
            self._console.print(f"decoded {split}: {of:,} images{' ' * len(f'{of:,}')}")

    def introduce(self, federation: Federation, directory: Path) -> None:
        """Say what is about to run."""
        config, task = federation.config, federation.task
        shards = [len(rows) for rows in federation.shards.values()]
        name = config.system
        self._console.print(
            f"[bold]{name}[/bold] on {escape(federation.dataset.name)}, seed {config.seed} -> {escape(str(directory))}"
        )
        self._console.print(
            f"  {len(shards)} clients with {min(shards):,} to {max(shards):,} samples"
            + (f", {federation.num_public:,} public samples" if federation.num_public else "")
        )
        models = ", ".join(dict.fromkeys((task.encoder, *task.client_encoders)))
        self._console.print(
            f"  {models} at {task.size}x{task.size}, {task.device} {task.precision.dtype}, {config.rounds} rounds of "
            f"{config.epochs} local epochs"
        )
        self._console.print(f"  {describe(federation.method.rules(task))}")
        for note in federation.notes:
            self._console.print(f"  [yellow]note:[/yellow] {escape(note)}")
        self.status.bytes = total(federation.public_entries())

    def go_on(self, record: RunRecord) -> None:
        """Count from what a record holds, up to the round that the run goes on from."""
        self._record = record

    def on_round(self, round: int, cohort: Sequence[int]) -> None:
        """Begin the round's count."""
        status, now = self.status, self.status.clock()
        if not status.first:
            status.begun, status.first = now, round
            if self._record is not None:
                _count(status, self._record, round)
            if self._shown:
                self._live.start()
        status.round, status.started, status.clients = round, now, len(cohort)
        status.done, status.losses, status.scoring = 0, [], False

    def on_client(self, report: ClientReport) -> None:
        """Count a client."""
        self.status.done += 1
        self.status.bytes += total(report.ledger)
        if "loss" in report.metrics:
            self.status.losses.append(report.metrics["loss"])

    def on_dropped(self, dropped: Dropped) -> None:
        """Say who is left out, and why."""
        self.status.done += 1
        self._console.print(
            f"  [yellow]left out:[/yellow] client {dropped.client}: {escape(dropped.reason)}", soft_wrap=True
        )

    def on_fault(self, fault: Fault) -> None:
        """Say what goes wrong because it was asked for."""
        self._console.print(f"  [magenta]injected:[/magenta] {fault}", soft_wrap=True)

    def on_round_end(self, outcome: RoundOutcome) -> None:
        """Print the round's line."""
        status, metrics = self.status, outcome.server.metrics
        distilled = f", distillation {metrics['distil_loss']:.3f}" if "distil_loss" in metrics else ""
        again = f", {outcome.retries} steps repeated" if outcome.retries else ""
        missing = f" of {len(outcome.clients) + len(outcome.dropped)}" if outcome.dropped else ""
        trained = f", loss {fmean(status.losses):.3f}" if status.losses else ""
        self._console.print(
            f"round {outcome.state.round}/{status.rounds}: {len(outcome.clients)}{missing} clients"
            f"{trained}{distilled}, {megabytes(status.bytes)} moved{again}, "
            f"{outcome.seconds:.1f} s"
        )

    def on_evaluations(self, final: bool) -> None:
        """Say that scoring goes on, which can take a while at the end."""
        self.status.scoring = True

    def on_evaluated(self, evaluations: Sequence[Evaluation]) -> None:
        """Print the kNN accuracies of a round."""
        scores = [evaluation.metrics["knn"] for evaluation in evaluations if "knn" in evaluation.metrics]
        if scores:
            self.status.knn = min(scores), max(scores)
            self._console.print(f"  kNN accuracy {accuracies(min(scores), max(scores))}")

    def on_warning(self, message: str) -> None:
        """Print what went wrong without stopping the run."""
        self._console.print(f"[yellow]warning:[/yellow] {escape(message)}", soft_wrap=True)

    def close(self) -> None:
        """Say that the run is done."""
        self._live.stop()
        self._console.print(f"done in {self.status.clock() - self._start:.1f} s")


def _count(status: Status, record: RunRecord, round: int) -> None:
    """Take over bytes, last scores and times of the rounds before this one."""
    earlier = [row for row in record.metrics if row["round"] < round]
    status.bytes = sum(row["bytes"] for row in record.ledger if row["round"] < round)
    scored = [row for row in earlier if row["name"] == "knn"]
    latest = max((row["round"] for row in scored), default=0)
    last = [row["value"] for row in scored if row["round"] == latest]
    status.knn = (min(last), max(last)) if last else None
    timed = [row["value"] for row in earlier if row["participant"] == "run" and row["name"] == "seconds"]
    scoring = sum(row["value"] for row in earlier if row["name"] == "evaluation_seconds")
    status.earlier = len(timed), sum(timed) + scoring


def accuracies(low: float, high: float) -> str:
    """Write one accuracy, or the range that several lie in."""
    return f"{low:.1%}" if low == high else f"{low:.1%} to {high:.1%}"


def duration(seconds: float) -> str:
    """Write a time for people: 0:07, 12:30, 3:05:00."""
    minutes, second = divmod(int(seconds + 0.5), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def megabytes(count: int) -> str:
    """Write a number of bytes for people."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"
