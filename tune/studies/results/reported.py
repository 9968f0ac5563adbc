"""A study in the HTML report: its runs, what each is for, and a section of tables and figures."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.reports.html.figure import FigureWriter
from rayfed_ssl.reports.html.page import PageSection, RenderedFigure
from rayfed_ssl.reports.html.sources import ReportedTable, read_model
from tune.studies.results.results import StudyResults


def read_study(directory: Path) -> ReportedTable | None:
    """Read the study in a directory; None where there is none.

    Raises:
        ConfigError: Its file is damaged, or no run of it has begun.
    """
    has_results = (directory / "results.json").is_file()
    if not has_results and not (directory / "study.json").is_file():
        return None
    started = [f"runs/{path.parent.name}" for path in sorted(directory.glob("runs/*/run.json"))]
    if not has_results:
        if not started:
            raise ConfigError(
                f"{directory} is a study of which no run has begun: see `rayfed-ssl sweep --status {directory}`"
            )
        return ReportedTable(
            directory, "study", started, left_out=f"the table of {directory}: it is written at the end"
        )
    results = read_model(directory / "results.json", StudyResults)
    labels: dict[str, list[str]] = {}
    for trial in results.trials:
        for run in trial.runs:
            labels.setdefault(run, []).append(trial.label)
    measured = [run for trial in results.trials if trial.reached for run in trial.runs]
    joined = {run: "; ".join(texts) for run, texts in labels.items()}
    return ReportedTable(
        directory, results.kind, dict.fromkeys(started + measured), joined, partial(study_section, directory, results)
    )


def study_section(directory: Path, results: StudyResults, writer: FigureWriter, command: str, key: str) -> PageSection:
    """Make the section of a study."""
    text = [f"{results.source}."] if results.source else []
    text += [f"Size “{results.size}”, seeds {', '.join(map(str, results.seeds))}."] * bool(results.size)
    text += [line for table in results.tables for line in table.remarks]
    text += [line for line in results.remarks if not line.startswith(("Stopped, ", "Failed, "))] + results.notes
    figures = tuple(_figures(directory, results, writer, f"{results.command} · {command}"))
    return PageSection(
        key,
        f"{results.kind.capitalize()}: {results.title}",
        text=tuple(text),
        tables=tuple(results.tables),
        folded=tuple(results.details),
        parts=(PageSection(f"{key}-figures", "Figures", figures=figures),) if figures else (),
    )


def _figures(directory: Path, results: StudyResults, writer: FigureWriter, origin: str) -> Iterator[RenderedFigure]:
    """Take the study's own figures into the page, as pictures in themselves."""
    for name in results.figures:
        path = directory / "figures" / Path(name).name
        if path.suffix == ".svg" and path.is_file():
            of_paper = path.stem == results.name
            title = (
                f"{results.title}: ours beside the paper’s"
                if of_paper
                else path.stem[:1].upper() + path.stem[1:].replace("-", " ")
            )
            alt = f"{results.title}. {title}. The numbers are in the tables of this section."
            yield writer.embed(path, title, alt, origin)
