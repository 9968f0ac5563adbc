"""Learned encoders on disk: where they are and how they are read."""

import hashlib
import shlex
from pathlib import Path

from rayfed_ssl.errors import CheckpointError, ConfigError
from rayfed_ssl.foreign.reading import open_regular, read_json
from rayfed_ssl.method import Encoder
from rayfed_ssl.models.pretrained import Start, named_as_layers
from rayfed_ssl.storage.encoder_file import BODY, Export, foreign_tensors, read_export
from rayfed_ssl.trees import Weights, digest


def encoder_file(path: Path) -> Path:
    """Find the file of an encoder.

    Args:
        path: A finished run, whose global or only encoder is meant, or a file.

    Raises:
        ConfigError: There is none, or several.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise ConfigError(f"there is no encoder at {path}: name a finished run or a .safetensors file")
    files = sorted((path / "encoders").glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{path} holds no encoders: name a finished run, or resume it first")
    chosen = [file for file in files if file.stem == "global"] or files
    if len(chosen) > 1:
        raise ConfigError(
            f"{path} holds {len(files)} encoders: name one of them, such as {path / 'encoders' / files[0].name}"
        )
    return chosen[0]


def read_encoder(path: Path, *, trust: bool = False) -> Export:
    """Read an encoder's file, with its heads; `trust` as in `read_export`.

    Raises:
        ConfigError: The file holds no encoder.
        CheckpointError: It is a run's, and not what the run wrote there.
    """
    export = read_export(path, trust=trust)
    _check_digest(path.absolute(), export.encoder)
    return export


def _check_digest(path: Path, encoder: Encoder) -> None:
    """Refuse a file among a run's final encoders that is not what the run wrote there."""
    record = path.parent.parent / "run.json"
    if path.parent.name != "encoders" or not record.is_file():
        return
    again = f"`rayfed-ssl resume {shlex.quote(str(record.parent))}` writes it again where its checkpoints are kept"
    try:
        sha256 = read_json(record)["encoders"][path.stem]
    except (LookupError, OSError, TypeError, ValueError):
        raise CheckpointError(f"{record} has no digest of {path.name}: {again}") from None
    if sha256 != digest(encoder):
        raise CheckpointError(f"{path} does not match its digest in run.json: {again}")


def read_start(path: Path, architecture: str = "", expected: Weights | None = None) -> Start:
    """Read the encoder that a run starts from; errors as in `encoder_file` and `read_encoder`.

    Args:
        path: As `encoder_file` takes it.
        architecture: The encoder that the run trains, for a file that another program has written.
        expected: Its weights, named "encoder.…"; None refuses such a file.
    """
    file = encoder_file(path)
    with open_regular(file) as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    if expected is not None and (tensors := foreign_tensors(file)) is not None:
        return named_as_layers(tensors, architecture, expected, file, sha256)
    export = read_encoder(file)
    body = {BODY + name: value for name, value in export.weights.items()}
    return Start(export.info.architecture, body, file, sha256)
