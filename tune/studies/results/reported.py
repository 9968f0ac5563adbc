"""Studies as an HTML report takes them in: their runs, what each is for, and a section of the page."""

from functools import partial
from pathlib import Path

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.reports.html.sources import ReportedTable, read_model
from tune.studies.results.results import StudyResults
from tune.studies.results.section import study_section


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
    for system in results.systems:
        for made in system.runs:
            labels.setdefault(made.run, []).append(f"{system.row}, {system.column}")
    measured = [run for trial in results.trials if trial.reached for run in trial.runs]
    measured += [run.run for system in results.systems for run in system.runs]
    joined = {run: "; ".join(texts) for run, texts in labels.items()}
    section = partial(study_section, directory, results)
    return ReportedTable(directory, results.kind, dict.fromkeys(started + measured), joined, section)
