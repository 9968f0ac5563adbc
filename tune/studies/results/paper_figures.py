"""What papers' figures show, drawn from the records of a study's runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rayfed_ssl.analysis.diagnosis import diagnose
from rayfed_ssl.analysis.embedding import embed
from rayfed_ssl.formats import MeanStd
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.style import bar_style, line_style
from rayfed_ssl.reports.summary import by_round
from tune.studies.definition.schema import COLUMN, ROW
from tune.studies.definition.study import Study
from tune.studies.results.panels import Panel, Series, add_legend, draw_panels, log_scale, scaled
from tune.studies.results.published import scale_of
from tune.studies.results.results import StudyResults, TrialResult


@dataclass(frozen=True)
class Shown:
    """What a figure is drawn from; `directory` holds the runs."""

    study: Study
    results: StudyResults
    directory: Path

    @property
    def rows(self) -> Sequence[str]:
        """The rows in the order of the file."""
        return self.study.axes[ROW]

    @property
    def columns(self) -> list[str]:
        """The columns in the order of the file, of those that are not left out."""
        return [name for name in self.study.axes[COLUMN] if name not in self.results.skipped]

    @property
    def measured(self) -> list[TrialResult]:
        """The cells that have a number."""
        return [trial for trial in self.results.trials if trial.values]

    def cells(self, row: str) -> dict[str, TrialResult]:
        """The cells of a row that have a number, by column."""
        return {cell.point[COLUMN]: cell for cell in self.measured if cell.point[ROW] == row}

    def value(self, cell: TrialResult) -> MeanStd:
        """A cell's number in the unit of the table."""
        return scaled(cell.values[cell.score or ""].over_seeds(), scale_of(self.study.unit))

    def record(self, cell: TrialResult) -> RunRecord:
        """The run of a cell's first seed."""
        return RunRecord.open(self.directory / cell.runs[0])

    @property
    def label(self) -> str:
        """The label of an axis of scores."""
        return "accuracy (%)" if self.study.unit == "percent" else self.study.unit

    @property
    def title(self) -> str:
        """What a figure is called."""
        return f"{self.study.source} ({self.study.size} size)" if self.study.size else self.study.source


def draw_paper(study: Study, results: StudyResults, directory: Path) -> Figure:
    """Draw what a paper's figure shows from the runs in `directory`."""
    shown, kind = Shown(study, results, directory), str(study.figure.draw)
    if kind in PANELS:
        return draw_panels(PANELS[kind](shown), shown.title)
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    DRAWERS[kind](figure, shown)
    figure.suptitle(shown.title, fontsize=10)
    return figure


def _published(cells: Mapping[float, TrialResult]) -> dict[float, float]:
    return {x: cell.published for x, cell in cells.items() if cell.published is not None and cell.unlike is None}


def _lines(shown: Shown) -> list[Panel]:
    """A score over the columns' places, a panel for each of their groups."""
    columns, panels = {name: shown.study.columns[name] for name in shown.columns}, []
    for group in dict.fromkeys(column.panel for column in columns.values()):
        xs = {name: column.x or 0.0 for name, column in columns.items() if column.panel == group}
        series = []
        for index, row in enumerate(shown.rows):
            cells = dict(sorted((xs[name], cell) for name, cell in shown.cells(row).items() if name in xs))
            points = [(x, shown.value(cell)) for x, cell in cells.items()]
            series.append(Series(row, points, line_style(index), _published(cells)))
        ticks, x = {x: f"{x:g}" for x in xs.values()}, next(iter(xs)).split("=")[0]
        panels.append(Panel(series, group or "", x, shown.label, ticks, log_scale(list(xs.values()))))
    return panels


def _rounds(shown: Shown) -> list[Panel]:
    """A score over rounds, a panel for each column; published numbers stand at the last round."""
    panels = []
    for column in shown.columns:
        series = []
        for index, row in enumerate(shown.rows):
            if (cell := shown.cells(row).get(column)) is None:
                continue
            records = [RunRecord.open(shown.directory / run) for run in cell.runs]
            by_run = [mean_by_round(record, str(cell.score), "global") for record in records]
            rounds = sorted(set.intersection(*map(set, by_run)))
            points = [(x, _point(100 * fmean(values[x] for values in by_run))) for x in rounds]
            style = line_style(index) | {"markersize": 3}
            series.append(Series(row, points, style, _published({rounds[-1]: cell})))
        panels.append(Panel(series, column, "round", shown.label))
    return panels


def _losses(shown: Shown) -> list[Panel]:
    """Two points a round for the clients, one for the server, over local epochs (FLESD, Figure 5)."""
    series = []
    for index, cell in enumerate(shown.measured):
        record = shown.record(cell)
        epochs = record.described_config().epochs
        clients = {(round - 1) * epochs + 1: loss for round, loss in mean_by_round(record, "loss_first").items()}
        clients |= {round * epochs: loss for round, loss in mean_by_round(record, "loss").items()}
        server = {round * epochs: loss for round, loss in mean_by_round(record, "distil_loss").items()}
        for name, losses, dash in (("clients", clients, "--"), ("server", server, "-")):
            points = [(x, _point(losses[x])) for x in sorted(losses)]
            if points:
                look = line_style(index) | {"markersize": 3, "linestyle": dash}
                series.append(Series(f"{cell.point[ROW]}, {name}", points, look))
    return [Panel(series, "", "local epochs", "loss")]


def _point(value: float) -> MeanStd:
    return MeanStd(value, None, 1)


def _bars(figure: Figure, shown: Shown) -> None:
    axes = figure.add_subplot()
    columns, rows = shown.columns, shown.rows
    width = 0.8 / len(rows)
    for index, row in enumerate(rows):
        for column, cell in shown.cells(row).items():
            place, value = columns.index(column), shown.value(cell)
            x, label = place + (index - (len(rows) - 1) / 2) * width, row if place == 0 else None
            axes.bar(x, value.mean, 0.9 * width, yerr=value.std, alpha=0.7, label=label, **bar_style(index))
            if cell.take == "mean":
                record = shown.record(cell)
                encoders = record.scores(record.last_round).items()
                scores = [100 * s[cell.score] for name, s in encoders if name != "global" and cell.score in s]
                axes.plot([x] * len(scores), scores, "k.", markersize=4)
            for published in _published({x: cell}).values():
                axes.plot(x, published, "kD", markerfacecolor="none", markersize=7)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_ylabel(shown.label)
    add_legend(axes, loc="center left", bbox_to_anchor=(1, 0.5))


def _boxplots(figure: Figure, shown: Shown) -> None:
    """A box a round: quartiles over images and extreme medians over pairs of clients (FedCA, Figure 4)."""
    shared: Axes | None = None
    for number, cell in enumerate(shown.measured):
        axes = shared = figure.add_subplot(1, len(shown.measured), number + 1, sharey=shared)
        axes.set(title=cell.point[ROW], xlabel="round", ylabel=shown.study.unit if number == 0 else "")
        record = shown.record(cell)
        parts = {"med": "", "q1": "_lower", "q3": "_upper", "whislo": "_min", "whishi": "_max"}
        by_part = {key: mean_by_round(record, f"{cell.score}{ending}") for key, ending in parts.items()}
        boxes: list[dict[str, Any]] = []
        for round in by_part["med"]:
            box = {key: values[round] for key, values in by_part.items()}
            box |= {"whislo": min(box["whislo"], box["q1"]), "whishi": max(box["whishi"], box["q3"])}
            boxes.append(box | {"label": str(round)})
        axes.bxp(boxes, showfliers=False)


def _heatmaps(figure: Figure, shown: Shown) -> None:
    """Distances between clients' relation matrices, a picture a column (FedFoA, Figure 6)."""
    cells = shown.measured
    matrices = [diagnose(shown.directory / cell.runs[0]).matrices["relation_distance"] for cell in cells]
    highest = max((v for matrix in matrices for line in matrix.values for v in line if v is not None), default=1.0)
    figure.set_size_inches(3.4 * len(cells), 3.8)
    for number, (cell, matrix) in enumerate(zip(cells, matrices, strict=True)):
        axes = figure.add_subplot(1, len(cells), number + 1)
        values, names = matrix.values, [str(client) for client in matrix.clients]
        axes.imshow([[v or 0.0 for v in line] for line in values], cmap="Blues", vmin=0, vmax=highest)
        for i, line in enumerate(values):
            for j, v in enumerate(line):
                if v is not None:
                    axes.text(j, i, f"{v:.1f}", ha="center", va="center", color="w" if v > 0.6 * highest else "k")
        axes.set_xticks(range(len(names)), names)
        axes.set_yticks(range(len(names)), names)
        axes.set(title=cell.point[COLUMN], xlabel="client")


def _tsne(figure: Figure, shown: Shown) -> None:
    figure.set_size_inches(4.2 * len(shown.measured), 4.6)
    for number, cell in enumerate(shown.measured):
        axes = figure.add_subplot(1, len(shown.measured), number + 1)
        picture = embed(shown.directory / cell.runs[0], local=shown.study.name == "fedca-figure3")
        for label, name in enumerate(picture.classes):
            points = picture.points[picture.labels == label]
            gray = picture.held is not None and label not in picture.held
            look: dict[str, Any] = {"color": "0.8" if gray else f"C{label % 10}", "zorder": 1 if gray else 2, "s": 5}
            axes.scatter(points[:, 0], points[:, 1], label=None if gray else name, **look)
        axes.set(title=cell.point[ROW], xticks=[], yticks=[])
        axes.legend(fontsize=6, ncols=5, loc="upper center", bbox_to_anchor=(0.5, 0), markerscale=2)


PANELS: Mapping[str, Callable[[Shown], list[Panel]]] = {"lines": _lines, "rounds": _rounds, "losses": _losses}
DRAWERS: Mapping[str, Callable[[Figure, Shown], None]] = {
    "bars": _bars,
    "boxplots": _boxplots,
    "heatmaps": _heatmaps,
    "tsne": _tsne,
}


def mean_by_round(record: RunRecord, name: str, participant: str | None = None) -> dict[int, float]:
    """Mean of a metric over participants, or of one, by round."""
    return {round: fmean(values) for round, values in by_round(record.metrics, name, participant).items()}
