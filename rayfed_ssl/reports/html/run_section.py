"""The part of the report that is about one run."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rayfed_ssl import formats
from rayfed_ssl.clock.schedule import SCHEDULE
from rayfed_ssl.config.recipes import flatten
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.phase_timer import phases_text
from rayfed_ssl.engine.scoring import held_out_notes
from rayfed_ssl.engine.task_builder import default_views
from rayfed_ssl.errors import CheckpointError
from rayfed_ssl.export.encoders import last_encoder
from rayfed_ssl.records.audit_rows import Reached, reached, read_audit, reconstructions
from rayfed_ssl.reports.clock_figure import wasted_training
from rayfed_ssl.reports.html import data_plots, record_plots
from rayfed_ssl.reports.html.charts import Plot
from rayfed_ssl.reports.html.figure import FigureWriter
from rayfed_ssl.reports.html.own_plot import own_plot
from rayfed_ssl.reports.html.page import Card, PageSection, score_title
from rayfed_ssl.reports.html.sources import ReportedRun
from rayfed_ssl.reports.own_scores import own_table
from rayfed_ssl.reports.seed_groups import SeedGroup
from rayfed_ssl.reports.summary import Summary, epsilon_text, partition_text, virtual_text, with_client_summary
from rayfed_ssl.reports.table import MISSING, Cell, Table
from rayfed_ssl.reports.verdict import verdict
from rayfed_ssl.storage.tables import table_if_any

ENVIRONMENT = {"settings_sha256", "started", "finished", "parts", "precision", "versions", "hardware"}
"""Entries of run.json that the page lists."""


class RunSections:
    """Makes the sections of one run; their addresses begin with the key, which is empty in a report of one run."""

    def __init__(self, run: ReportedRun, writer: FigureWriter, command: str, key: str = "") -> None:
        self._run, self._writer, self._key = run, writer, key
        self._record, self._summary = run.record, run.summary
        state = f", state {run.summary.state_sha256[:12]}" if run.summary.state_sha256 else ""
        self._origin = f"{command} · run {run.name} (seed {run.summary.config.seed}, round {run.summary.rounds}{state})"

    def all(self) -> tuple[PageSection, ...]:
        """Make all of them, in the order of the page."""
        data, partition, test_features = self._data_sections()
        loss, timing = record_plots.loss_plot(self._record.metrics), record_plots.timing_plot(self._record.metrics)
        phases = self._summary.phases
        seconds = [f"The process that ran it last took {phases_text(phases)} (seconds)."] if phases else []
        return (
            self._section("headline", "Headline", self._status(), cards=self._cards(), **self._verdict()),
            self._accuracy(),
            partition,
            self._section("losses", "Losses", [] if loss else ["No loss is on record yet."], [loss]),
            test_features,
            self._communication(),
            *self._virtual_time(),
            *self._audit(),
            self._section("time", "Time", seconds if timing else ["No round is on record yet."], [timing]),
            self._diagnostics(),
            data,
            self._settings(),
        )

    def _section(
        self,
        key: str,
        title: str,
        text: Iterable[str] = (),
        plots: Iterable[Plot | None] = (),
        tables: Iterable[Table] = (),
        **others: Any,
    ) -> PageSection:
        figures = tuple(self._writer.render(plot, self._run.name, self._origin) for plot in plots if plot)
        return PageSection(
            f"{self._key}{key}", title, text=tuple(text), figures=figures, tables=tuple(tables), **others
        )

    def _verdict(self) -> dict[str, Any]:
        """Judge the run, in a box if it is below its start; the run's own warning of that says no more."""
        text, below = verdict(self._summary, self._record.metrics), self._summary.is_below_start
        others = [item.message for item in self._record.manifest.warnings if item.kind != "start" or not text]
        others += filter(None, [self._summary.changed])
        notices = [text] * below + [f"{message}." for message in others]
        return {"verdict": "" if below else text, "notices": tuple(f"Warning: {notice}" for notice in notices)}

    def _status(self) -> list[str]:
        summary, config = self._summary, self._summary.config
        recipe = f"Recipe {summary.recipe}: " * bool(summary.recipe)
        text = (
            f"{recipe}{summary.name} on {config.data.name} ({partition_text(config)}) with {summary.num_clients} clients, "
            f"{summary.rounds} rounds of {config.epochs} local epochs, seed {config.seed}."
        )
        text = " ".join([text, *self._held_out()])
        unfinished = f"This run is unfinished: {summary.rounds} of {config.rounds} rounds are on record."
        return [text, *([] if summary.finished else [unfinished])]

    def _held_out(self) -> list[str]:
        """Say what the run is measured on where it is not the test set."""
        return [_sentence(note) for note in held_out_notes(self._summary.config, self._record.manifest.data.test)]

    @property
    def _measured_on(self) -> str:
        return "the test set" if self._summary.config.data.validation is None else "the held-out samples"

    def _cards(self) -> tuple[Card, ...]:
        """Choose the numbers that are read first."""
        summary, percent = self._summary, formats.percent
        cards = []
        names = dict.fromkeys(name for metrics in summary.scores.values() for name in metrics)
        for score in (name for name in names if name != "knn" and not name.endswith("_best")):
            notes = [] if "global" in summary.scores else [f"mean of {len(summary.scores)} clients’ encoders"]
            if (start := summary.start(score)) is not None:
                notes.append(f"before round 1: {percent(start)}")
            if (best := summary.headline(f"{score}_best")) is not None:
                notes.append(f"best epoch, chosen on {self._measured_on}: {percent(best)}")
            cards.append(Card(score_title(score), percent(summary.headline(score)), tuple(notes)))
        if curve := summary.curve:
            notes = [] if (start := summary.start("knn")) is None else [f"before round 1: {percent(start)}"]
            cards.append(Card(f"kNN, round {curve[-1].round}", percent(curve[-1].knn), tuple(notes)))
        evaluation = sum(row["value"] for row in self._record.metrics if row["name"] == "evaluation_seconds")
        up = formats.size(summary.bytes_up / max(summary.num_clients, 1))
        costs = f"{up} a client", f"received: {formats.size(summary.bytes_down)}"
        return (
            *cards,
            Card("Sent by clients", formats.size(summary.bytes_up), costs),
            Card("Time of rounds", formats.duration(summary.seconds), (f"evaluation: {formats.duration(evaluation)}",)),
            Card("State", (summary.state_sha256 or MISSING)[:12], ("first 12 digits of its SHA-256",)),
        )

    def _accuracy(self) -> PageSection:
        summary = self._summary
        plots = [*record_plots.accuracy_plots([SeedGroup((summary,), summary.name)]), record_plots.client_plot(summary)]
        text, tables = [], []
        if not summary.curve and not summary.scores:
            text.append("No accuracy is on record yet: none of the rounds was evaluated.")
        if summary.scores:
            tables.append(scores_table(summary))
            text.append(
                f"“Last epoch” is the result of a protocol. “Best epoch” is chosen on {self._measured_on}, so it is an "
                "upper bound and no result."
            )
        if summary.own:
            tables.append(own_table(summary.own))
            plots.append(own_plot(summary.own, self._record.manifest.data.names))
        if rows := self._run.evaluations:
            columns = ["encoder", "round", "protocol", "name", "value", "settings"]
            cells = [[Cell.of(row[c], "percent") if c == "value" else row[c] for c in columns] for row in rows]
            tables.append(Table.of("Scores of later evaluations: evaluations.parquet", columns, cells))
        return self._section("accuracy", "Accuracy", text, plots, tables)

    def _data_sections(self) -> tuple[PageSection, PageSection, PageSection]:
        """Make data, partition and test features; where the data cannot be read, they say why they have no pictures."""
        facts = [self._dataset()]
        try:
            federation = data_plots.open_federation(self._run)
        except (ValueError, OSError) as error:
            reason = f"This needs the run's data, which cannot be read here: {error}."
            data = self._record.manifest.data
            sizes = ", ".join(f"client {client}: {samples:,}" for client, samples in data.shards.items())
            text = [reason, f"Samples by client, from the run's record: {sizes}.", f"Skew: {data.skew.text}."]
            return (
                self._section("data", "Data", tables=facts),
                self._section("partition", "Partition", text),
                self._section("features", "Test features", [reason]),
            )
        return (
            self._section("data", "Data", plots=[data_plots.triggered_plot(federation)], tables=facts),
            self._section("partition", "Partition", plots=[data_plots.partition_plot(federation)]),
            self._section("features", "Test features", *self._features(federation)),
        )

    def _dataset(self) -> Table:
        data, config = self._record.manifest.data, self._summary.config
        facts = data.model_dump(exclude={"shards", "shards_sha256", "skew", "names"})
        facts |= {"name": self._summary.dataset, "classes": f"{len(data.classes)}: {', '.join(data.classes)}"}
        facts["views"] = config.training.views or default_views(config.data.name, data.shape[1])
        return _listed("Dataset", facts)

    def _features(self, federation: Federation) -> tuple[list[str], list[Plot]]:
        try:
            saved = last_encoder(self._record)
            samples = data_plots.sample_features(federation, saved)
            if samples is None:
                return ["The test set has no labels, so its features have no classes to show."], []
            plots = [data_plots.embedding_plot(samples)]
        except (ValueError, CheckpointError) as error:
            return [f"Features cannot be computed: {error}."], []
        return self._held_out(), plots

    def _diagnostics(self) -> PageSection:
        plots: list[Plot | None] = [*record_plots.diagnostic_plots(self._record.metrics)]
        text, tables, diagnostics = [], [], self._run.diagnostics
        if diagnostics is not None:
            text = [
                f"Heatmaps and table: round {diagnostics.round}, without labels.",
                *map(_sentence, diagnostics.notes),
            ]
            plots += [record_plots.matrix_plot(name, matrix) for name, matrix in diagnostics.matrices.items()]
            plots.append(record_plots.negatives_plot(diagnostics))
            names = list(dict.fromkeys(name for values in diagnostics.encoders.values() for name in values))
            rows = [[encoder, *map(values.get, names)] for encoder, values in diagnostics.encoders.items()]
            heads = ["encoder", *(name.replace("_", " ") for name in names)]
            tables = [Table.of("Encoders without labels", heads, rows)]
        elif not plots:
            text.append("None on record: evaluation.diagnostics=N measures them every N rounds.")
        return self._section("diagnostics", "Diagnostics", text, plots, tables)

    def _communication(self) -> PageSection:
        text = []
        if (epsilon := self._summary.epsilon) is not None:
            text.append(f"Differential privacy of what was sent: {epsilon_text(epsilon, self._summary.config)}.")
        if (even := self._summary.break_even) is not None:
            text.append(f"{even.text}.")
        if (line := self._summary.rule_line()) is not None:
            text.append(_sentence(line))
        plots = [record_plots.ledger_plot(self._summary)] if self._summary.bytes_by_kind else []
        plots += [record_plots.epsilon_plot(self._record.metrics)] if epsilon is not None else []
        plots += filter(None, [record_plots.rule_plot(self._record.metrics, self._record.manifest.notes)])
        text += [] if plots else ["Nothing crossed a client's boundary."]
        return self._section("communication", "Communication", text, plots)

    def _virtual_time(self) -> Iterator[PageSection]:
        """Show the schedule of a run with a clock."""
        path = self._record.directory / "schedule.parquet"
        if (events := table_if_any(path, SCHEDULE, "resume the run, which writes it anew")) is not None:
            wasted = formats.percent(wasted_training(events))
            text = [f"Of clients’ training in the whole schedule, {wasted} is for no server step."]
            if virtual := virtual_text(self._summary):
                text = [f"By its schedule, until round {self._summary.rounds}: {virtual}.", *text]
            yield self._section("virtual-time", "Virtual time", text, record_plots.schedule_plots(events))

    def _audit(self) -> Iterator[PageSection]:
        """Show what attacks on uploads reached, where the run was audited."""
        if not (rows := read_audit(self._record.directory)):
            return
        rounds = sorted({row["round"] for row in rows})
        text = [
            f"Attacks on the uploads of round {', '.join(map(str, rounds))}, by what each metric says (docs/privacy.md).",
            "An attack that fails says that it failed, and proves no privacy.",
        ]
        table = Table.of("What attacks reached, over clients", Reached._fields, reached(rows))
        plots = [
            record_plots.reconstructions_plot(*each) for each in reconstructions(self._record.directory, rows).items()
        ]
        yield self._section("audit", "Audit", text, plots, [table])

    def _settings(self) -> PageSection:
        manifest = self._record.manifest
        text = [f"Note: {note}." for note in manifest.notes] or ["The run has no notes: it did all that was asked."]
        environment = manifest.model_dump(include=ENVIRONMENT) | {"state_sha256": self._summary.state_sha256}
        folded = (
            _listed("Configuration, resolved: config.yaml", self._summary.config.flat()),
            _listed("Environment", flatten(environment)),
        )
        return self._section("settings", "Configuration, environment, notes", text, folded=folded)


def scores_table(summary: Summary) -> Table:
    """Show a run's final scores, an encoder a row, and their mean and minimum over clients."""
    scores = with_client_summary(summary.scores)
    names = list(dict.fromkeys(name for metrics in scores.values() for name in metrics))
    rows = [
        [
            encoder,
            summary.architecture(encoder) if encoder in summary.scores else "",
            *(Cell.of(metrics.get(name), "percent") for name in names),
        ]
        for encoder, metrics in scores.items()
    ]
    caption = f"Scores of each encoder after round {summary.rounds}"
    return Table.of(caption, ["encoder", "model", *map(score_title, names)], rows)


def _listed(caption: str, entries: Mapping[str, Any]) -> Table:
    return Table.of(caption, ["key", "value"], [[key, formats.value_text(value)] for key, value in entries.items()])


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
