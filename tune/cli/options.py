"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE] [KEY=VALUE]...",
        help="A recipe's name or file (default: digits), then settings such as method=fedavg or rounds=4.",
    ),
]
RunDirectory = Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")]
Settings = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")]
Address = Annotated[
    str | None, typer.Option(help="Ray cluster to join, or auto; without it Ray is started on this machine.")
]
Inject = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FAULT",
        help="Let something go wrong, such as kill-actor:round=2,client=3; may be repeated. See docs/faults.md.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
