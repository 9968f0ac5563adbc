"""Arguments and options that several commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tune.cli.errors import fail

if TYPE_CHECKING:
    from rayfed_ssl.config.schema import Config
    from rayfed_ssl.reports.table import Form


RecipeAndSettings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE] [KEY=VALUE]...",
        help="A recipe's name or file (default: digits), then settings such as method=fedavg or rounds=4.",
    ),
]
RunDirectory = Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")]
Round = Annotated[int | None, typer.Option(help="A committed round; default: the last.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print what only few need: best epochs, FLESD's Eq. 11.")
]
Address = Annotated[
    str | None, typer.Option(help="Ray cluster to join, or auto; default: Ray is started on this machine.")
]
Inject = Annotated[
    list[str] | None,
    typer.Option(metavar="FAULT", help="Kill an actor: kill-actor:round=2,client=3. Repeatable. See docs/faults.md."),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Import the modules that the files of somebody else name (module:Class); they can do what you can.",
    ),
]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print the tables as CSV.")]
AsLatex = Annotated[bool, typer.Option("--latex", help="Print the tables for LaTeX with booktabs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def form_of(as_json: bool, as_csv: bool, as_latex: bool, *, of_state: bool = False) -> "Form":
    """Choose how tables are printed; of a study's state there is text and JSON alone."""
    if as_json + as_csv + as_latex > 1:
        fail("--json, --csv and --latex are three forms of one result: take one", 2)
    if of_state and (as_csv or as_latex):
        fail("--csv and --latex print results, and --status and --dry-run show none: leave one out", 2)
    return "json" if as_json else "csv" if as_csv else "latex" if as_latex else "text"


def divide_arguments(arguments: list[str] | None) -> tuple[str, list[str]]:
    """Divide them into the recipe that the first names, digits if it is a setting, and the settings after it."""
    recipe, *settings = arguments or ["digits"]
    return ("digits", [recipe, *settings]) if "=" in recipe else (recipe, settings)


def load_config(arguments: list[str] | None, *, trust: bool = True) -> "Config":
    """Load a recipe with settings; without `trust`, what a file names is not imported."""
    from rayfed_ssl.config.schema import Config
    from rayfed_ssl.machine.processor import check_process
    from rayfed_ssl.records.config_file import refuse_fetching

    recipe, settings = divide_arguments(arguments)
    config = Config.load(recipe, *settings, trust=trust)
    if not trust:
        refuse_fetching(recipe, config, settings)
    check_process(config.engine.cpu)
    return config
