"""The part of the report that is about one run."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from rayfed_ssl import formats
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.scoring import held_out_notes
from rayfed_ssl.engine.task_builder import default_views
from rayfed_ssl.errors import CheckpointError
from rayfed_ssl.export.encoders import last_encoder
from rayfed_ssl.reports.html import bars, curves, pictures
from rayfed_ssl.reports.html import embedding_plots as features
from rayfed_ssl.reports.html import heatmaps as matrices
from rayfed_ssl.reports.html.figure import FigureWriter, Plot
from rayfed_ssl.reports.html.groups import LabeledGroup
from rayfed_ssl.reports.html.page import Card, PageSection
from rayfed_ssl.reports.html.sources import ReportedRun
from rayfed_ssl.reports.html.tables import (
    MISSING,
    PageCell,
    PageTable,
    score_title,
    scores_table,
    yaml_text,
)
from rayfed_ssl.reports.summary import partition_text

SAMPLES_SHOWN = (
    "This page and the files of its figures show samples of the data, here and below the test features: "
    "rayfed-ssl report --no-samples leaves them out."
)


class Choices(NamedTuple):
    """What the figures of a run's data are: how test features are embedded, and whether samples themselves are shown."""

    embedding: str = "tsne"
    samples: bool = True

    @property
    def options(self) -> str:
        """The command's options that make this choice."""
        embedding = f" --embedding {self.embedding}" if self.embedding != "tsne" else ""
        return embedding + " --no-samples" * (not self.samples)


class RunSections:
    """Makes the sections of one run; their addresses begin with the key, which is empty in a report of one run."""

    def __init__(self, run: ReportedRun, writer: FigureWriter, command: str, choices: Choices, key: str = "") -> None:
        self._run, self._writer, self._choices, self._key = run, writer, choices, key
        summary = run.summary
        digest = f", state {summary.state_sha256[:12]}" if summary.state_sha256 else ""
        self._origin = f"{command} · run {run.name} (seed {summary.config.seed}, round {summary.rounds}{digest})"

    def all(self) -> tuple[PageSection, ...]:
        """Make all of them, in the order of the page."""
        data, partition, test_features = self._data_sections()
        return (
            self._section("headline", "Headline", _status(self._run), cards=cards(self._run)),
            self._accuracy(),
            data,
            partition,
            self._losses(),
            test_features,
            self._diagnostics(),
            self._communication(),
            self._time(),
            self._settings(),
        )

    def _section(
        self,
        key: str,
        title: str,
        text: Iterable[str] = (),
        plots: Iterable[Plot | None] = (),
        tables: Iterable[PageTable] = (),
        **others: Any,
    ) -> PageSection:
        figures = tuple(self._writer.render(plot, self._run.name, self._origin) for plot in plots if plot)
        return PageSection(
            f"{self._key}{key}", title, text=tuple(text), figures=figures, tables=tuple(tables), **others
        )

    def _accuracy(self) -> PageSection:
        run, summary = self._run, self._run.summary
        plots = [*curves.accuracy_plots([LabeledGroup(summary.name, (run,))]), bars.client_plot(run)]
        text, tables = [], []
        if not summary.curve and not summary.scores:
            text.append("No accuracy is on record yet: none of the rounds was evaluated.")
        if len(summary.curve) == 1:
            text.append(f"kNN was measured after round {summary.rounds} alone; evaluation.every=1 gives curves.")
        if summary.scores:
            tables.append(scores_table(summary))
            text.append(
                f"“Last epoch” is the result of a protocol. “Best epoch” is chosen on {_measured_on(run)}, so it is an "
                "upper bound and no result."
            )
        if run.evaluations:
            tables.append(_evaluations(run))
        return self._section("accuracy", "Accuracy", text, plots, tables)

    def _losses(self) -> PageSection:
        plot = curves.loss_plot(self._run)
        return self._section("losses", "Losses", [] if plot else ["No loss is on record yet."], [plot])

    def _data_sections(self) -> tuple[PageSection, PageSection, PageSection]:
        """Make data, partition and test features; where the data cannot be read, they say why they have no pictures."""
        facts = [_dataset(self._run)]
        try:
            federation = features.open_federation(self._run)
        except (ValueError, OSError) as error:
            reason = f"This needs the run's data, which cannot be read here: {error}."
            data = self._run.record.manifest.data
            sizes = ", ".join(f"client {client}: {samples:,}" for client, samples in data.shards.items())
            text = [reason, f"Samples by client, from the run's record: {sizes}.", f"Skew: {data.skew.text}."]
            return (
                self._section("data", "Data", tables=facts),
                self._section("partition", "Partition", text),
                self._section("features", "Test features", [reason]),
            )
        views = [pictures.views_plot(federation)] if self._choices.samples else []
        text = [SAMPLES_SHOWN] if self._choices.samples else []
        return (
            self._section("data", "Data", text, views, facts),
            self._section("partition", "Partition", plots=[features.partition_plot(federation)]),
            self._section("features", "Test features", *self._features(federation)),
        )

    def _features(self, federation: Federation) -> tuple[list[str], list[Plot | None]]:
        try:
            saved = last_encoder(self._run.record)
            samples = features.sample_features(federation, saved)
        except (ValueError, CheckpointError) as error:
            return [f"Features cannot be computed: {error}."], []
        if samples is None:
            return ["The test set has no labels, so its features have no classes to show."], []
        plots = [features.embedding_plot(samples, self._choices.embedding), features.similarity_plot(samples)]
        if self._choices.samples:
            plots.append(pictures.neighbors_plot(federation, saved.encoder, samples))
        return _held_out(self._run), plots

    def _diagnostics(self) -> PageSection:
        plots: list[Plot | None] = [*curves.diagnostic_plots(self._run)]
        text, tables, diagnostics = [], [], self._run.diagnostics
        if diagnostics is not None:
            text = [
                f"Heatmaps and table: round {diagnostics.round}, without labels.",
                *map(_sentence, diagnostics.notes),
            ]
            plots += matrices.matrix_plots(diagnostics)
            plots += [matrices.angle_plot(diagnostics), matrices.negatives_plot(diagnostics)]
            tables = [matrices.encoder_table(diagnostics)]
        elif not plots:
            text.append("None on record: evaluation.diagnostics=N measures them every N rounds.")
        return self._section("diagnostics", "Diagnostics", text, plots, tables)

    def _communication(self) -> PageSection:
        summary = self._run.summary
        text = [f"Privacy-leakage risk of uploads, in the wording of FLESD's Table 1: {summary.privacy}."]
        if (even := summary.break_even) is not None:
            numbers = even.rounds * even.num_public * even.dim
            text.append(
                f"Break-even (FLESD, Eq. 11): {even.rounds} rounds × {even.num_public:,} public samples × {even.dim} "
                f"dimensions = {numbers:,} numbers that a client sends up, as many as "
                f"{even.rounds_of_averaging:.2f} rounds of averaging {even.num_parameters:,} parameters."
            )
        plots = [bars.ledger_plot(self._run)] if summary.bytes_by_kind else []
        if not plots:
            text.append("Nothing crossed a client's boundary.")
        return self._section("communication", "Communication", text, plots)

    def _time(self) -> PageSection:
        plot = bars.timing_plot(self._run)
        return self._section("time", "Time", [] if plot else ["No round is on record yet."], [plot])

    def _settings(self) -> PageSection:
        notes = self._run.record.manifest.notes
        rows = [[key, yaml_text(value)] for key, value in self._run.summary.config.flat().items()]
        text = [f"Note: {note}." for note in notes] or ["The run has no notes: it did all that was asked."]
        folded = (
            PageTable.of("Configuration, resolved: config.yaml", ["key", "value"], rows),
            PageTable.of("Environment", ["what", "value"], _environment(self._run)),
        )
        return self._section("settings", "Configuration, environment, notes", text, folded=folded)


def cards(run: ReportedRun) -> tuple[Card, ...]:
    """Choose the numbers of a run that are read first."""
    summary = run.summary
    mean = "" if "global" in summary.scores else f"mean of {len(summary.scores)} clients’ encoders"
    chosen = []
    names = dict.fromkeys(name for metrics in summary.scores.values() for name in metrics)
    for score in (name for name in names if name != "knn" and not name.endswith("_best")):
        notes = [mean] if mean else []
        if (start := summary.start(score)) is not None:
            notes.append(f"before round 1: {formats.percent(start)}")
        if (best := summary.headline(f"{score}_best")) is not None:
            notes.append(f"best epoch, chosen on {_measured_on(run)}: {formats.percent(best)}")
        chosen.append(Card(score_title(score), formats.percent(summary.headline(score)), tuple(notes)))
    if summary.curve:
        last, highest = summary.curve[-1], max(summary.curve, key=lambda point: point.knn)
        best_of = f"best of {len(summary.curve)} rounds: {formats.percent(highest.knn)}, round {highest.round}"
        chosen.append(
            Card(f"kNN, round {last.round}", formats.percent(last.knn), (best_of,) * (len(summary.curve) > 1))
        )
    evaluation = sum(row["value"] for row in run.record.metrics if row["name"] == "evaluation_seconds")
    received = f"received: {formats.size(summary.bytes_down)}"
    up = formats.size(summary.bytes_up / max(summary.num_clients, 1))
    return (
        *chosen,
        Card("Sent by clients", formats.size(summary.bytes_up), (f"{up} a client", received)),
        Card("Time of rounds", formats.duration(summary.seconds), (f"evaluation: {formats.duration(evaluation)}",)),
        Card("State", (summary.state_sha256 or MISSING)[:12], ("first 12 digits of its SHA-256",)),
    )


def _status(run: ReportedRun) -> tuple[str, ...]:
    summary, config = run.summary, run.summary.config
    text = (
        f"{summary.name} on {config.data.name} ({partition_text(config)}) with {summary.num_clients} clients, "
        f"{summary.rounds} rounds of {config.epochs} local epochs, seed {config.seed}."
    )
    line = summary.start_line()
    text = " ".join((text, *_held_out(run), *([_sentence(line)] if line else [])))
    warned = tuple(f"Warning: {warning}." for warning in summary.warnings)
    if summary.finished:
        return (text, *warned)
    return (text, *warned, f"This run is unfinished: {summary.rounds} of {config.rounds} rounds are on record.")


def _held_out(run: ReportedRun) -> list[str]:
    """Say what a run is measured on where it is not the test set."""
    notes = held_out_notes(run.summary.config, run.record.manifest.data.test)
    return [_sentence(note) for note in notes]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _measured_on(run: ReportedRun) -> str:
    return "the test set" if run.summary.config.data.validation is None else "the held-out samples"


def _dataset(run: ReportedRun) -> PageTable:
    data, config = run.record.manifest.data, run.summary.config
    seen = config.model.image_size
    rows: list[tuple[str, str | int]] = [
        ("name", run.summary.dataset),
        ("images", " × ".join(map(str, data.shape)) + (f", seen at {seen} × {seen}" if seen else "")),
        ("classes", f"{len(data.classes)}: {', '.join(data.classes[:20])}" + (", …" if len(data.classes) > 20 else "")),
        ("training samples", data.train),
        ("test samples" if config.data.validation is None else "held-out samples", data.test),
        ("public samples", data.public),
        ("views", config.training.views or default_views(config.data.name, data.shape[1])),
        ("fingerprint (SHA-256)", data.fingerprint),
    ]
    return PageTable.of("Dataset", ["what", "value"], rows)


def _evaluations(run: ReportedRun) -> PageTable:
    rows = [
        [row["encoder"], row["round"], row["protocol"], row["name"], PageCell.percent(row["value"]), row["settings"]]
        for row in run.evaluations
    ]
    columns = ["encoder", "round", "protocol", "score", "value", "settings"]
    return PageTable.of("Scores of later evaluations: evaluations.parquet", columns, rows)


def _environment(run: ReportedRun) -> list[list[str]]:
    manifest = run.record.manifest
    parts: dict[str, Any] = {
        "state_sha256": run.summary.state_sha256,
        "settings_sha256": manifest.settings_sha256,
        "started": manifest.started,
        "finished": manifest.finished,
        **{f"data.{key}": value for key, value in manifest.data if key not in ("shards", "skew")},
        **{f"part {key}": value for key, value in manifest.parts.items()},
        **{f"precision.{key}": value for key, value in manifest.precision},
        **manifest.versions,
        **dict(manifest.hardware),
    }
    return [[key, yaml_text(value)] for key, value in parts.items()]
