"""`rayfed-ssl benchmark`: many systems at an equal budget, each tuned by as many trials."""

from pathlib import Path
from typing import Annotated

import typer

from tune.cli.options import Address, AsCsv, AsJson, AsLatex, Quiet, Trust, form_of
from tune.cli.study_command import run_study_command


def benchmark(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of `list benchmarks`, or a file of your own.")],
    settings: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes of all runs.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory; if it holds this benchmark, it is resumed.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds; default: the file's.")] = None,
    system: Annotated[
        list[str] | None, typer.Option(help="Run this system only; the results are of all that were run. Repeatable.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time; above 1 they are trials on Ray Tune.")] = 1,
    address: Address = None,
    trust: Trust = False,
    quiet: Quiet = False,
    as_csv: AsCsv = False,
    as_latex: AsLatex = False,
    as_json: AsJson = False,
) -> None:
    """Compare systems at an equal budget, after a short search for each one's settings."""
    from tune.studies.run import StudyRequest

    form = form_of(as_json, as_csv, as_latex)
    numbers = None if seeds is None else tuple(range(seeds))
    rows = tuple(system) if system else None
    request = StudyRequest(
        name, "benchmark", tuple(settings or ()), jobs, address, out, seeds=numbers, rows=rows, trust=trust
    )
    run_study_command(request, request.run, quiet, form)
