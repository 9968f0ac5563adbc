"""The command line. Subcommands import what they need when they run, so that `--help` loads neither Ray nor torch."""

import os
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rayfed_ssl.config.schema import Config

from tune.cli import results
from tune.cli import sweep as sweep_command
from tune.cli.errors import fail, plain_errors
from tune.cli.options import Address, Inject, Quiet, RunDirectory, Settings, Words
from tune.executors import executor_for

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Federated self-supervised representation learning, simulated on Ray: same seed, same bits.",
)


DEGRADED = 4
"""Exit code of a run that came to its end, but with clients missing from rounds that they belonged to."""


def split_words(words: list[str] | None) -> tuple[str, list[str]]:
    """Take a recipe's name from the front of the words, if one is there."""
    words = list(words or [])
    if words and "=" not in words[0]:
        return words[0], words[1:]
    return "digits", words


def _load(words: list[str] | None) -> "Config":
    from rayfed_ssl.config.schema import Config

    recipe, overrides = split_words(words)
    return Config.load(recipe, *overrides)


@app.command()
def run(
    words: Words = None,
    out: Annotated[Path | None, typer.Option(help="Directory for the run; must be new or empty.")] = None,
    address: Address = None,
    inject: Inject = None,
    quiet: Quiet = False,
) -> None:
    """Run a federation: rayfed-ssl run [RECIPE] [KEY=VALUE]..."""
    with plain_errors():
        from rayfed_ssl.engine.faults import parse_faults
        from rayfed_ssl.engine.federation import Federation
        from rayfed_ssl.runs import default_directory
        from rayfed_ssl.runs import run as run_federation
        from tune.cli.progress import Progress

        config, faults = _load(words), parse_faults(inject)
        progress = Progress(config, quiet=quiet)
        federation = Federation.open(config, progress.on_decode)
        directory = out or default_directory(config)
        progress.introduce(federation, directory)
        with _resumable(directory), progress:
            result = run_federation(
                config,
                directory,
                observer=progress,
                executor=executor_for(config, address, faults),
                federation=federation,
            )
        progress.close()
        _present(result.directory)
        _tell_degraded(result.degraded)


@app.command()
def resume(
    directory: RunDirectory,
    settings: Settings = None,
    round: Annotated[int | None, typer.Option(help="Go on from this round instead of the last.")] = None,
    address: Address = None,
    inject: Inject = None,
    quiet: Quiet = False,
) -> None:
    """Go on with an interrupted run, to the same bits as if it had never stopped."""
    with plain_errors():
        from rayfed_ssl.engine.faults import parse_faults
        from rayfed_ssl.records.run_record import RunRecord
        from rayfed_ssl.runs import resume as resume_run
        from tune.cli.progress import Progress

        faults = parse_faults(inject)
        record = RunRecord.open(directory, tables=False)
        config = record.config(*(settings or []))
        progress = Progress(config, quiet=quiet)
        progress.go_on(record)
        with _resumable(directory), progress:
            result = resume_run(
                directory,
                *(settings or []),
                observer=progress,
                executor=executor_for(config, address, faults),
                round=round,
            )
        progress.close()
        _present(directory)
        _tell_degraded(result.degraded)


@contextmanager
def _resumable(directory: Path) -> Iterator[None]:
    stopped_by = signal.SIGINT

    # Spot machines and batch systems send SIGTERM before they take the machine away.
    def terminate(number: int, _: object) -> None:
        nonlocal stopped_by
        signal.signal(number, signal.SIG_IGN)  # a second one would stop the cleaning up
        stopped_by = signal.SIGTERM
        raise KeyboardInterrupt  # the only exception that comes through Ray's waiting as it is

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt:
        begun = (directory / "run.json").exists()
        hint = f"go on with: rayfed-ssl resume {directory}" if begun else "nothing had been written"
        typer.echo(f"\nstopped; {hint}", err=True)
        raise typer.Exit(128 + stopped_by) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell_degraded(degraded: bool) -> None:
    """Exit with a code of its own where rounds went on without clients that belonged to them."""
    if degraded:
        raise typer.Exit(DEGRADED)


def _present(directory: Path) -> None:
    """Draw the figures of a finished run and print its result."""
    from rayfed_ssl.records.run_record import RunRecord
    from rayfed_ssl.reports.figures import draw_run
    from rayfed_ssl.reports.summary import summarize
    from tune.cli.tables import print_run

    record = RunRecord.open(directory)
    print_run(summarize(record), draw_run(record))
    typer.echo(f"report: rayfed-ssl report {shlex.quote(str(directory))}")


@app.command()
def replay(
    directory: RunDirectory,
    round: Annotated[int, typer.Option(help="The round, from 1.")],
    client: Annotated[int, typer.Option(help="The client's id.")],
) -> None:
    """Run one client's step of a round again in this process, with a traceback if it fails."""
    with plain_errors():
        from rayfed_ssl.engine.round_loop import ClientError
        from rayfed_ssl.runs import replay as replay_step
        from rayfed_ssl.trees import digest, nbytes

        try:
            result = replay_step(directory, round, client)
        except ClientError as error:
            import traceback

            traceback.print_exception(error.__cause__ or error)
            raise
        for name, value in result.metrics.items():
            typer.echo(f"{name:16} {value:.6g}")
        typer.echo(f"{'upload':16} {nbytes(result.upload):,} bytes, sha256 {digest(result.upload)}")


@app.command()
def partition(
    words: Words = None,
    out: Annotated[Path, typer.Option(help="Picture to write (.png or .svg).")] = Path("partition.png"),
) -> None:
    """Show how the training samples are spread over clients, as a table and as a picture."""
    with plain_errors():
        from rayfed_ssl.engine.federation import Federation
        from rayfed_ssl.reports.figures import draw_partition
        from tune.cli.tables import print_partition

        federation = Federation.open(_load(words))
        print_partition(federation)
        typer.echo(f"picture: {draw_partition(federation, out)}")


@app.command(name="list")
def list_names(
    kind: Annotated[
        str,
        typer.Argument(
            help="methods, objectives, datasets, models, views, protocols, recipes, reproductions or sweeps"
        ),
    ],
) -> None:
    """List what can be named in a configuration."""
    with plain_errors():
        from tune.cli.tables import print_names

        print_names(kind)


@app.command()
def doctor(
    words: Words = None,
    measure: Annotated[bool, typer.Option("--measure", help="Run one client's step to see what it takes.")] = False,
    address: Address = None,
    cluster: Annotated[
        Path | None, typer.Option(help="Check this file for `ray up` instead; needs no cloud.", metavar="CLUSTER.YAML")
    ] = None,
) -> None:
    """Say what hardware is seen, how many clients would run at once, and what would not fit."""
    with plain_errors():
        if cluster is not None:
            from actors.cluster.cluster_file import check_cluster_file

            problems = check_cluster_file(cluster)
            if problems:
                fail("\n".join(problems), 1)
            typer.echo(f"{cluster} may go to `ray up`")
            return
        from tune.cli.doctor import examine

        if not examine(_load(words), measured=measure, address=address):
            raise typer.Exit(1)


app.add_typer(results.app)
app.add_typer(sweep_command.app)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as errors are printed: one line, without the place in the code."""
    typer.echo(f"warning: {message}", err=True)


def _leave_stuck_ray(leaving: SystemExit) -> None:
    """End at once where a start of Ray that was given up still goes on in a thread, which Python's own end would crash."""
    if leaving.code and any(thread.name == "ray-init" for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(leaving.code if isinstance(leaving.code, int) else 1)


def main() -> None:
    """Run the command line."""
    warnings.showwarning = _show_warning
    try:
        app()
    except SystemExit as leaving:
        _leave_stuck_ray(leaving)
        raise
    except BrokenPipeError:  # the reader of our output, `head` for example, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
