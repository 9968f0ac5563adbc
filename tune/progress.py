"""Terminal progress of a run: a live line where there is a terminal, plain lines where output goes to a file."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from rayfed_ssl.config import Config
from rayfed_ssl.federation import Federation
from rayfed_ssl.ledger import total
from rayfed_ssl.parts import describe
from rayfed_ssl.rounds import ClientReport, Evaluation, Observer, RoundOutcome, ServerReport

STEPS_OF_SERVER = 1


class Progress(Observer):
    """Tells the user what happens, on standard error, so that standard output holds results only.

    Args:
        config: The run.
        quiet: Whether to say nothing.
    """

    def __init__(self, config: Config, *, quiet: bool = False) -> None:
        self._config = config
        self._console = Console(stderr=True, quiet=quiet, highlight=False)
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal or quiet,
        )
        self._start = time.perf_counter()
        self._decoding: dict[str, object] = {}
        self._bytes = 0
        self._losses: list[float] = []

    def on_decode(self, split: str, done: int, of: int) -> None:
        """Images of a split were decoded into the store."""
        if self._console.is_terminal:
            self._console.print(f"decoding {split}: {done:,} of {of:,}", end="\r")
        if done == of:
            self._console.print(f"decoded {split}: {of:,} images")

    def introduce(self, federation: Federation, directory: Path) -> None:
        """Say what is about to run."""
        config, task = federation.config, federation.task
        shards = [len(rows) for rows in federation.shards.values()]
        name = config.system
        self._console.print(f"[bold]{name}[/bold] on {federation.dataset.name}, seed {config.seed} -> {directory}")
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
            self._console.print(f"  [yellow]note:[/yellow] {note}")

    def on_round(self, round: int, cohort: Sequence[int]) -> None:
        """Show the round's bar."""
        self._losses = []
        if not self._bars.tasks:
            self._bars.start()
            remaining = self._config.rounds - round + 1
            self._task = self._bars.add_task("", total=remaining * (len(cohort) + STEPS_OF_SERVER))
        self._bars.update(self._task, description=f"round {round} of {self._config.rounds}: clients train")

    def on_client(self, report: ClientReport) -> None:
        """Advance by one client."""
        self._bytes += total(report.ledger)
        if "loss" in report.metrics:
            self._losses.append(report.metrics["loss"])
        self._bars.advance(self._task)

    def on_server(self, report: ServerReport) -> None:
        """Advance by the server's step."""
        self._bars.advance(self._task, STEPS_OF_SERVER)

    def on_round_end(self, outcome: RoundOutcome) -> None:
        """Print the round's line."""
        report = outcome.server
        distilled = f", distillation {report.metrics['distil_loss']:.3f}" if "distil_loss" in report.metrics else ""
        again = f", {outcome.retries} steps repeated" if outcome.retries else ""
        trained = f", loss {sum(self._losses) / len(self._losses):.3f}" if self._losses else ""
        self._console.print(
            f"round {outcome.state.round}/{self._config.rounds}: {len(outcome.clients)} clients"
            f"{trained}{distilled}, {megabytes(self._bytes)} moved{again}, "
            f"{outcome.seconds:.1f} s"
        )

    def on_evaluations(self, final: bool) -> None:
        """Say that scoring goes on, which can take a while at the end."""
        if self._bars.tasks:
            self._bars.update(self._task, description="scoring encoders")

    def on_evaluated(self, evaluations: Sequence[Evaluation]) -> None:
        """Print the kNN accuracies of a round."""
        scores = [evaluation.metrics["knn"] for evaluation in evaluations if "knn" in evaluation.metrics]
        if scores:
            spread = f"{min(scores):.1%} to {max(scores):.1%}" if len(scores) > 1 else f"{scores[0]:.1%}"
            self._console.print(f"  kNN accuracy {spread}")

    def close(self) -> None:
        """Remove the bar."""
        self._bars.stop()
        self._console.print(f"done in {time.perf_counter() - self._start:.1f} s")


def megabytes(count: int) -> str:
    """Write a number of bytes for people."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"
