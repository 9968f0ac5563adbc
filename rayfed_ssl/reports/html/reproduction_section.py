"""The paper's table beside ours, from `reproduction.json` (`rayfed_ssl/reproductions/definition.py` says what is in it)."""

from pathlib import Path
from typing import Any

from rayfed_ssl import formats
from rayfed_ssl.reports.html.figure import FigureWriter, RenderedFigure
from rayfed_ssl.reports.html.page import PageSection
from rayfed_ssl.reports.html.sources import Reproduction
from rayfed_ssl.reports.html.tables import PageCell, PageTable


def reproduction_section(reproduction: Reproduction, writer: FigureWriter, command: str, key: str) -> PageSection:
    """Make the section of a reproduction."""
    content = reproduction.content
    source = content.get("source") or {}
    cited = ", ".join(str(source[part]) for part in ("paper", "item") if source.get(part))
    arxiv = f" (arXiv {source['arxiv']})" if source.get("arxiv") else ""
    text = [
        f"{cited or 'Source not given'}{arxiv}, size “{content.get('size')}”, seeds {_listed(content.get('seeds'))}."
    ]
    if content.get("size") == "cpu":
        text.append("At this size the published numbers are a guide for order and gaps, not for levels.")
    text += [f"{column}: not run, {why}." for column, why in (content.get("skipped") or {}).items()]
    text += _agreement(content.get("agreement") or {}) + [str(note) for note in content.get("notes") or []]
    made = content.get("command") or "rayfed-ssl reproduce"
    return PageSection(
        key,
        f"Reproduction: {content.get('title') or reproduction.directory.name}",
        text=tuple(text),
        figures=tuple(_drawn(reproduction, writer, f"{made} · {command}")),
        tables=(side_by_side(content),),
        folded=tuple(table for table in (_failures(content),) if table),
    )


def side_by_side(content: dict[str, Any]) -> PageTable:
    """Show ours, the paper's and the difference, in the paper's rows and columns."""
    cells = {(cell["row"], cell["column"]): cell for cell in content["cells"]}
    columns = [c for c in content["columns"] if any((row, c) in cells for row in content["rows"])]
    unit = "%" if content.get("unit") == "percent" else ""
    rows = [[PageCell(row), *(_cell(cells.get((row, column)), unit) for column in columns)] for row in content["rows"]]
    caption = "Ours, the paper’s, and the difference" + ("" if unit else f" ({content.get('unit')})")
    return PageTable.of(caption, ["row", *columns], rows)


def _cell(cell: dict[str, Any] | None, unit: str) -> PageCell:
    if cell is None:
        return PageCell("–")
    paper = "paper –" if cell.get("published") is None else f"paper {cell['published']:.4g}{unit}"
    mean, std = cell.get("mean"), cell.get("std")
    if mean is None:
        return PageCell("failed" if cell.get("failures") else "–", None, (paper,))
    num = sum(value is not None for value in cell.get("ours") or [])
    ours = f"{mean:.4g}{unit}" if std is None else f"{mean:.4g} ± {std:.2g}{unit} (n = {num})"
    difference = cell.get("difference")
    return PageCell(ours, mean, (paper,) if difference is None else (paper, f"{difference:+.4g}".replace("-", "−")))


def _listed(values: Any) -> str:
    return ", ".join(map(str, values or [])) or "not given"


def _agreement(agreement: dict[str, Any]) -> list[str]:
    if agreement.get("kendall") is None:
        return []
    columns = [
        f"{name} {formats.number(tau)}" for name, tau in (agreement.get("columns") or {}).items() if tau is not None
    ]
    within = f"; within columns: {', '.join(columns)}" if columns else ""
    return [
        f"Agreement in order with the paper: Kendall’s τ-b {agreement['kendall']:.2f} over {agreement.get('cells')} cells"
        f"{within}."
    ]


def _failures(content: dict[str, Any]) -> PageTable | None:
    rows = [
        [cell["row"], cell["column"], str(seed), str(line)]
        for cell in content["cells"]
        for seed, line in (cell.get("failures") or {}).items()
    ]
    return PageTable.of("What failed", ["row", "column", "seed", "why"], rows) if rows else None


def _drawn(reproduction: Reproduction, writer: FigureWriter, origin: str) -> list[RenderedFigure]:
    """Take the reproduction's own figure into the page, as a picture in itself."""
    title = f"{reproduction.content.get('title') or reproduction.directory.name}: ours beside the paper’s"
    figures = []
    for name in reproduction.content.get("figures") or []:
        path = reproduction.directory / Path(name).name
        if path.suffix == ".svg" and path.is_file():
            alt = f"{title}. The numbers are in the table of this section."
            figures.append(writer.embed(path, title, alt, origin))
    return figures
