"""`rayfed-ssl evaluate`: score a run's encoders again."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tune.cli.errors import written
from tune.cli.options import AsJson, Round, Trust
from tune.terminal import echo, print_json

if TYPE_CHECKING:
    from rayfed_ssl.analysis.rescoring import Measurement
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

    from rayfed_ssl.analysis.rescoring import TABLE, append, measure_encoders, rescore, run_of
    from rayfed_ssl.engine.run_watch import scaled_probes
    from rayfed_ssl.errors import ConfigError
    from rayfed_ssl.evaluation.registry import PROTOCOLS
    from rayfed_ssl.records.run_record import RunRecord
    from tune.cli.run_summary import print_protocols, print_scores

    overrides = settings or []
    if not protocol and path.is_file():
        raise ConfigError(f"{path} is an encoder's file: add --protocol, {', '.join(PROTOCOLS)}")
    if not protocol:
        evaluations = rescore(path, *overrides, round=round, initial=initial, trust=trust)
        scores = {evaluation.encoder: evaluation.metrics for evaluation in evaluations}
        if as_json:
            print_json([asdict(evaluation) for evaluation in evaluations])
        else:
            echo(f"round {evaluations[0].round}")
            print_scores(scores, {}, verbose=True)
            print_protocols(scores)
        record = RunRecord.open(path, tables=False, trust=trust)
        _print_remarks(scores, scaled_probes(record.config(*overrides).evaluation), record.manifest.data.test)
        return
    measurements, run = (
        measure_encoders(path, protocol, overrides, round=round, initial=initial, trust=trust),
        run_of(path),
    )
    is_written = run is not None and written(lambda: append(run, measurements))
    if as_json:
        print_json([asdict(measurement) for measurement in measurements])
        return
    _print_measurements(measurements, None if run is None else RunRecord.open(run, tables=False).manifest.data.test)
    if run is not None and is_written:
        echo(f"appended to {run / TABLE}")


def _print_measurements(measurements: "Sequence[Measurement]", samples: int | None) -> None:
    """Print a row for each protocol and encoder, with mean and minimum over clients."""
    from tune.cli.run_summary import print_protocols

    scores_by_encoder: dict[str, Metrics] = {}
    for item in measurements:
        scores_by_encoder[item.encoder] = {**scores_by_encoder.get(item.encoder, {}), **item.scores}
    echo(f"round {measurements[0].round}")
    print_protocols(scores_by_encoder, protocols=dict.fromkeys(item.protocol for item in measurements))
    scaled = {item.protocol for item in measurements if item.settings.get("standardize")}
    _print_remarks(scores_by_encoder, scaled, samples)


def _print_remarks(scores: "Mapping[str, Metrics]", scaled: Collection[str], samples: int | None) -> None:
    """Say which probes' scores say little about their encoder."""
    from rayfed_ssl.engine.run_watch import probe_remarks

    for encoder, metrics in scores.items():
        for remark in probe_remarks(metrics, scaled, samples):
            echo(f"warning: {encoder}: {remark}", err=True)
