"""The part of the report that is about one run."""

from collections.abc import Iterable
from typing import Any

from rayfed_ssl import formats
from rayfed_ssl.engine.scoring import held_out_notes
from rayfed_ssl.errors import CheckpointError
from rayfed_ssl.reports.html import bars, curves, features, matrices
from rayfed_ssl.reports.html.figure import FigureWriter, Plot, RenderedFigure
from rayfed_ssl.reports.html.groups import Group
from rayfed_ssl.reports.html.page import Card, PageSection
from rayfed_ssl.reports.html.sources import ReportedRun
from rayfed_ssl.reports.html.tables import PageCell, PageTable, flatten, plain, score_title, scores_table


class RunSection:
    """Makes the sections of one run.

    Args:
        run: The run.
        writer: Draws its figures.
        command: The command that makes the report.
        embedding: How test features are placed on a plane.
        key: Begins the addresses of its sections; empty for a report of one run.
    """

    def __init__(
        self, run: ReportedRun, writer: FigureWriter, command: str, embedding: features.Embedding, key: str = ""
    ) -> None:
        self._run = run
        self._writer = writer
        self._embedding = embedding
        self._key = key
        summary = run.summary
        digest = f", state {summary.state_sha256[:12]}" if summary.state_sha256 else ""
        self._origin = f"{command} · run {run.name} (seed {summary.config.seed}, round {summary.rounds}{digest})"

    def sections(self) -> tuple[PageSection, ...]:
        """Make all of them, in the order of the page."""
        partition, pictures = self._pictures()
        return (
            self._section("headline", "Headline", cards=cards(self._run), text=_status(self._run)),
            self._accuracy(),
            self._section("partition", "Partition", *partition),
            self._losses(),
            self._section("features", "Test features", *pictures),
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
        tables: Iterable[PageTable | None] = (),
        **others: Any,
    ) -> PageSection:
        shown: list[RenderedFigure] = [
            self._writer.render(plot, self._run.name, self._origin) for plot in plots if plot
        ]
        found = tuple(table for table in tables if table)
        return PageSection(f"{self._key}{key}", title, text=tuple(text), figures=tuple(shown), tables=found, **others)

    def _accuracy(self) -> PageSection:
        run, summary = self._run, self._run.summary
        plots = curves.accuracy_plots([Group(summary.name, (run,))])
        text = (
            []
            if summary.curve or summary.scores
            else ["No accuracy is on record yet: none of the rounds was evaluated."]
        )
        if len(summary.curve) == 1:
            text.append(f"kNN was measured after round {summary.rounds} alone; evaluation.every=1 gives curves.")
        tables: list[PageTable | None] = []
        if summary.scores:
            architecture = {encoder: summary.architecture(encoder) for encoder in summary.scores}
            tables.append(scores_table(summary.scores, architecture, summary.rounds))
            text.append(
                f"“Last epoch” is the result of a protocol. “Best epoch” is chosen on {_measured_on(run)}, so it is an "
                "upper bound and no result."
            )
        tables.append(_evaluations(run))
        return self._section("accuracy", "Accuracy", text, [*plots, bars.client_plot(run)], tables)

    def _losses(self) -> PageSection:
        plot = curves.loss_plot(self._run)
        return self._section("losses", "Losses", [] if plot else ["No loss is on record yet."], [plot])

    def _pictures(self) -> tuple[tuple[list[str], list[Plot | None]], tuple[list[str], list[Plot | None]]]:
        """Draw what needs the data, or say why it is not there: partition, then features."""
        try:
            federation = features.open_federation(self._run)
        except (ValueError, OSError) as error:
            why = f"This needs the run's data, which cannot be read here: {error}."
            shards = self._run.record.summary["data"]["shards"]
            sizes = ", ".join(f"client {client}: {samples:,}" for client, samples in shards.items())
            return ([why, f"Samples by client, from the run's record: {sizes}."], []), ([why], [])
        partition: list[Plot | None] = [features.partition_plot(federation)]
        try:
            found = features.test_features(self._run, federation)
        except (ValueError, CheckpointError) as error:
            return ([], partition), ([f"Features cannot be computed: {error}."], [])
        if found is None:
            return ([], partition), (["The test set has no labels, so its features have no classes to show."], [])
        return ([], partition), (
            _held_out(self._run),
            [features.embedding_plot(found, self._embedding), features.similarity_plot(found)],
        )

    def _diagnostics(self) -> PageSection:
        run = self._run
        plots = [
            *curves.diagnostic_plots(run),
            *matrices.matrix_plots(run),
            matrices.angle_plot(run),
            matrices.negatives_plot(run),
        ]
        text = [str(note) for note in (run.diagnostics or {}).get("notes") or []]
        if run.diagnostics is not None:
            text.insert(0, f"Heatmaps and table: round {run.diagnostics.get('round')}, without labels.")
        if not any(plots):
            text.append("None on record: set evaluation.diagnostics to measure them every so many rounds.")
        return self._section("diagnostics", "Diagnostics", text, plots, [matrices.encoder_table(run)])

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
        record = self._run.record
        notes = list(record.summary.get("notes") or [])
        rows = [[key, plain(value)] for key, value in flatten(self._run.summary.config.dump()).items()]
        text = [f"Note: {note}." for note in notes] or ["The run has no notes: it did all that was asked."]
        folded = (
            PageTable.of("Configuration, resolved: config.yaml", ["key", "value"], rows),
            PageTable.of("Environment", ["what", "value"], _environment(self._run)),
        )
        return self._section("settings", "Configuration, environment, notes", text, folded=folded)


def cards(run: ReportedRun) -> tuple[Card, ...]:
    """Choose the numbers of a run that are read first."""
    summary, found = run.summary, []
    mean = "" if "global" in summary.scores else f"mean of {len(summary.scores)} clients’ encoders"
    for score in _scores(run):
        notes = [mean] if mean else []
        if (best := summary.headline(f"{score}_best")) is not None:
            notes.append(f"best epoch, chosen on {_measured_on(run)}: {formats.percent(best)}")
        found.append(Card(score_title(score), formats.percent(summary.headline(score)), tuple(notes)))
    if summary.curve:
        last, best_point = summary.curve[-1], max(summary.curve, key=lambda point: point.knn)
        best_of = f"best of {len(summary.curve)} rounds: {formats.percent(best_point.knn)}, round {best_point.round}"
        found.append(Card(f"kNN, round {last.round}", formats.percent(last.knn), (best_of,) * (len(summary.curve) > 1)))
    evaluation = sum(row["value"] for row in run.record.metrics if row["name"] == "evaluation_seconds")
    received = f"received: {formats.size(summary.bytes_down)}"
    up = formats.size(summary.bytes_up / max(summary.num_clients, 1))
    return (
        *found,
        Card("Sent by clients", formats.size(summary.bytes_up), (f"{up} a client", received)),
        Card("Time of rounds", formats.duration(summary.seconds), (f"evaluation: {formats.duration(evaluation)}",)),
        Card("State", (summary.state_sha256 or "–")[:12], ("first 12 digits of its SHA-256",)),
    )


def _scores(run: ReportedRun) -> list[str]:
    names = dict.fromkeys(name for metrics in run.summary.scores.values() for name in metrics)
    return [name for name in names if name != "knn" and not name.endswith("_best")]


def _status(run: ReportedRun) -> tuple[str, ...]:
    summary = run.summary
    config = summary.config
    alpha = getattr(config.partition, "alpha", None)
    split = f"{config.partition.name}{f', alpha {alpha:g}' if alpha else ''}"
    text = (
        f"{summary.name} on {config.data.name} ({split}) with {summary.num_clients} clients, {summary.rounds} rounds of "
        f"{config.epochs} local epochs, seed {config.seed}."
    )
    text = " ".join((text, *_held_out(run)))
    if summary.finished:
        return (text,)
    return (text, f"This run is unfinished: {summary.rounds} of {config.rounds} rounds are on record.")


def _held_out(run: ReportedRun) -> list[str]:
    """Say what a run is measured on where it is not the test set."""
    notes = held_out_notes(run.summary.config, run.record.summary["data"]["test"])
    return [f"{note[0].upper()}{note[1:]}." for note in notes]


def _measured_on(run: ReportedRun) -> str:
    return "the test set" if run.summary.config.data.validation is None else "the held-out samples"


def _evaluations(run: ReportedRun) -> PageTable | None:
    if not run.evaluations:
        return None
    columns = ["encoder", "round", "protocol", "score", "value", "settings"]
    rows = [
        [
            PageCell(str(row.get("encoder"))),
            row.get("round"),
            PageCell(str(row.get("protocol"))),
            PageCell(str(row.get("name"))),
            PageCell.percent(row.get("value")),
            PageCell(str(row.get("settings") or "")),
        ]
        for row in run.evaluations
    ]
    return PageTable.of("Scores of later evaluations: evaluations.parquet", columns, rows)


def _environment(run: ReportedRun) -> list[list[PageCell | str]]:
    summary = run.record.summary
    parts: dict[str, Any] = {
        "state_sha256": run.summary.state_sha256,
        "settings_sha256": summary.get("settings_sha256"),
        "started": summary.get("started"),
        "finished": summary.get("finished"),
        **{f"data.{key}": value for key, value in summary["data"].items() if key != "shards"},
        **{f"part {key}": value for key, value in (summary.get("parts") or {}).items()},
        **{f"precision.{key}": value for key, value in (summary.get("precision") or {}).items()},
        **(summary.get("versions") or {}),
        **(summary.get("hardware") or {}),
    }
    return [[key, plain(value)] for key, value in parts.items()]
