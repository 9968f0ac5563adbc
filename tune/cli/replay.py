"""`rayfed-ssl replay`: run one client's step of a round again."""

from typing import Annotated

import typer

from tune.cli.options import RunDirectory, Trust
from tune.terminal import echo


def replay(
    directory: RunDirectory,
    round: Annotated[int, typer.Option(help="The round, from 1; the states before it must be kept.")],
    client: Annotated[int, typer.Option(help="The client's id.")],
    trust: Trust = False,
) -> None:
    """Run one client's step of a round again in this process, with a traceback if it fails."""
    from rayfed_ssl.engine.round_loop import ClientError
    from rayfed_ssl.records.replay import replay as replay_step
    from rayfed_ssl.trees import digest, nbytes

    try:
        result = replay_step(directory, round, client, trust=trust)
    except ClientError as error:
        import traceback

        traceback.print_exception(error.__cause__ or error)
        raise
    for name, value in result.metrics.items():
        echo(f"{name:16} {value:.6g}")
    echo(f"{'upload':16} {nbytes(result.upload):,} bytes, sha256 {digest(result.upload)}")
