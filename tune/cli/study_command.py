"""What `sweep`, `reproduce` and `benchmark` share: a study is run with progress, printed, and can be resumed."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from tune.cli.errors import exit_on_ray_death, resumable
from tune.terminal import echo

if TYPE_CHECKING:
    from rayfed_ssl.reports.table import Form
    from tune.studies.results.results import StudyResults
    from tune.studies.run import StudyRequest

    Run = Callable[[Callable[[str], None], Callable[[str], None]], StudyResults]
    """Runs a study; takes what prints a line of progress, and what ends this process when Ray has died."""


def run_study_command(request: "StudyRequest", run: "Run", quiet: bool, form: "Form") -> None:
    """Run a study and print its results; exits with 1 where trials have failed."""
    from tune.studies.results.summary import print_results

    hint = f"finished rounds are kept; resume with: {request.resume_command}"

    def say(line: str) -> None:
        if not quiet:
            echo(line, err=True)

    with resumable(lambda: hint):
        results = run(say, exit_on_ray_death(lambda: hint))
    print_results(results, request.directory, form)
    if results.failures:
        raise typer.Exit(1)
