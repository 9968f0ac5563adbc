"""Named protocols on encoders that are there already: those of a run, one of their files, or an exported encoder."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from filelock import FileLock

from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.augmentation import Views
from rayfed_ssl.data.datasets import open_dataset
from rayfed_ssl.data.image_store import Dataset
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.scoring import check_protocols, measure, subject_of
from rayfed_ssl.engine.task_builder import build_task
from rayfed_ssl.environment import compute_threads
from rayfed_ssl.errors import ConfigError, nearest
from rayfed_ssl.evaluation.registry import PROTOCOLS, Protocol, configured
from rayfed_ssl.export.encoder_file import BODY, read_export
from rayfed_ssl.export.saved_encoders import read_encoder
from rayfed_ssl.method import Encoder, Metrics
from rayfed_ssl.records.run_record import RunRecord, encoders_of
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.tables import write_table
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import misfit

TABLE = "evaluations.parquet"

SCHEMA = pa.schema(
    [
        ("round", pa.int32()),
        ("encoder", pa.string()),
        ("protocol", pa.string()),
        ("name", pa.string()),
        ("value", pa.float64()),
        ("settings", pa.string()),
    ]
)


@dataclass(frozen=True)
class Measurement:
    """What one protocol found out about one encoder.

    Attributes:
        round: After which the encoder was taken; 0 for the one that a run began with.
        encoder: "global", "client-3", "initial".
        protocol: The protocol's name.
        scores: Accuracies in [0, 1] by score name.
        seconds: How long it took.
        settings: The protocol's settings.
    """

    round: int
    encoder: str
    protocol: str
    scores: Metrics
    seconds: float
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    """Encoders and what it takes to measure them."""

    config: Config
    task: Task
    dataset: Dataset
    encoders: Mapping[str, Encoder]
    round: int
    run: Path | None


def measure_encoders(
    path: Path,
    names: Sequence[str],
    words: Sequence[str] = (),
    *,
    round: int | None = None,
    initial: bool = False,
    on_unwritten: Callable[[OSError], None] | None = None,
) -> tuple[Measurement, ...]:
    """Run protocols on encoders, and append what they find to the run's evaluations.parquet if there is a run.

    Args:
        path: A run, one of its encoders/*.safetensors, or an exported encoder.
        names: Protocols.
        words: "epochs=5" changes a setting of every protocol here that has it, "linear-moco.epochs=5" one protocol's;
            "evaluation.…" and "engine.…" are settings of the run, and an exported encoder, which knows no paths, takes
            "data.…" besides.
        round: A committed round of the run; None takes the last.
        initial: Measure the random encoder that the run began with instead.
        on_unwritten: Is told once where the run cannot be written; None lets the error out.

    Raises:
        ConfigError: There is no such encoder, protocol or setting, or the data do not do.
        CheckpointError: A file is damaged.
        OSError: The run cannot be written, and nobody is told.
    """
    own, overrides = _split(names, words)
    protocols = [configured(name, own[name]) for name in names]
    found = _find(path, overrides, round, initial)
    check_protocols(protocols, found.config, found.task, found.dataset)
    results: list[Measurement] = []
    unwritten: OSError | None = None
    if found.run is not None:
        read_measurements(found.run)  # a damaged table says so before hours of measuring
    with compute_threads(found.config.engine.threads):
        for name, encoder in found.encoders.items():
            results += [_measure(found, name, encoder, protocol) for protocol in protocols]
            if found.run is None or unwritten is not None:
                continue
            try:
                append(found.run, results[-len(protocols) :])
            except OSError as error:
                if on_unwritten is None:
                    raise
                unwritten = error
                on_unwritten(error)
    return tuple(results)


def _measure(found: Found, name: str, encoder: Encoder, protocol: Protocol) -> Measurement:
    start = time.perf_counter()
    subject = subject_of(encoder, found.config, found.task, found.dataset)
    if not protocol.suits(subject):
        raise ConfigError(f"{found.dataset.name} has fewer than two labeled classes: no accuracy can be measured")
    try:
        scores = dict(measure(protocol, subject))
    except ValueError as error:
        raise ConfigError(f"encoder {name!r} cannot be scored: {error}") from error
    seconds = time.perf_counter() - start
    return Measurement(found.round, name, protocol.name, scores, seconds, protocol.settings())


def append(directory: Path, measurements: Sequence[Measurement]) -> None:
    """Append to the run's evaluations.parquet, one process after the other."""
    rows = [
        {
            "round": one.round,
            "encoder": one.encoder,
            "protocol": one.protocol,
            "name": name,
            "value": value,
            "settings": json.dumps(one.settings, sort_keys=True),
        }
        for one in measurements
        for name, value in one.scores.items()
    ]
    with FileLock(directory / f".{TABLE}.lock"):  # of its own: the run's is held for as long as it runs
        write_table(directory / TABLE, pa.Table.from_pylist(read_measurements(directory) + rows, schema=SCHEMA))


def read_measurements(directory: Path) -> list[dict[str, Any]]:
    """Read a run's evaluations.parquet: round, encoder, protocol, name, value, settings as JSON; oldest first.

    Raises:
        ConfigError: It is damaged.
    """
    path = directory / TABLE
    if not path.exists():
        return []
    try:
        rows: list[dict[str, Any]] = pq.read_table(path, schema=SCHEMA).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"{path} is damaged ({error}): delete it and evaluate again") from None
    return rows


def _split(names: Sequence[str], words: Sequence[str]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Tell settings of protocols from those of the run."""
    for name in names:
        if name not in PROTOCOLS:
            raise ConfigError(f"unknown protocol {name!r}{nearest(name, PROTOCOLS)}")
    if len(set(names)) < len(names):
        raise ConfigError(f"a protocol is named twice: {', '.join(names)}")
    own: dict[str, dict[str, Any]] = {name: {} for name in names}
    overrides = []
    for word in words:
        key, equals, text = word.partition("=")
        first, _, rest = key.partition(".")
        if not equals or (rest and first not in PROTOCOLS):
            overrides.append(word)
            continue
        if rest and first not in own:
            raise ConfigError(f"{word} sets a protocol that is not run: name it with --protocol {first}")
        having = [first] if rest else [name for name in names if key in PROTOCOLS[name].settings()]
        if not having:
            known = {setting for name in names for setting in PROTOCOLS[name].settings()}
            raise ConfigError(f"no protocol here has a setting {key!r}{nearest(key, known)}")
        for name in having:
            own[name][rest or key] = _plain(text)
    return own, overrides


def _plain(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def run_of(path: Path) -> Path | None:
    """Find the run that a directory or an encoder's file belongs to; an exported encoder belongs to none."""
    if path.is_dir():
        return path
    run = path.parent.parent
    return run if path.parent.name == "encoders" and (run / "run.json").is_file() else None


def _find(path: Path, overrides: Sequence[str], round: int | None, initial: bool) -> Found:
    run = run_of(path)
    if run == path:
        return _in_run(path, None, overrides, round, initial)
    if run is not None:
        if round is not None or initial:
            raise ConfigError(f"{path} is one encoder: --round and --initial take a run, {run}")
        return _in_run(run, path, overrides, None, False)
    if round is not None or initial:
        raise ConfigError(f"{path} is no run: --round and --initial take one")
    return _exported(path, overrides)


def _in_run(run: Path, file: Path | None, overrides: Sequence[str], round: int | None, initial: bool) -> Found:
    record = RunRecord.open(run)
    federation = Federation.open(record.config(*overrides))
    record.check(federation, draws=initial)
    if initial:
        at, encoders = 0, {"initial": Encoder(federation.task.encoder, federation.task.initial_weights())}
    else:
        state = checkpoints.latest(record.checkpoints, round)
        at, encoders = state.round, encoders_of(federation, state, record.checkpoints)
    if file is not None:
        encoders = {file.stem: read_encoder(file)}
        _check_whole(file, encoders[file.stem], federation.task)
    return Found(federation.config, federation.task, federation.dataset, encoders, at, run)


def _exported(path: Path, overrides: Sequence[str]) -> Found:
    """Open the data that an exported encoder was trained on, or those that the overrides name."""
    export = read_export(path)
    info = export.info
    tree = {
        "seed": info.seed,
        "rounds": 1,
        "method": "local",
        "objective": "simclr",
        "data": {"name": info.dataset, "size": info.size, "channels": info.channels},
        "model": {"encoder": info.architecture, "stem": info.stem},
        "training": {"epochs": 1},
    }
    config = Config.load(tree, *overrides)
    if (config.data.size, config.data.channels) != (info.size, info.channels):
        raise ConfigError(
            f"{path} takes images of {info.size} pixels and {info.channels} channels: leave both as they are"
        )
    options = config.data.model_dump(exclude={"name"})
    try:
        dataset = open_dataset(config.data.name, **options)
        task = replace(build_task(config, dataset), views=Views(info.recipe, info.recipe))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    body = {BODY + name: value for name, value in export.weights.items()}
    encoder = Encoder(info.architecture, body)  # without heads: they are of an objective that the file does not name
    _check_whole(path, encoder, task)
    return Found(config, task, dataset, {info.encoder: encoder}, info.round, None)


def _check_whole(path: Path, encoder: Encoder, task: Task) -> None:
    """Refuse a file that lacks a part of its encoder, which would be measured with random weights in its place."""
    want = {BODY + name: value for name, value in task.blank(encoder.architecture).encoder.state_dict().items()}
    have = {name: value for name, value in encoder.weights.items() if name.startswith(BODY)}
    if wrong := misfit(have, want):
        name, got, expected = wrong
        raise ConfigError(
            f"{path} does not hold a whole {encoder.architecture} for these images: its {name} is {got} where "
            f"{expected} is expected; export the encoder again, and leave model.* as it was"
        )
