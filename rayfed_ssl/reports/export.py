"""From a run's record to an encoder in a file of its own (`rayfed_ssl.export.encoder_file` says what such a file holds)."""

from pathlib import Path

import torch

import rayfed_ssl
from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.augmentation import VIEWS
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.task_builder import default_views
from rayfed_ssl.errors import ConfigError, nearest
from rayfed_ssl.export.encoder_file import BODY, Export, Info, write_export
from rayfed_ssl.method import Encoder
from rayfed_ssl.models import build_encoder, encoder_info, encoders
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.training.state_parts import model_weights


def export_encoder(directory: Path, out: Path, *, encoder: str = "global", with_heads: bool = False) -> Export:
    """Write an encoder of a run, after its last committed round, into a file of its own.

    Args:
        directory: The run record; the run need not be finished.
        out: The file, replaced if there is one.
        encoder: Its name in the run.
        with_heads: Whether projector and the objective's other heads go with it.

    Raises:
        ConfigError: There is no such run or encoder, or the file's name does not end in .safetensors.
        CheckpointError: The run's files are damaged.
    """
    record = RunRecord.open(directory)
    config = record.config()
    round, state_sha256, found = _last_encoders(record, config)
    if encoder not in found:
        raise ConfigError(f"{directory} has no encoder {encoder!r}{nearest(encoder, found)}")
    chosen = found[encoder]
    weights = model_weights(chosen.weights)
    body = {name.removeprefix(BODY): value for name, value in weights.items() if name.startswith(BODY)}
    heads = {name: value for name, value in weights.items() if not name.startswith(BODY)} if with_heads else {}
    export = Export(_describe(record, config, encoder, chosen, round, state_sha256), body, heads)
    write_export(export, out)
    return export


def _last_encoders(record: RunRecord, config: Config) -> tuple[int, str, dict[str, Encoder]]:
    """Find the encoders after the last committed round: (round, state_sha256, encoder by name)."""
    if record.summary["finished"] is not None:
        last = record.summary["rounds"][-1]
        paths = sorted((record.directory / "encoders").glob("*.safetensors"))
        return last["round"], last["state_sha256"], {path.stem: checkpoints.read_file(path) for path in paths}
    state = checkpoints.latest(record.checkpoints)
    clients = checkpoints.StoredStates(state.clients, record.checkpoints)
    found = config.method.encoders(checkpoints.read(state.server, record.checkpoints), clients)
    return state.round, state.sha256, found


def _describe(record: RunRecord, config: Config, name: str, encoder: Encoder, round: int, state_sha256: str) -> Info:
    data = record.summary["data"]
    if "shape" not in data:  # a record from before it held shape and classes
        train = Federation.open(config).dataset.train
        data |= {"shape": list(train.shape), "classes": list(train.classes)}
    channels, size, _ = data["shape"]
    info = encoder_info(encoder.architecture)
    views = VIEWS[config.training.views or default_views(config.data.name, size)].first
    return Info(
        architecture=encoder.architecture,
        stem=encoders.stem_for(size, config.model.stem) if info.has_stem else "auto",
        channels=channels,
        size=size,
        feature_dim=info.feature_dim or build_encoder(info.name, channels=channels, size=size).feature_dim,
        mean=_per_channel(views.mean, channels),
        std=_per_channel(views.std, channels),
        classes=tuple(data["classes"]),
        method=record.summary["method"],
        encoder=name,
        dataset=data["name"],
        dataset_fingerprint=data["fingerprint"],
        seed=config.seed,
        round=round,
        state_sha256=state_sha256,
        version=rayfed_ssl.__version__,
    )


def _per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Give one value a channel: as they are, or their float32 average for all, which is what views compute with."""
    return values if len(values) == channels else (float(torch.tensor(values).mean()),) * channels
