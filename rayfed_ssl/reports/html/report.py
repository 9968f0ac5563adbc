"""The report as a whole: one HTML file that needs nothing else, and the files of its figures beside it."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.reports.html.comparison import comparison_sections
from rayfed_ssl.reports.html.figure import FigureWriter
from rayfed_ssl.reports.html.page import Page, PageSection
from rayfed_ssl.reports.html.run_section import RunSections
from rayfed_ssl.reports.html.sources import ReadTable, Sources, open_sources
from rayfed_ssl.reports.style import styled
from rayfed_ssl.storage.filesystem import write_atomically

MAX_RUNS_IN_FULL = 6
"""With more runs than this, each has a row but no section of its own."""


def write_report(
    directories: Sequence[Path | str],
    out: Path | str = "report.html",
    *,
    trust: bool = False,
    on_opened: Callable[[Sources], None] | None = None,
    read_table: ReadTable = lambda directory: None,
) -> Path:
    """Write the report on runs and directories of runs; the same runs under the same paths give the same bytes.

    Figures go to `<stem>-figures/` beside the HTML file. No image of the data is shown. Figures that need the data and the
    encoder of a run of somebody else, which names modules, are drawn with `trust` only. `on_opened` takes what
    the report is about and what is left out, before figures are drawn. `read_table` describes the studies among the
    directories: `tune.studies.results.reported.read_study` does.

    Raises:
        ConfigError: There is nothing to report on, a run that was named is damaged, or there can be no such file.
    """
    out = Path(out)
    if out.suffix.lower() not in (".html", ".htm") or out.is_dir():
        raise ConfigError(f"the report is an HTML file, got --out {out}: name a file that ends in .html")
    sources = open_sources([Path(directory) for directory in directories], trust=trust, read_table=read_table)
    if on_opened is not None:
        on_opened(sources)
    others = ["--trust"] * trust + (["--out", out.name] if out.name != "report.html" else [])
    command = shlex.join(["rayfed-ssl", "report", *map(str, directories), *others])
    try:
        writer = FigureWriter(out.parent / f"{out.stem}-figures")
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be made ({error.strerror}): name another file with --out") from None
    with styled():
        page = _page(sources, writer, command)
    write_atomically(out, render(page).encode(errors="backslashreplace"))  # a name may be no UTF-8
    return out


def _page(sources: Sources, writer: FigureWriter, command: str) -> Page:
    """Make the page; captions name the command where it is short."""
    names, runs = sources.names, sources.runs
    origin = command if len(names) <= 4 else "the command at the top"
    sections = [
        table.section(writer, origin, f"{table.kind}-{index}")
        for index, table in enumerate(sources.tables, 1)
        if table.section is not None
    ]
    notices = tuple(f"Left out: {line}" for line in sources.left_out)
    below = [run.label or run.name for run in runs if run.summary.is_below_start]
    if below and len(runs) > 1:
        settings = "; ".join(list(dict.fromkeys(below))[:4]) + " and others" * (len(set(below)) > 4)
        notices += (f"Warning: {len(below)} of {len(runs)} runs are below their start in kNN and linear: {settings}.",)
    if len(runs) == 1 and not sections:
        parts = RunSections(runs[0], writer, origin).all()
        return Page(runs[0].name, "A run of rayfed-ssl.", command, notices, parts)
    title = ", ".join(names) if len(names) <= 3 else f"{len(runs)} runs"
    if not runs:
        lead = f"A {sources.tables[0].kind} by rayfed-ssl, without its runs."
        return Page(title, lead, command, notices, tuple(sections))
    sections += comparison_sections(runs, writer, origin)
    for index, run in enumerate(runs, 1) if len(runs) <= MAX_RUNS_IN_FULL else ():
        parts = RunSections(run, writer, origin, f"run-{index}-").all()
        sections.append(PageSection(f"run-{index}", f"Run {run.name}", parts=parts))
    if len(runs) > MAX_RUNS_IN_FULL:
        text = f"More than {MAX_RUNS_IN_FULL} runs: name one alone to see its own figures, as in rayfed-ssl report RUN."
        sections.append(PageSection("one-run", "Figures of one run", text=(text,)))
    return Page(title, f"{len(runs)} runs of rayfed-ssl.", command, notices, tuple(sections))


def render(page: Page) -> str:
    """Turn a page into HTML; everything but the markup of figures is escaped."""
    loader = jinja2.PackageLoader("rayfed_ssl.reports.html", "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["address"] = lambda path: quote(path, safe="/")
    assets = {name: Markup(loader.get_source(environment, f"report.{name}")[0]) for name in ("css", "js")}
    return environment.get_template("report.html.j2").render(page=page, **assets)
