"""What a run may start from in place of random weights: an encoder that another run has learned."""

from dataclasses import dataclass
from pathlib import Path

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.trees import Weights, misfit


@dataclass(frozen=True)
class Start:
    """A learned encoder.

    Attributes:
        architecture: Its name in `ENCODERS`.
        weights: Of the encoder without heads, named "encoder.…".
        file: The file that holds it.
        sha256: Digest of that file.
    """

    architecture: str
    weights: Weights
    file: Path
    sha256: str

    def check(self, architecture: str, expected: Weights) -> None:
        """Refuse to start an encoder of another architecture or with other shapes from this one."""
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
