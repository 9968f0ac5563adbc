"""What a run may start from in place of random weights: an encoder that another run has learned."""

from dataclasses import dataclass
from pathlib import Path

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.models import libraries
from rayfed_ssl.trees import Weights, digest, frozen, misfit

BODY = "encoder."
LIBRARY_BODY = "encoder.body."
"""What precedes a layer's name in a model: encoders of libraries are one module, `body`."""


@dataclass(frozen=True)
class Start:
    """A learned encoder.

    Attributes:
        architecture: Its name in `ENCODERS`.
        weights: Of the encoder without heads, named "encoder.…".
        file: The file that holds it, or the library's name of what it has published.
        sha256: Digest of that file, or of the weights.
    """

    architecture: str
    weights: Weights
    file: Path | str
    sha256: str

    def check(self, architecture: str, expected: Weights) -> None:
        """Refuse weights that are not finite, and to start an encoder of another architecture or with other shapes."""
        if broken := [name for name, value in self.weights.items() if not value.isfinite().all()]:
            raise ConfigError(
                f"model.start={self.file} holds values that are not finite, in {len(broken)} of its {len(self.weights)} "
                f"tensors such as {broken[0]}: its training diverged, or it is damaged; take another file"
            )
        if architecture != self.architecture:
            raise ConfigError(
                f"model.start={self.file} holds the encoder {self.architecture}, but this run trains {architecture}: set "
                f"model.encoder={self.architecture} and leave clients.models out"
            )
        if wrong := misfit(self.weights, expected):
            name, have, want = wrong
            raise ConfigError(
                f"model.start={self.file} does not fit these images: its {name} is {have}, this run's is {want}; set "
                "data.size, data.channels and model.stem as they were in its training"
            )


def published(encoder: str, *, channels: int, size: int) -> Start:
    """Fetch the weights that a library publishes for an encoder."""
    module = libraries.build(encoder, channels=channels, size=size, pretrained=True)
    weights = {LIBRARY_BODY + name: value for name, value in frozen(module.state_dict()).items()}
    return Start(encoder, weights, encoder, digest(weights))


def named_as_layers(tensors: Weights, architecture: str, expected: Weights, file: Path, sha256: str) -> Start:
    """Make a start of tensors with the names of an encoder's layers; others, as a classifier's, are left out.

    Args:
        tensors: Of a file that another program has written.
        architecture: The encoder that the run trains.
        expected: Its weights, named "encoder.…".
        file: For messages.
        sha256: Of the file.
    """
    counters = {name: value for name, value in expected.items() if name.endswith("num_batches_tracked")}
    for body in (LIBRARY_BODY, BODY):  # files of older programs have no counters of batches
        named = {body + name: value for name, value in tensors.items()}
        weights = counters | {name: value.to(expected[name].dtype) for name, value in named.items() if name in expected}
        if not (missing := sorted(expected.keys() - weights.keys())):
            return Start(architecture, weights, file, sha256)
    raise ConfigError(
        f"model.start={file} lacks {len(missing)} of the {len(expected)} tensors of encoder {architecture}, such as "
        f"{missing[0].removeprefix(body)}: take the file of that model, or set model.encoder to the file's"
    )
