"""The paper's table beside ours, from `reproduction.json`."""

from pathlib import Path

from rayfed_ssl import formats
from rayfed_ssl.reports.html.figure import FigureWriter, RenderedFigure
from rayfed_ssl.reports.html.page import PageSection
from rayfed_ssl.reports.html.tables import MISSING, PageCell, PageTable
from tune.studies.results.reproduction_results import Agreement, CellResult, ReproductionResults


def reproduction_section(
    directory: Path, results: ReproductionResults, writer: FigureWriter, command: str, key: str
) -> PageSection:
    """Make the section of a reproduction."""
    source = results.source
    cited = "Source not given" if source is None else f"{source.paper}, {source.item} (arXiv {source.arxiv})"
    seeds = ", ".join(map(str, results.seeds)) or "not given"
    text = [f"{cited}, size “{results.size}”, seeds {seeds}."]
    if results.size == "cpu":
        text.append("At this size the published numbers are a guide for order and gaps, not for levels.")
    text += [f"{column}: not run, {reason}." for column, reason in results.skipped.items()]
    text += [*_agreement(results.agreement), *results.notes]
    title = results.title or directory.name
    failures = [[c.row, c.column, seed, reason] for c in results.cells for seed, reason in c.failures.items()]
    return PageSection(
        key,
        f"Reproduction: {title}",
        text=tuple(text),
        figures=tuple(
            _figures(directory, results, writer, title, f"{results.command or 'rayfed-ssl reproduce'} · {command}")
        ),
        tables=(side_by_side(results),),
        folded=(PageTable.of("What failed", ["row", "column", "seed", "why"], failures),) if failures else (),
    )


def side_by_side(results: ReproductionResults) -> PageTable:
    """Show ours, the paper's and the difference, in the paper's rows and columns."""
    cells = {(cell.row, cell.column): cell for cell in results.cells}
    columns = [c for c in results.columns if any((row, c) in cells for row in results.rows)]
    unit = "%" if results.unit == "percent" else ""
    rows = [[PageCell(row), *(_cell(cells.get((row, column)), unit) for column in columns)] for row in results.rows]
    caption = "Ours, the paper’s, and the difference" + ("" if unit else f" ({results.unit})")
    return PageTable.of(caption, ["row", *columns], rows)


def _cell(cell: CellResult | None, unit: str) -> PageCell:
    if cell is None:
        return PageCell(MISSING)
    paper = f"paper {formats.number(cell.published, unit, MISSING)}"
    if cell.mean is None:
        return PageCell("failed" if cell.failures else MISSING, None, (paper,))
    num = sum(value is not None for value in cell.ours)
    ours = f"{cell.mean:.4g}{unit}" if cell.std is None else f"{cell.mean:.4g} ± {cell.std:.2g}{unit} (n = {num})"
    difference = [] if cell.difference is None else [f"{cell.difference:+.4g}".replace("-", "−")]
    return PageCell(ours, cell.mean, (paper, *difference))


def _agreement(agreement: Agreement) -> list[str]:
    if agreement.kendall is None:
        return []
    columns = [f"{name} {formats.number(tau)}" for name, tau in agreement.columns.items() if tau is not None]
    within = f"; within columns: {', '.join(columns)}" if columns else ""
    cells = f"{agreement.kendall:.2f} over {agreement.cells} cells"
    return [f"Agreement in order with the paper: Kendall’s τ-b {cells}{within}."]


def _figures(
    directory: Path, results: ReproductionResults, writer: FigureWriter, title: str, origin: str
) -> list[RenderedFigure]:
    """Take the reproduction's own figure into the page, as a picture in itself."""
    title = f"{title}: ours beside the paper’s"
    alt = f"{title}. The numbers are in the table of this section."
    paths = [directory / Path(name).name for name in results.figures]
    return [writer.embed(path, title, alt, origin) for path in paths if path.suffix == ".svg" and path.is_file()]
