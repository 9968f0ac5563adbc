"""What papers' figures show, drawn from the records of a study's runs.

Colors are Okabe and Ito's; rows differ in marker, dash or hatching as well. Hollow diamonds are published
numbers of the same dataset and score.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rayfed_ssl.analysis.diagnosis import diagnose
from rayfed_ssl.analysis.embedding import embed
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.style import METHOD_STYLES
from rayfed_ssl.reports.summary import by_round
from tune.studies.definition.layers import Column
from tune.studies.definition.schema import COLUMN, ROW
from tune.studies.definition.study import Study
from tune.studies.results.published import scale_of
from tune.studies.results.results import StudyResults, TrialResult

HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo", "--")
DASHES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class FigureData:
    """What a figure is drawn from; `directory` holds the runs."""

    study: Study
    results: StudyResults
    directory: Path

    @property
    def rows(self) -> Sequence[str]:
        """The rows in the order of the file."""
        return self.study.axes[ROW]

    @property
    def columns(self) -> dict[str, Column]:
        """The columns in the order of the file, of those that are not left out."""
        names = [name for name in self.study.axes[COLUMN] if name not in self.results.skipped]
        return {name: self.study.columns[name] for name in names}

    @property
    def measured(self) -> list[TrialResult]:
        """The cells that have a number."""
        return [trial for trial in self.results.trials if trial.values]

    def cell(self, row: str, column: str) -> TrialResult | None:
        """Find a cell; None if it was not run."""
        return next((t for t in self.results.trials if (t.point[ROW], t.point[COLUMN]) == (row, column)), None)

    def run(self, cell: TrialResult) -> Path:
        """The run of a cell's first seed."""
        return self.directory / cell.runs[0]

    def mean(self, cell: TrialResult | None) -> float | None:
        """A cell's mean in the unit of the table."""
        value = None if cell is None else cell.values.get(cell.score or "")
        return None if value is None else scale_of(self.study.unit) * value.mean

    def std(self, cell: TrialResult) -> float:
        """A cell's deviation in the unit of the table; 0 for one seed."""
        return scale_of(self.study.unit) * (cell.values[cell.score or ""].std or 0.0)

    @property
    def label(self) -> str:
        """The label of an axis of scores."""
        return "accuracy (%)" if self.study.unit == "percent" else self.study.unit


def draw_paper(study: Study, results: StudyResults, directory: Path) -> Figure:
    """Draw what a paper's figure shows from the runs in `directory`."""
    assert study.figure.draw is not None
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    DRAWERS[study.figure.draw](figure, FigureData(study, results, directory))
    figure.suptitle(f"{study.source} ({study.size} size)" if study.size else study.source, fontsize=10)
    return figure


def _comparable(cell: TrialResult) -> float | None:
    return cell.published if cell.unlike is None else None


def _bars(figure: Figure, data: FigureData) -> None:
    axes = figure.add_subplot()
    columns, rows = data.columns, data.rows
    width = 0.8 / len(rows)
    for index, (row, (color, _), hatch) in enumerate(zip(rows, cycle(METHOD_STYLES), cycle(HATCHES), strict=False)):
        for place, column in enumerate(columns):
            cell = data.cell(row, column)
            mean = data.mean(cell)
            if cell is None or mean is None:
                continue
            x, label = place + (index - (len(rows) - 1) / 2) * width, row if place == 0 else None
            axes.bar(
                x, mean, 0.9 * width, yerr=data.std(cell) or None, color=color, alpha=0.7, hatch=hatch, label=label
            )
            if cell.take == "mean":
                record = RunRecord.open(data.run(cell))
                encoders = record.scores(record.last_round).items()
                scores = [s[cell.score] for name, s in encoders if name != "global" and cell.score in s]
                axes.plot([x] * len(scores), [100 * score for score in scores], "k.", markersize=4)
            if (published := _comparable(cell)) is not None:
                axes.plot(x, published, "kD", markerfacecolor="none", markersize=7)
    axes.set_xticks(range(len(columns)), list(columns))
    axes.set_ylabel(data.label)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))


def _lines(figure: Figure, data: FigureData) -> None:
    columns = data.columns
    panels = list(dict.fromkeys(column.panel for column in columns.values()))
    figure.set_size_inches(max(6, 3.6 * len(panels)), 4)
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), number + 1)
        names = [name for name, column in columns.items() if column.panel == panel]
        xs = {name: columns[name].x or 0.0 for name in sorted(names, key=lambda name: columns[name].x or 0)}
        for row, (color, marker), dash in _styled(data.rows):
            cells = [(x, cell) for name, x in xs.items() if (cell := data.cell(row, name)) is not None]
            drawn = [(x, mean, data.std(cell)) for x, cell in cells if (mean := data.mean(cell)) is not None]
            if drawn:
                places, means, spread = zip(*drawn, strict=True)
                axes.errorbar(
                    places, means, yerr=spread, color=color, marker=marker, linestyle=dash, label=row, capsize=3
                )
            for x, cell in cells:
                if (published := _comparable(cell)) is not None:
                    axes.plot(x, published, "D", color=color, markerfacecolor="none", markersize=9)
        positive = [x for x in xs.values() if x]
        if len(positive) > 1:
            has_zero = len(positive) < len(xs)
            axes.set_xscale("symlog" if has_zero else "log", **({"linthresh": min(positive)} if has_zero else {}))
        axes.set_xticks(list(xs.values()), [f"{x:g}" for x in xs.values()], minor=False)
        axes.minorticks_off()
        axes.set(title=panel or "", ylabel=data.label if number == 0 else "", xlabel=list(xs)[-1].split("=")[0])
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)


def _losses(figure: Figure, data: FigureData) -> None:
    """Two points a round for the clients, one for the server, over local epochs (FLESD, Figure 5)."""
    axes = figure.add_subplot()
    for cell, (color, marker) in zip(data.results.trials, cycle(METHOD_STYLES), strict=False):
        if not cell.values:
            continue
        record = RunRecord.open(data.run(cell))
        epochs = record.described_config().epochs
        first, last = mean_by_round(record, "loss_first"), mean_by_round(record, "loss")
        starts = [((round - 1) * epochs + 1, loss) for round, loss in first.items()]
        ends = [(round * epochs, loss) for round, loss in last.items()]
        xs, ys = zip(*sorted(starts + ends), strict=True)
        axes.plot(xs, ys, color=color, linestyle="--", marker=marker, markersize=3, label=f"{cell.point[ROW]}, clients")
        server = mean_by_round(record, "distil_loss")
        if server:
            axes.plot([round * epochs for round in server], list(server.values()), color=color, marker=marker,
                      label=f"{cell.point[ROW]}, server")  # fmt: skip
    axes.set(xlabel="local epochs", ylabel="loss")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _rounds(figure: Figure, data: FigureData) -> None:
    columns = data.columns
    for number, column in enumerate(columns):
        axes = figure.add_subplot(1, len(columns), number + 1)
        for row, (color, marker), dash in _styled(data.rows):
            cell = data.cell(row, column)
            if cell is None or not cell.values:
                continue
            by_run = [
                mean_by_round(RunRecord.open(data.directory / run), str(cell.score), "global") for run in cell.runs
            ]
            rounds = sorted(set.intersection(*map(set, by_run)))
            means = [100 * fmean(values[round] for values in by_run) for round in rounds]
            axes.plot(rounds, means, color=color, marker=marker, markersize=3, linestyle=dash, label=row)
            if (published := _comparable(cell)) is not None:
                axes.axhline(published, color=color, alpha=0.4, linewidth=1, linestyle=":")
        axes.set(title=column, xlabel="round", ylabel=data.label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)


def _boxplots(figure: Figure, data: FigureData) -> None:
    """A box a round: quartiles over images and extreme medians over pairs of clients (FedCA, Figure 4)."""
    shared: Axes | None = None
    for number, cell in enumerate(data.results.trials):
        axes = shared = figure.add_subplot(1, len(data.results.trials), number + 1, sharey=shared)
        axes.set(title=cell.point[ROW], xlabel="round", ylabel=data.study.unit if number == 0 else "")
        if not cell.values:
            continue
        record = RunRecord.open(data.run(cell))
        parts = {"med": "", "q1": "_lower", "q3": "_upper", "whislo": "_min", "whishi": "_max"}
        parts_by_round = {key: mean_by_round(record, f"{cell.score}{ending}") for key, ending in parts.items()}
        boxes: list[dict[str, Any]] = []
        for round in parts_by_round["med"]:
            box = {key: values[round] for key, values in parts_by_round.items()}
            box |= {"whislo": min(box["whislo"], box["q1"]), "whishi": max(box["whishi"], box["q3"])}
            boxes.append(box | {"label": str(round)})
        axes.bxp(boxes, showfliers=False)
        axes.grid(alpha=0.3, axis="y")


def _heatmaps(figure: Figure, data: FigureData) -> None:
    """Distances between clients' relation matrices, a picture a column (FedFoA, Figure 6)."""
    cells = data.measured
    matrices = [diagnose(data.run(cell)).matrices["relation_distance"] for cell in cells]
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


def _tsne(figure: Figure, data: FigureData) -> None:
    cells = data.measured
    figure.set_size_inches(4.2 * len(cells), 4.6)
    for number, cell in enumerate(cells):
        axes = figure.add_subplot(1, len(cells), number + 1)
        picture = embed(data.run(cell), local=data.study.name == "fedca-figure3")
        for label, name in enumerate(picture.classes):
            points = picture.points[picture.labels == label]
            gray = picture.held is not None and label not in picture.held
            color = "0.8" if gray else f"C{label % 10}"
            axes.scatter(
                points[:, 0], points[:, 1], s=5, color=color, label=None if gray else name, zorder=1 if gray else 2
            )
        axes.set(title=cell.point[ROW], xticks=[], yticks=[])
        axes.legend(fontsize=6, ncols=5, loc="upper center", bbox_to_anchor=(0.5, 0), markerscale=2)


DRAWERS: Mapping[str, Callable[[Figure, FigureData], None]] = {
    "bars": _bars,
    "lines": _lines,
    "losses": _losses,
    "rounds": _rounds,
    "boxplots": _boxplots,
    "heatmaps": _heatmaps,
    "tsne": _tsne,
}


def _styled(rows: Sequence[str]) -> Iterator[tuple[str, tuple[str, str], str]]:
    yield from zip(rows, cycle(METHOD_STYLES), cycle(DASHES), strict=False)


def mean_by_round(record: RunRecord, name: str, participant: str | None = None) -> dict[int, float]:
    """Mean of a metric over participants, or of one, by round."""
    return {round: fmean(values) for round, values in by_round(record.metrics, name, participant).items()}
