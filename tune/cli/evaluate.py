"""`rayfed-ssl evaluate`: score a run's encoders again."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tune.cli.errors import written
from tune.cli.options import AsJson, Round, Trust
from tune.terminal import echo, print_json

if TYPE_CHECKING:
    from rayfed_ssl.analysis.rescoring import Measurement
    from rayfed_ssl.engine.round_loop import Evaluation
    from rayfed_ssl.method import Metrics


def evaluate(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A run's directory; with --protocol also a file of its encoders, or an exported encoder.",
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Changes of evaluation.* and engine.*, or of protocols."),
    ] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            help="Run this protocol only (`list protocols`), and append to evaluations.parquet. Repeatable.",
        ),
    ] = None,
    round: Round = None,
    initial: Annotated[
        bool, typer.Option("--initial", help="Score the random encoder that the run started from.")
    ] = False,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Score a run's encoders again, with other settings of evaluation.* or by the papers' protocols.

    Settings of a protocol are given by their name, such as epochs=5, or linear-moco.epochs=5 for one of several.
    """
    from dataclasses import asdict

    from rayfed_ssl.analysis.rescoring import TABLE, append, measure_encoders, rescore, rescore_clients, run_of
    from rayfed_ssl.engine.run_watch import probe_remarks, scaled_probes
    from rayfed_ssl.errors import ConfigError
    from rayfed_ssl.evaluation.registry import PROTOCOLS
    from rayfed_ssl.records.metric_rows import score_rows
    from rayfed_ssl.records.own_scores import own_scores
    from rayfed_ssl.records.run_record import RunRecord
    from tune.cli.run_summary import OF_CHOICE, print_own_scores, print_protocols, print_scores

    overrides = settings or []
    if not protocol and path.is_file():
        raise ConfigError(f"{path} is an encoder's file: add --protocol, {', '.join(PROTOCOLS)}")
    measured: Sequence[Measurement | Evaluation]
    scores: dict[str, Metrics] = {}
    clients: Sequence[Evaluation] = ()
    if protocol:
        measured = measurements = measure_encoders(path, protocol, overrides, round=round, initial=initial, trust=trust)
        run = run_of(path)
        is_written = run is not None and written(partial(append, run, measurements))
        for item in measurements:
            scores[item.encoder] = {**scores.get(item.encoder, {}), **item.scores}
        scaled = {item.protocol for item in measurements if item.settings.get("standardize")}
        samples = None if run is None else RunRecord.open(run, tables=False).manifest.data.test
    else:
        evaluations = rescore(path, *overrides, round=round, initial=initial, trust=trust)
        clients = () if initial else rescore_clients(path, *overrides, round=round, trust=trust)
        measured = (*evaluations, *clients)
        run, is_written = path, False
        scores |= {evaluation.encoder: evaluation.metrics for evaluation in evaluations}
        record = RunRecord.open(path, tables=False, trust=trust)
        scaled, samples = scaled_probes(record.config(*overrides).evaluation), record.manifest.data.test
    if as_json:
        print_json([asdict(item) for item in measured])
    else:
        echo(f"round {measured[0].round}")
        if not protocol:
            print_scores(scores, {}, verbose=True)
            echo()
            print_own_scores(own_scores(score_rows(clients), measured[0].round))
        print_protocols(scores, protocols=dict.fromkeys(protocol or OF_CHOICE))
        if is_written:
            echo(f"appended to {run}/{TABLE}")
    for encoder, metrics in scores.items():
        for remark in probe_remarks(metrics, scaled, samples):
            echo(f"warning: {encoder}: {remark}", err=True)
