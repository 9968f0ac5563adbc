"""`rayfed-ssl doctor`: whether a run fits the hardware."""

from typing import Annotated

import typer

from tune.cli.options import RecipeAndSettings, Trust, load_config


def doctor(
    arguments: RecipeAndSettings = None,
    measure: Annotated[bool, typer.Option("--measure", help="Run one client's step to measure its cost.")] = False,
    trust: Trust = False,
) -> None:
    """Show the hardware, how many clients would run at once, and what would not fit."""
    from tune.cli.doctor_checks import examine

    if not examine(load_config(arguments, trust=trust), measured=measure):
        raise typer.Exit(1)
