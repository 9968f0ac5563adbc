"""From a run's record to an encoder in a file of its own, as `rayfed_ssl.storage.encoder_file` describes it."""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch

import rayfed_ssl
from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.view_recipes import views_named
from rayfed_ssl.engine.task_builder import default_views
from rayfed_ssl.errors import ConfigError, nearest, reason
from rayfed_ssl.method import Encoder
from rayfed_ssl.models import build_encoder, encoder_info
from rayfed_ssl.models.encoders import stem_for
from rayfed_ssl.privacy.protection import protected
from rayfed_ssl.records.config_file import FILE
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.encoder_file import BODY, Export, Info, check_weights, write_export
from rayfed_ssl.storage.saved_encoders import read_encoder
from rayfed_ssl.training.state_parts import model_weights
from rayfed_ssl.trees import Weights


def export_encoder(
    directory: Path | str,
    out: Path | str,
    *,
    encoder: str | None = None,
    with_heads: bool = False,
    trust: bool = False,
) -> Export:
    """Write an encoder of a run, after its last committed round, into a file of its own, with its heads on request.

    Without a name it is the global one, or else the first. With `trust`, the modules that a run of somebody else names are
    imported.

    Raises:
        ConfigError: There is no such run or encoder, or the file's name does not end in .safetensors.
        CheckpointError: The run's files are damaged.
    """
    export = export_of(RunRecord.open(Path(directory), trust=trust), encoder, with_heads=with_heads)
    write_export(export, Path(out))
    return export


def export_of(record: RunRecord, encoder: str | None = None, *, with_heads: bool = False) -> Export:
    """Describe an encoder of a run after its last committed round; errors as in `export_encoder`."""
    saved = last_encoder(record, encoder)
    weights = model_weights(saved.encoder.weights) if with_heads else {}
    heads = {name: value for name, value in weights.items() if not name.startswith(BODY)}
    return Export(saved.info, _body(saved.encoder), heads)


class SavedEncoder(NamedTuple):
    """An encoder with its heads, and what describes it."""

    encoder: Encoder
    info: Info


def last_encoder(record: RunRecord, name: str | None = None) -> SavedEncoder:
    """Read an encoder after the last committed round; without a name, the global one or else the first."""
    if record.manifest.finished is not None:
        files = {path.stem: path for path in (record.directory / "encoders").glob("*.safetensors")}
        name, last = _choose(record, files, name), record.manifest.rounds[-1]
        encoder, round, state_sha256 = read_encoder(files[name], trust=record.trust), last.round, last.state_sha256
    else:
        state = checkpoints.latest(record.checkpoints)
        clients = checkpoints.StoredStates(state.clients, record.checkpoints)
        config = record.config(opens_data=False)
        method = protected(config.method, config.privacy, ())
        encoders = method.encoders(checkpoints.read(state.server, record.checkpoints), clients)
        name = _choose(record, encoders, name)
        encoder, round, state_sha256 = encoders[name], state.round, state.sha256
    config = record.config(opens_data=False)
    try:
        info = _describe(record, config, name, encoder.architecture, round, state_sha256)
    except (LookupError, ValueError) as error:
        raise ConfigError(
            f"{record.directory / FILE} does not fit the encoder {name!r} ({reason(error)}): restore it from a copy"
        ) from None
    check_weights(Export(info, _body(encoder), {}), f"{record.directory}: {name}")
    return SavedEncoder(encoder, info)


def _choose(record: RunRecord, encoders: Iterable[str], name: str | None) -> str:
    names = sorted(encoders, key=lambda name: (len(name), name))
    if not names:
        again = f"`rayfed-ssl resume {shlex.quote(str(record.directory))}` writes them again"
        raise ConfigError(f"{record.directory} has no encoders: {again} where its checkpoints are kept")
    if name is None:
        return "global" if "global" in names else names[0]
    if name not in names:
        raise ConfigError(f"{record.directory} has no encoder {name!r}{nearest(name, names)}")
    return name


def _body(encoder: Encoder) -> Weights:
    weights = model_weights(encoder.weights)
    return {name.removeprefix(BODY): value for name, value in weights.items() if name.startswith(BODY)}


def _describe(record: RunRecord, config: Config, name: str, architecture: str, round: int, state_sha256: str) -> Info:
    data = record.manifest.data
    channels, stored, _ = data.shape
    size = config.model.image_size or stored
    info = encoder_info(architecture)
    with torch.device("meta"):
        body = build_encoder(architecture, channels=channels, size=size)
    views = views_named(config.training.views or default_views(config.data.name, stored)).first
    return Info(
        architecture=architecture,
        stem=stem_for(size, config.model.stem) if info.has_stem else "auto",
        channels=channels,
        size=size,
        feature_dim=body.feature_dim,
        mean=_per_channel(views.mean, channels),
        std=_per_channel(views.std, channels),
        classes=tuple(data.classes),
        method=record.manifest.method,
        encoder=name,
        dataset=data.name,
        dataset_fingerprint=data.fingerprint,
        seed=config.seed,
        round=round,
        state_sha256=state_sha256,
        version=rayfed_ssl.__version__,
    )


def _per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Give one value a channel: as they are, or their float32 average for all, which is what views compute with."""
    return values if len(values) == channels else (float(torch.tensor(values).mean()),) * channels
