"""A run's encoders: written at its end, read again, and put into files elsewhere."""

import shlex
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import nn

import rayfed_ssl
from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.view_recipes import views_named
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.task_builder import default_views
from rayfed_ssl.errors import CheckpointError, ConfigError, nearest, reason
from rayfed_ssl.method import Encoder, Method
from rayfed_ssl.models import build_encoder, encoder_info
from rayfed_ssl.models.encoders import stem_for
from rayfed_ssl.privacy.protection import enclosed, ruled
from rayfed_ssl.records.config_file import FILE
from rayfed_ssl.records.manifest import RunManifest
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.addresses import Directory
from rayfed_ssl.storage.checkpoints import RunState
from rayfed_ssl.storage.encoder_file import Export, Info
from rayfed_ssl.storage.filesystem import LocalDirectory, write_atomically
from rayfed_ssl.storage.saved_encoders import read_encoder
from rayfed_ssl.trees import digest


def encoders_of(method: Method, state: RunState, directory: Directory) -> dict[str, Encoder]:
    """Read from a checkpoint the encoders that a method shows.

    Raises:
        CheckpointError: It is damaged, or another method's.
    """
    clients, server = checkpoints.StoredStates(state.clients, directory), checkpoints.read(state.server, directory)
    try:
        return method.encoders(server, clients)
    except (AttributeError, LookupError, RuntimeError, TypeError) as error:
        raise CheckpointError(
            f"the states of round {state.round} are not this method's ({reason(error)}): start the run anew"
        ) from error


def write_encoders(record: RunRecord, federation: Federation) -> dict[str, str]:
    """Write a run's encoders after its last round, with their heads, into RUN/encoders; gives each one's digest."""
    state, files = checkpoints.latest(record.checkpoints), LocalDirectory(record.directory / "encoders")
    files.path.mkdir(exist_ok=True)
    body = cache(lambda architecture: federation.task.blank(architecture).encoder)
    digests = {}
    for name, encoder in encoders_of(federation.method, state, record.checkpoints).items():
        architecture = encoder.architecture
        info = _describe(record.manifest, federation.config, name, architecture, body(architecture), state)
        export = Export.of(info, encoder)
        files.write(f"{name}.safetensors", export.chunks())
        digests[name] = digest(export.encoder)
    return digests


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
    imported. The directory of the file is made where it is missing.

    Raises:
        ConfigError: There is no such run or encoder, or the file's name does not end in .safetensors.
        CheckpointError: The run's files are damaged.
    """
    export, out = last_encoder(RunRecord.open(Path(directory), trust=trust), encoder), Path(out)
    if out.suffix != ".safetensors":
        raise ConfigError(f"an exported encoder's name ends in .safetensors, got {out}")
    export = export if with_heads else replace(export, heads={})
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, export.chunks())
    return export


def last_encoder(record: RunRecord, name: str | None = None) -> Export:
    """Read an encoder after the last committed round, with its heads; without a name, the global one or else the first.

    Raises:
        ConfigError: There is no encoder of this name.
        CheckpointError: The run's files are damaged.
    """
    config = record.config(opens_data=False)
    if record.manifest.finished is not None:
        files = {path.stem: path for path in (record.directory / "encoders").glob("*.safetensors")}
        return read_encoder(files[_choose(record, files, name)], trust=record.trust)
    state = checkpoints.latest(record.checkpoints)
    encoders = encoders_of(enclosed(config, ruled(config), ()), state, record.checkpoints)
    name = _choose(record, encoders, name)
    architecture = encoders[name].architecture
    try:
        channels, size, _ = record.manifest.data.shape
        with torch.device("meta"):
            body = build_encoder(architecture, channels=channels, size=config.model.image_size or size)
        return Export.of(_describe(record.manifest, config, name, architecture, body, state), encoders[name])
    except (LookupError, ValueError) as error:
        raise ConfigError(
            f"{record.directory / FILE} does not fit the encoder {name!r} ({reason(error)}): restore it from a copy"
        ) from None


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


def _describe(
    manifest: RunManifest, config: Config, name: str, architecture: str, body: nn.Module, state: RunState
) -> Info:
    channels, stored, _ = manifest.data.shape
    size = config.model.image_size or stored
    views = views_named(config.training.views or default_views(config.data.name, stored)).first
    return Info(
        architecture=architecture,
        stem=stem_for(size, config.model.stem) if encoder_info(architecture).has_stem else "auto",
        channels=channels,
        size=size,
        feature_dim=int(body.feature_dim),  # type: ignore[arg-type]  # nn.Module knows no attributes
        mean=_per_channel(views.mean, channels),
        std=_per_channel(views.std, channels),
        classes=tuple(manifest.data.classes),
        method=manifest.method,
        encoder=name,
        dataset=manifest.data.name,
        dataset_fingerprint=manifest.data.fingerprint,
        seed=config.seed,
        round=state.round,
        state_sha256=state.sha256,
        version=rayfed_ssl.__version__,
    )


def _per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Give one value a channel: as they are, or their float32 average for all, which is what views compute with."""
    return values if len(values) == channels else (float(torch.tensor(values).mean()),) * channels
