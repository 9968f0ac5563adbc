"""`rayfed-ssl audit`: what a run's uploads reveal, measured by attacks."""

from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tune.cli.options import AsJson, Round, Trust
from tune.terminal import echo, print_json, print_table

if TYPE_CHECKING:
    from rayfed_ssl.records.metric_rows import Row


def audit(
    arguments: Annotated[
        list[str],
        typer.Argument(metavar="RUN... [KEY=VALUE]...", help="Runs, then settings of attacks such as views=20."),
    ],
    attack: Annotated[
        list[str] | None,
        typer.Option(help="Run this attack only (`list attacks`, or module:Class). Repeatable."),
    ] = None,
    round: Round = None,
    client: Annotated[list[int] | None, typer.Option(help="Attack this client's upload only. Repeatable.")] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="Ray tasks at a time; 0 attacks one client after the other in this process.")
    ] = 0,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Measure what the uploads of a run's round reveal, and write RUN/audit.parquet.

    Uploads are computed again, so that they had not to be stored. Settings of an attack are given by their name, or as
    encoder-mi.views=20 for one of several.
    """
    from rayfed_ssl.analysis.audit import audit as audit_run
    from rayfed_ssl.errors import ConfigError
    from rayfed_ssl.records.audit_rows import TABLE

    directories = [Path(item) for item in arguments if "=" not in item or Path(item).is_dir()]
    if not directories:
        raise ConfigError("name a run's directory before the settings of attacks")
    settings = [item for item in arguments if Path(item) not in directories]
    printed: list[dict[str, Any]] = []
    attacks = _settings(attack, settings)
    work: dict[str, Any] = {}
    if workers:
        from actors.audit import in_tasks

        work["work"] = in_tasks(workers)
    for directory in directories:
        echo(f"{directory}: training and attacks of the first client begin, a line follows for each", err=True)
        rows, notes = audit_run(
            directory,
            attacks,
            required=attack is not None,
            round=round,
            clients=client,
            trust=trust,
            on_client=lambda client_id: echo(f"client {client_id} done", err=True),
            **work,
        )
        if as_json:
            printed += [
                {"run": str(directory)} | {k: None if v in (inf, -inf) else v for k, v in row.items()} for row in rows
            ]
            continue
        for note in notes:
            echo(f"note: {note}", err=True)
        print_audit(rows)
        echo(f"file: {directory / TABLE}")
    if as_json:
        print_json(printed)


def _settings(names: list[str] | None, settings: list[str]) -> dict[str, dict[str, Any]] | None:
    """Give each attack its settings; None where all built-in ones run as they are."""
    from rayfed_ssl.attacks import ATTACK
    from rayfed_ssl.config.recipes import divide_settings
    from rayfed_ssl.config.strict import fields
    from rayfed_ssl.errors import ConfigError, nearest
    from rayfed_ssl.foreign import plugins

    plugins.allow(names or [])
    settings_of = {name: fields(ATTACK.model(name)) for name in names or ATTACK.names()}
    if not settings:
        return None if names is None else {name: {} for name in names}
    for setting in settings:
        if (first := setting.partition("=")[0].rpartition(".")[0]) and first not in settings_of:
            raise ConfigError(f"{setting} sets an attack that is not run{nearest(first, settings_of)}")
    return divide_settings(settings, settings_of, "attack")


def print_audit(rows: Iterable["Row"]) -> None:
    """Print what attacks reached: the mean over clients, and the smallest and the largest of them."""
    from rayfed_ssl.formats import number
    from rayfed_ssl.records.audit_rows import Reached, reached

    lines = [
        [*each[:3], *("" if n is None else number(n) for n in each[3:6]), str(each.clients)] for each in reached(rows)
    ]
    print_table(Reached._fields, lines, text=3)
