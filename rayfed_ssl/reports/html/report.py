"""The report as a whole: one HTML file that needs nothing else, and the files of its figures beside it."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.reports.html.comparison import comparison_sections
from rayfed_ssl.reports.html.features import Embedding, embedding_named
from rayfed_ssl.reports.html.figure import FigureWriter
from rayfed_ssl.reports.html.groups import group
from rayfed_ssl.reports.html.page import Page, PageSection
from rayfed_ssl.reports.html.reproduction_section import reproduction_section
from rayfed_ssl.reports.html.run_section import RunSection
from rayfed_ssl.reports.html.sources import Sources, open_sources
from rayfed_ssl.reports.html.sweep_section import sweep_section
from rayfed_ssl.storage.filesystem import write_atomically

MAX_RUNS_IN_FULL = 6
"""With more runs than this, each has a row but no section of its own."""


def write_report(
    directories: Sequence[Path],
    out: Path = Path("report.html"),
    *,
    embedding: str = "tsne",
    on_left_out: Callable[[str], None] | None = None,
) -> Path:
    """Write the report on runs, directories of runs, sweeps and reproductions; the same runs give the same bytes.

    Args:
        directories: What it is about.
        out: The HTML file; figures go to `<stem>-figures/` beside it.
        embedding: How test features are placed on a plane: "tsne", or "umap" where umap-learn is installed.
        on_left_out: Is told of each run in a directory that could not be read.

    Returns:
        The HTML file.

    Raises:
        ConfigError: There is nothing to report on, a run that was named is damaged, or the file's name is none.
    """
    chosen = embedding_named(embedding)
    if out.suffix.lower() not in (".html", ".htm") or out.is_dir():
        raise ConfigError(f"the report is an HTML file, got --out {out}: name a file that ends in .html")
    sources = open_sources(directories)
    for line in sources.left_out:
        if on_left_out is not None:
            on_left_out(line)
    writer = FigureWriter(out.parent / f"{out.stem}-figures")
    page = _page(sources, writer, chosen)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, render(page).encode())
    return out


def _page(sources: Sources, writer: FigureWriter, embedding: Embedding) -> Page:
    words = [shlex.quote(word) for word in sources.words]
    shown = words if len(words) <= 4 else [*words[:3], "…"]
    command = f"rayfed-ssl report {' '.join(shown)}"
    if embedding != "tsne":
        command += f" --embedding {embedding}"
    tables = tuple(
        reproduction_section(found, writer, command, f"reproduction-{index}")
        for index, found in enumerate(sources.reproductions, 1)
    ) + tuple(sweep_section(found, writer, command, f"sweep-{index}") for index, found in enumerate(sources.sweeps, 1))
    notices = tuple(f"Left out: {line}" for line in sources.left_out)
    if len(sources.runs) == 1 and not tables:
        (run,) = sources.runs
        sections = RunSection(run, writer, command, embedding).sections()
        return Page(run.name, "A run of rayfed-ssl.", command, notices, sections)
    title = ", ".join(sources.words) if len(sources.words) <= 3 else f"{len(sources.runs)} runs"
    if not sources.runs:
        kind = "reproduction" if sources.reproductions else "sweep"
        return Page(title, f"A {kind} by rayfed-ssl, without its runs.", command, notices, tables)
    runs = _run_sections(sources, writer, command, embedding)
    compared = comparison_sections(group(sources.runs), writer, command)
    lead = f"{len(sources.runs)} runs of rayfed-ssl."
    return Page(title, lead, command, notices, tables + compared + runs)


def _run_sections(
    sources: Sources, writer: FigureWriter, command: str, embedding: Embedding
) -> tuple[PageSection, ...]:
    if len(sources.runs) > MAX_RUNS_IN_FULL:
        text = f"More than {MAX_RUNS_IN_FULL} runs: name one alone to see its own figures, as in rayfed-ssl report RUN."
        return (PageSection("one-run", "Figures of one run", text=(text,)),)
    return tuple(
        PageSection(
            f"run-{index}",
            f"Run {run.name}",
            parts=RunSection(run, writer, command, embedding, f"run-{index}-").sections(),
        )
        for index, run in enumerate(sources.runs, 1)
    )


def render(page: Page) -> str:
    """Turn a page into HTML; whatever it holds is text, markup of figures alone is not."""
    loader = jinja2.PackageLoader("rayfed_ssl.reports.html", "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["address"] = lambda path: quote(path, safe="/")
    assets = {name: Markup(loader.get_source(environment, f"report.{name}")[0]) for name in ("css", "js")}
    return environment.get_template("report.html.j2").render(page=page, **assets)
