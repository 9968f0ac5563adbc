"""What papers' figures show, drawn from the records of a study's runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rayfed_ssl.analysis.embedding import embed
from rayfed_ssl.formats import MeanStd
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.style import bar_style, line_style
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
    shown = Shown(study, results, directory)
    if study.figure.draw == "lines":
        return draw_panels(_lines(shown), shown.title)
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    if study.figure.draw == "bars":
        _bars(figure, shown)
    else:
        _tsne(figure, shown)
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
