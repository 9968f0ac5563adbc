"""Progress of a run on standard error: a live line on a terminal, plain lines where output goes to a file."""

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import rich.progress
from rich.console import Console

from rayfed_ssl.config.choices import ADVERSARY, CLOCK_POLICY, ROBUST
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.ledger import total
from rayfed_ssl.engine.round_loop import ClientReport, Dropped, Evaluation, Observer, RoundOutcome
from rayfed_ssl.errors import printable
from rayfed_ssl.formats import duration, percent, size
from rayfed_ssl.method import Metrics
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.summary import epsilon_text, partition_text
from rayfed_ssl.training.state_parts import describe

BAR_WIDTH = 16

BEAT_SECONDS = 30.0
"""Seconds without a line after which output without a terminal gets one."""


class RunProgress(Observer):
    """Prints a run's progress on standard error, so that standard output holds results only.

    As a context manager it shows and removes the live line. The rounds and bytes of a resumed run's record are counted.
    `warned` holds the warnings that it has shown, `unseen` those that `quiet` kept.
    """

    def __init__(
        self, config: Config, *, quiet: bool = False, record: RunRecord | None = None, console: Console | None = None
    ) -> None:
        self._rounds, self._is_random = config.rounds, config.model.is_random
        self._record = record
        self._console = console or Console(stderr=True, quiet=quiet, highlight=False)
        self._start, self._printed = time.perf_counter(), time.monotonic()
        self._round, self._cohort_size, self._done, self._bytes = 0, 0, 0, 0
        self._losses: list[float] = []
        self._knn = self._activity = ""
        self._closed, self.warned, self.unseen = threading.Event(), set[str](), set[str]()
        self._live = rich.progress.Progress(
            rich.progress.TextColumn("round {task.fields[round]}/{task.total}"),
            rich.progress.BarColumn(BAR_WIDTH),
            rich.progress.TextColumn("{task.description}"),
            rich.progress.TimeRemainingColumn(compact=True),
            console=self._console,
            transient=True,
            speed_estimate_period=3600.0,
            disable=quiet or not self._console.is_terminal,
        )
        self._task: rich.progress.TaskID | None = None

    def __enter__(self) -> "RunProgress":
        self._live.start()
        if not self._console.is_terminal:
            threading.Thread(target=self._beat_until_closed, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the live line; any thread may call it."""
        self._live.stop()
        self._closed.set()

    def on_decode(self, split: str, done: int, of: int, num_bytes: int) -> None:
        """Show how many pictures have been decoded, and the bytes of their pixels."""
        if done == of:
            self._print(f"decoded {split}: {of:,} images, {size(num_bytes)}{' ' * len(f'{of:,}')}")
        elif self._console.is_terminal:
            self._console.print(f"decoding {split}: {done:,} of {of:,}, {size(num_bytes)}", end="\r")
        else:
            self._beat(f"decoding {split}: {done:,} of {of:,}, {size(num_bytes)}")

    def introduce(self, federation: Federation, directory: Path) -> None:
        """Describe the run."""
        config, task = federation.config, federation.task
        sizes = [len(samples) for samples in federation.shards.values()]
        models = ", ".join(dict.fromkeys((task.encoder, *task.client_encoders)))
        public = f", {federation.num_public:,} public samples" if federation.num_public else ""
        recipe = f"recipe {config.recipe}: " * bool(config.recipe)
        self._print(
            f"{recipe}{config.system} on {federation.dataset.name}, seed {config.seed} -> {directory}", style="bold"
        )
        left_out = f", {federation.num_left_out:,} left out" if federation.num_left_out else ""
        self._print(f"  {len(sizes)} clients with {min(sizes):,} to {max(sizes):,} samples{public}{left_out}")
        self._print(f"  {partition_text(config)}: {federation.skew.text}")
        self._print(f"  {_data_text(federation)}")
        self._print(
            f"  {models} at {task.size}x{task.size}, {task.device} {task.precision.dtype}, {config.rounds} rounds of "
            f"{config.epochs} local epochs, about {federation.steps:,} steps of a client"
        )
        self._print(f"  {describe(federation.method.rules(task))}")
        policy = None if config.clock is None else config.clock.policy
        chosen = (
            ("robust", ROBUST, config.robust),
            ("adversary", ADVERSARY, config.adversary),
            ("clock", CLOCK_POLICY, policy),
        )
        for key, choice, value in chosen:
            if value is not None:
                fields = {k: v for k, v in choice.dump(value).items() if v is not None}
                self._print(f"  {key}: {', '.join([fields.pop('name'), *(f'{k} {v}' for k, v in fields.items())])}")
        if (epsilon := federation.planned_epsilon()) is not None:
            weighting = vars(config.method).get("weighting")
            weighted = f", weighting {weighting}" if weighting else ""
            self._print(
                f"  privacy: {epsilon_text(epsilon, config)} after {config.rounds} rounds in which nobody drops out"
                f"{weighted}"
            )
        notes = list(federation.notes)
        if config.training.batch > max(sizes):
            notes.append(
                f"training.batch={config.training.batch:,} is above the {max(sizes):,} samples of the largest client"
            )
        if config.engine.executor == "local" and config.engine.actors != "auto":
            notes.append(f"engine.actors={config.engine.actors} has no meaning with engine.executor=local")
        for note in notes:
            self._print(f"  note: {note}", style="yellow")
        self._bytes = total(federation.public_entries())

    def on_start_scored(self, scores: Mapping[str, Metrics]) -> None:
        titles = {"knn": "kNN", "linear": "linear probe"}
        kind = "random start" if self._is_random else "start"
        for architecture, metrics in scores.items():
            parts = [f"{title} {percent(metrics[name])}" for name, title in titles.items() if name in metrics]
            which = f" ({architecture})" if len(scores) > 1 else ""
            if parts:
                self._print(f"  {kind}{which}: {', '.join(parts)}")

    def on_round(self, round: int, cohort: Sequence[int]) -> None:
        if self._task is None:
            self._task = self._live.add_task("", total=self._rounds, completed=round - 1, round=round)
            if self._record is not None:
                self._bytes = sum(row["bytes"] for row in self._record.ledger if row["round"] < round)
        self._round, self._cohort_size, self._done, self._losses = round, len(cohort), 0, []
        self._update()

    def on_client(self, report: ClientReport) -> None:
        self._done += 1
        self._bytes += total(report.ledger)
        if "loss" in report.metrics:
            self._losses.append(report.metrics["loss"])
        self._update()

    def on_dropped(self, dropped: Dropped) -> None:
        self._done += 1
        self._print(f"  left out: client {dropped.client}: {dropped.reason}", style="yellow")
        self._update()

    def on_round_end(self, outcome: RoundOutcome) -> None:
        metrics = outcome.server.metrics
        distilled = f", distillation {metrics['distil_loss']:.3f}" if "distil_loss" in metrics else ""
        retries = f", {outcome.retries} steps repeated" if outcome.retries else ""
        expected = f" of {len(outcome.clients) + len(outcome.dropped)}" if outcome.dropped else ""
        loss = f", loss {fmean(self._losses):.3f}" if self._losses else ""
        virtual = outcome.virtual.get("virtual_seconds")
        clock = "" if virtual is None else f", virtual {duration(virtual)}"
        self._print(
            f"round {outcome.state.round}/{self._rounds}: {len(outcome.clients)}{expected} clients{loss}{distilled}, "
            f"{size(self._bytes)} moved{retries}, {outcome.seconds:.1f} s{clock}"
        )

    def on_evaluations(self, final: bool) -> None:
        self._update("scoring encoders")

    def on_evaluated(self, evaluations: Sequence[Evaluation]) -> None:
        if knn := _scores(evaluations, "knn"):
            self._knn = _span(knn)
            early = evaluations[0].round < self._rounds  # the table has the last
            linear = _scores(evaluations, "linear") if early else []
            self._print(f"  kNN accuracy {self._knn}" + (f", linear probe {_span(linear)}" if linear else ""))

    def on_warning(self, message: str) -> None:
        (self.unseen if self._console.quiet else self.warned).add(message)
        self._print(f"warning: {message}", style="yellow")

    def close(self) -> None:
        """Print how long the run took."""
        self._print(f"done in {time.perf_counter() - self._start:.1f} s")

    def _beat_until_closed(self) -> None:
        """Print a line every half a minute within a round, however long its steps take."""
        while not self._closed.wait(BEAT_SECONDS / 10):
            if self._round and self._activity:
                self._beat(f"round {self._round}/{self._rounds}: {self._activity}")

    def _beat(self, line: str) -> None:
        """Print a line that only says how far things are, half a minute or more after the last line."""
        if time.monotonic() > self._printed + BEAT_SECONDS:
            self._print(line)

    def _print(self, line: str, *, style: str | None = None) -> None:
        self._printed = time.monotonic()
        self._console.print(printable(line), style=style, markup=False, soft_wrap=True)

    def _update(self, activity: str | None = None) -> None:
        """Bring the live line up to date."""
        self._activity = activity or f"{self._done} of {self._cohort_size} clients"
        if self._task is None:
            return
        parts = [activity or f"{self._done}/{self._cohort_size} clients"]
        parts += [f"loss {fmean(self._losses):.3f}"] if self._losses else []
        parts += [f"kNN {self._knn}"] if self._knn else []
        completed = self._round - 1 + self._done / max(1, self._cohort_size)
        description = "  ".join([*parts, size(self._bytes)])
        self._live.update(self._task, round=self._round, completed=completed, description=description)


def _data_text(federation: Federation) -> str:
    """Name the classes, and say where the test split comes from."""
    data, settings = federation.dataset, federation.config.data
    named = ", ".join(data.train.classes[:5]) + (", ..." if len(data.train.classes) > 5 else "")
    if settings.validation is not None:
        origin = f"{100 * settings.validation:g} % of the training samples"
    else:
        origin = "of the dataset" if data.has_test else f"held out {100 * settings.test_fraction:g} %"
    classes = f"{len(data.train.classes)} classes: {named}" if named else "no classes"
    return f"{classes}; test split: {origin}, {len(data.test):,} samples"


def _scores(evaluations: Sequence[Evaluation], name: str) -> list[float]:
    return [evaluation.metrics[name] for evaluation in evaluations if name in evaluation.metrics]


def _span(scores: Sequence[float]) -> str:
    """Write accuracies as one, or from the lowest to the highest."""
    low, high = percent(min(scores)), percent(max(scores))
    return low if low == high else f"{low} to {high}"
