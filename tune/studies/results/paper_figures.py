"""What papers' figures show, drawn from the results and the runs of a study."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rayfed_ssl.analysis.embedding import embed
from rayfed_ssl.reports.style import line_style
from tune.studies.definition.schema import COLUMN, ROW
from tune.studies.definition.study import Study
from tune.studies.results.panels import Panel, Series, draw_panels, log_scale, scaled
from tune.studies.results.published import scale_of
from tune.studies.results.results import StudyResults, TrialResult

WIDTH = 0.6
"""Of a column without a place on the axis, in which its rows stand beside each other; columns are 1 apart."""


def draw_paper(study: Study, results: StudyResults, directory: Path) -> Figure:
    """Draw what a paper's figure shows from the runs in `directory`."""
    cells = [trial for trial in results.trials if trial.values]
    title = f"{study.source} ({study.size} size)" if study.size else study.source
    if study.figure.draw == "lines":
        return draw_panels(_lines(study, cells), title)
    figure = Figure(figsize=(4.2 * len(cells), 4.6), layout="constrained")
    _tsne(figure, cells, directory, local=study.name == "fedca-figure3")
    figure.suptitle(title, fontsize=10)
    return figure


def _lines(study: Study, cells: Sequence[TrialResult]) -> list[Panel]:
    """A score over the columns' places, a panel for each of their groups; columns without places have marks alone."""
    measured = {cell.point[COLUMN] for cell in cells}
    columns, panels = {name: study.columns[name] for name in study.axes[COLUMN] if name in measured}, []
    for group in dict.fromkeys(column.panel for column in columns.values()):
        names = [name for name, column in columns.items() if column.panel == group]
        places = [columns[name].x for name in names]
        xs = {name: float(index) if x is None else x for index, (name, x) in enumerate(zip(names, places, strict=True))}
        series, rows, has_places = [], study.axes[ROW], None not in places
        for index, row in enumerate(rows):
            shift = 0.0 if has_places else WIDTH * ((index + 0.5) / len(rows) - 0.5)
            mine = {cell.point[COLUMN]: cell for cell in cells if cell.point[ROW] == row}
            own = {x + shift: mine[name] for name, x in xs.items() if name in mine}
            values = {x: cell.values[cell.score or ""].over_seeds() for x, cell in sorted(own.items())}
            published = {x: cell.published for x, cell in own.items() if cell.published is not None and not cell.unlike}
            style = line_style(index) | ({} if has_places else {"linestyle": ""})
            points = [(x, scaled(value, scale_of(study.unit))) for x, value in values.items()]
            series.append(Series(row, points, style, published))
        ticks = {x: f"{x:g}" if has_places else name for name, x in xs.items()}
        x, y = names[0].split("=")[0] if has_places else "", "accuracy (%)" if study.unit == "percent" else study.unit
        panels.append(Panel(series, group or "", x, y, ticks, log_scale(list(xs.values())) if has_places else {}))
    return panels


def _tsne(figure: Figure, cells: Sequence[TrialResult], directory: Path, *, local: bool) -> None:
    for number, cell in enumerate(cells):
        axes = figure.add_subplot(1, len(cells), number + 1)
        picture = embed(directory / cell.runs[0], local=local)
        for label, name in enumerate(picture.classes):
            points = picture.points[picture.labels == label]
            gray = picture.held is not None and label not in picture.held
            look: dict[str, Any] = {"color": "0.8" if gray else f"C{label % 10}", "zorder": 1 if gray else 2, "s": 5}
            axes.scatter(points[:, 0], points[:, 1], label=None if gray else name, **look)
        axes.set(title=cell.point[ROW], xticks=[], yticks=[])
        axes.legend(fontsize=6, ncols=5, loc="upper center", bbox_to_anchor=(0.5, 0), markerscale=2)
