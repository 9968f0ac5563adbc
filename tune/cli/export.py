"""`rayfed-ssl export`: an encoder in a file of its own."""

from pathlib import Path
from typing import Annotated

import typer

from tune.cli.errors import describe, fail
from tune.cli.options import RunDirectory, Trust
from tune.terminal import echo


def export(
    directory: RunDirectory,
    out: Annotated[Path, typer.Argument(metavar="OUT.safetensors", help="File to write.")],
    encoder: Annotated[
        str | None, typer.Option(help="Its name: global, client-3 and so on [default: global, or else the first].")
    ] = None,
    with_heads: Annotated[bool, typer.Option("--with-heads", help="Write projector and other heads, too.")] = False,
    trust: Trust = False,
) -> None:
    """Write an encoder into a file of its own, for plain PyTorch and scikit-learn."""
    from rayfed_ssl.export.encoders import export_encoder
    from rayfed_ssl.records.run_record import RunRecord

    try:
        info = export_encoder(directory, out, encoder=encoder, with_heads=with_heads, trust=trust).info
    except OSError as error:
        fail(f"OUT {out} cannot be written ({describe(error)}): name a file in another directory", 2)
    manifest = RunRecord.open(directory, tables=False, trust=trust).manifest
    if manifest.finished is None:
        echo(
            f"note: {directory} is unfinished: this is its encoder after round {info.round} of {manifest.num_rounds}",
            err=True,
        )
    echo(
        f"{out}: {info.encoder}, {info.architecture}, {info.channels} x {info.size} x {info.size} pixels to "
        f"{info.feature_dim} features, {info.method} after round {info.round}"
    )
