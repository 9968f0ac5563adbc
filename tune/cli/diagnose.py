"""`rayfed-ssl diagnose`: a run's encoders compared without labels."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from tune.cli.errors import written
from tune.cli.options import AsJson, Round, RunDirectory, Trust
from tune.terminal import echo, print_json, print_table

MOST_ENCODERS = 12
"""Encoders of a matrix that is printed whole; a larger one is summed up, and whole in the file only."""


def diagnose(directory: RunDirectory, round: Round = None, trust: Trust = False, as_json: AsJson = False) -> None:
    """Compare a run's encoders without labels, and write RUN/diagnostics.json."""
    from rayfed_ssl.analysis.diagnosis import FILE
    from rayfed_ssl.analysis.diagnosis import diagnose as diagnose_run

    diagnostics = diagnose_run(directory, round, trust=trust)
    is_written = written(lambda: diagnostics.write(directory))
    if as_json:
        print_json(diagnostics.model_dump())
        return
    print_diagnosis(diagnostics.model_dump())
    if is_written:
        echo(f"file: {directory / FILE}")


def print_diagnosis(diagnosis: Mapping[str, Any]) -> None:
    """Print what `rayfed_ssl.analysis.diagnosis` measured."""
    echo(f"round {diagnosis['round']}, {diagnosis['samples']} {diagnosis['split']} images without labels")
    _print_encoders(diagnosis["encoders"])
    for matrix in diagnosis["matrices"].values():
        echo()
        echo(f"{matrix['title']}" + (f" ({matrix['unit']})" if matrix["unit"] else ""))
        _print_matrix(matrix)
    if diagnosis["false_negatives"] is not None:
        echo()
        echo("false negatives, by the partition's labels")
        _print_false_negatives(diagnosis["false_negatives"])
    echo()
    for note in diagnosis["notes"]:
        echo(f"note: {note}")


def _print_encoders(encoders: Mapping[str, Mapping[str, Any]]) -> None:
    columns = ("architecture", "width", "feature_std", "effective_rank", "alignment", "uniformity")
    rows = [[name, *(_number(values.get(column)) for column in columns)] for name, values in encoders.items()]
    print_table(("encoder", *(column.replace("_", " ") for column in columns)), rows)


def _print_matrix(matrix: Mapping[str, Any]) -> None:
    names, values = matrix["encoders"], matrix["values"]
    if len(names) <= MOST_ENCODERS:
        print_table(("", *names), ([name, *map(_number, row)] for name, row in zip(names, values, strict=True)))
        return
    pairs = [value for i, row in enumerate(values) for value in row[:i] if value is not None]
    summary = [_number(reduce(pairs)) for reduce in (min, fmean, max)]
    print_table(("", "minimum", "mean", "maximum"), [[f"{len(names)} encoders", *summary]])


def _print_false_negatives(ratios: Mapping[str, Any]) -> None:
    from rayfed_ssl.formats import percent

    clients = ratios["clients"]
    columns = ratios["local"], ratios["fused"], ratios["remote"] or [None] * len(clients)
    rows = [[str(client), *map(percent, row)] for client, *row in zip(clients, *columns, strict=True)]
    print_table(("client", "own negatives", "own and others'", "others'"), rows)


def _number(value: float | str | None) -> str:
    from rayfed_ssl.formats import number

    return value if isinstance(value, str) else number(value)
