"""Scores of existing encoders: those of a run, one of their files, or an exported encoder."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from filelock import FileLock

from rayfed_ssl.config.choices import configured
from rayfed_ssl.config.recipes import divide_settings
from rayfed_ssl.config.schema import Config
from rayfed_ssl.config.strict import fields
from rayfed_ssl.data.datasets import open_dataset
from rayfed_ssl.data.image_store import Dataset
from rayfed_ssl.data.view_recipes import Views
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.local_executor import LocalExecutor
from rayfed_ssl.engine.round_loop import Evaluation
from rayfed_ssl.engine.scoring import check_protocols, measure, subject_of
from rayfed_ssl.engine.task_builder import build_task
from rayfed_ssl.errors import ConfigError, nearest
from rayfed_ssl.evaluation.registry import PROTOCOLS, Protocol
from rayfed_ssl.export.encoders import encoders_of
from rayfed_ssl.machine.environment import compute_threads
from rayfed_ssl.method import Encoder, Metrics
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.encoder_file import check_weights
from rayfed_ssl.storage.saved_encoders import read_encoder
from rayfed_ssl.storage.tables import rows_if_any, write_table
from rayfed_ssl.training.task import Task

TABLE = "evaluations.parquet"

SCHEMA = pa.schema(
    [("round", pa.int32())]
    + [(name, pa.string()) for name in ("encoder", "protocol", "name")]
    + [("value", pa.float64()), ("settings", pa.string())]
)


@dataclass(frozen=True)
class Measurement:
    """Scores of one encoder by one protocol, in [0, 1] by score name; round 0 is before the first."""

    round: int
    encoder: str
    protocol: str
    scores: Metrics
    seconds: float
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Subjects:
    """Encoders and what it takes to measure them."""

    config: Config
    task: Task
    dataset: Dataset
    encoders: Mapping[str, Encoder]
    round: int


def rescore(
    directory: Path, *overrides: str, round: int | None = None, initial: bool = False, trust: bool = False
) -> tuple[Evaluation, ...]:
    """Evaluate a run's encoders by all protocols of its configuration; nothing in the run's directory changes.

    A round of None takes the last; `initial` scores the random encoder that the run began with instead. With `trust`, the
    modules that a run of somebody else names are imported.
    """
    federation, at, encoders = _encoders_of_run(directory, overrides, round, initial, trust)
    with compute_threads(federation.config.engine.threads):
        return tuple(federation.evaluate(encoder, name, at, final=True) for name, encoder in encoders.items())


def rescore_clients(
    directory: Path, *overrides: str, round: int | None = None, trust: bool = False
) -> tuple[Evaluation, ...]:
    """Score a run's clients again on samples of their own, as `rescore` does encoders; nothing where they have none."""
    record = RunRecord.open(directory, trust=trust)
    if (config := record.config(*overrides)).clients.test_fraction is None:
        return ()
    federation = Federation.open(config)
    record.check(federation)
    state = checkpoints.latest(record.checkpoints, round)
    return LocalExecutor(federation).score_clients(state, record.checkpoints)


def measure_encoders(
    path: Path,
    protocols: Sequence[str],
    settings: Sequence[str] = (),
    *,
    round: int | None = None,
    initial: bool = False,
    trust: bool = False,
) -> tuple[Measurement, ...]:
    """Run protocols on encoders; `append` keeps the scores in the run's directory.

    Args:
        path: A run, one of its encoders/*.safetensors, or an exported encoder.
        protocols: Names of protocols.
        settings: "epochs=5" changes a setting of every protocol here that has it, "linear-moco.epochs=5" one protocol's;
            "evaluation.…" and "engine.…" are settings of the run; an exported encoder takes "data.…" besides.
        round: A committed round of the run; None takes the last.
        initial: Measure the random encoder that the run began with instead.
        trust: Import the modules that files of somebody else name.

    Raises:
        ConfigError: There is no such encoder, protocol or setting, or the data are not fit for it.
        CheckpointError: A file is damaged.
    """
    by_protocol, overrides = _split(protocols, settings)
    chosen = [configured(name, by_protocol[name]) for name in protocols]
    subjects = _open(path, overrides, round, initial, trust)
    check_protocols(chosen, subjects.config, subjects.task, subjects.dataset)
    if (run := run_of(path)) is not None:
        read_measurements(run)  # a damaged table fails here, before hours of measuring
    with compute_threads(subjects.config.engine.threads):
        return tuple(_measure(subjects, name, protocol) for name in subjects.encoders for protocol in chosen)


def _measure(subjects: Subjects, name: str, protocol: Protocol) -> Measurement:
    start = time.perf_counter()
    subject = subject_of(subjects.encoders[name], subjects.config, subjects.task, subjects.dataset)
    if not protocol.suits(subject):
        raise ConfigError(f"{subjects.dataset.name} has fewer than two labeled classes: no accuracy can be measured")
    try:
        scores = dict(measure(protocol, subject))
    except ValueError as error:
        raise ConfigError(f"encoder {name!r} cannot be scored: {error}") from error
    seconds = time.perf_counter() - start
    return Measurement(subjects.round, name, protocol.name, scores, seconds, protocol.settings())


def append(directory: Path, measurements: Sequence[Measurement]) -> None:
    """Append to the run's evaluations.parquet, one process after the other."""
    rows = [
        {"round": m.round, "encoder": m.encoder, "protocol": m.protocol, "name": name, "value": value}
        | {"settings": json.dumps(m.settings, sort_keys=True)}
        for m in measurements
        for name, value in m.scores.items()
    ]
    with FileLock(directory / f".{TABLE}.lock"):  # not the run's lock, which is held for as long as the run lasts
        write_table(directory / TABLE, pa.Table.from_pylist(read_measurements(directory) + rows, schema=SCHEMA))


def read_measurements(directory: Path) -> list[dict[str, Any]]:
    """Read a run's evaluations.parquet, oldest first; raises ConfigError if it is damaged."""
    return rows_if_any(directory / TABLE, SCHEMA, "delete it and evaluate again")


def _split(protocols: Sequence[str], settings: Sequence[str]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Divide settings into those of each protocol and those of the run."""
    if unknown := [name for name in protocols if name not in PROTOCOLS]:
        usual = f": `evaluate RUN` without --protocol measures it, and {', '.join(PROTOCOLS)} are others"
        hint = usual if unknown[0] == "linear" else nearest(unknown[0], [*PROTOCOLS, "linear"])
        raise ConfigError(f"unknown protocol {unknown[0]!r}{hint}")
    if len(set(protocols)) < len(protocols):
        raise ConfigError(f"a protocol is named twice: {', '.join(protocols)}")
    own, overrides = [], []
    for setting in settings:
        key, equals, _ = setting.partition("=")
        first, _, rest = key.partition(".")
        if not equals or (rest and first not in PROTOCOLS):
            overrides.append(setting)
        elif rest and first not in protocols:
            raise ConfigError(f"{setting} sets a protocol that is not run: name it with --protocol {first}")
        else:
            own.append(setting)
    return divide_settings(own, {name: fields(type(PROTOCOLS[name])) for name in protocols}, "protocol"), overrides


def run_of(path: Path) -> Path | None:
    """Find the run that a directory or an encoder's file belongs to; an exported encoder belongs to none."""
    if path.is_dir():
        return path
    run = path.parent.parent
    return run if path.parent.name == "encoders" and (run / "run.json").is_file() else None


def _open(path: Path, overrides: Sequence[str], round: int | None, initial: bool, trust: bool) -> Subjects:
    run = run_of(path)
    if run != path and (round is not None or initial):
        raise ConfigError(f"{path} is one encoder and no run: --round and --initial take a run")
    if run is None:
        return _open_exported(path, overrides, trust)
    federation, at, encoders = _encoders_of_run(run, overrides, round, initial, trust)
    if run != path:
        encoders = {path.stem: read_encoder(path, trust=trust).encoder}
    return Subjects(federation.config, federation.task, federation.dataset, encoders, at)


def _encoders_of_run(
    run: Path, overrides: Sequence[str], round: int | None, initial: bool, trust: bool
) -> tuple[Federation, int, dict[str, Encoder]]:
    record = RunRecord.open(run, trust=trust)
    federation = Federation.open(record.config(*overrides))
    record.check(federation, draws=initial)
    if initial:
        return federation, 0, {"initial": Encoder(federation.task.encoder, federation.task.initial_weights())}
    state = checkpoints.latest(record.checkpoints, round)
    return federation, state.round, encoders_of(federation.method, state, record.checkpoints)


def _open_exported(path: Path, overrides: Sequence[str], trust: bool) -> Subjects:
    """Open the data that an exported encoder was trained on, or those that the overrides name."""
    export = read_encoder(path, trust=trust)
    check_weights(export, str(path))
    info = export.info
    tree = {
        "seed": info.seed,
        "rounds": 1,
        "method": "local",
        "objective": "simclr",
        "partition": {"name": "pooled"},
        "data": {"name": info.dataset, "size": info.size, "channels": info.channels},
        "model": {"encoder": info.architecture, "stem": info.stem},
        "training": {"epochs": 1},
    }
    config = Config.load(tree, *overrides, trust=False)
    given = config.model.image_size or config.data.size, config.data.channels, config.model.stem
    if given != (info.size, info.channels, info.stem):
        raise ConfigError(
            f"{path} takes images of {info.size} pixels and {info.channels} channels with stem {info.stem}: leave them as "
            "they are"
        )
    try:
        dataset = open_dataset(config.data.name, **config.data_settings)
        task = replace(build_task(config, dataset), views=Views(info.recipe, info.recipe))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    encoder = replace(export, heads={}).encoder  # they are of an objective that the file does not name
    return Subjects(config, task, dataset, {info.encoder: encoder}, info.round)
