"""`rayfed-ssl doctor`: whether a run fits the hardware."""

from pathlib import Path
from typing import Annotated

import typer

from tune.cli.errors import fail
from tune.cli.options import Address, RecipeAndSettings, load_config
from tune.terminal import echo


def doctor(
    arguments: RecipeAndSettings = None,
    measure: Annotated[bool, typer.Option("--measure", help="Run one client's step to measure its cost.")] = False,
    address: Address = None,
    cluster: Annotated[
        Path | None, typer.Option(help="Check this file for `ray up` instead; needs no cloud.", metavar="CLUSTER.YAML")
    ] = None,
) -> None:
    """Show the hardware, how many clients would run at once, and what would not fit."""
    if cluster is not None:
        from actors.cluster.cluster_file import check_cluster_file

        if problems := check_cluster_file(cluster):
            fail(problems, 1)
        echo(f"{cluster} is ready for `ray up`")
        return
    from tune.cli.doctor_checks import examine

    if not examine(load_config(arguments), measured=measure, address=address):
        raise typer.Exit(1)
