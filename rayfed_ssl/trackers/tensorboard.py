"""TensorBoard: event files in RUN/tensorboard, to be seen with `tensorboard --logdir runs`."""

from collections.abc import Mapping
from pathlib import Path

import yaml
from torch.utils.tensorboard import SummaryWriter

from rayfed_ssl.config.schema import Config
from rayfed_ssl.trackers import EndStatus

FOLDER = "tensorboard"


class TensorBoard:
    """Writes event files; a resumed run adds one that makes readers drop later rounds."""

    identity = FOLDER
    rewinds = True

    def __init__(self, directory: Path, config: Config, round: int, identity: str | None) -> None:
        folder = directory / FOLDER
        self.continues = any(folder.glob("events.out.tfevents.*"))
        self._writer = SummaryWriter(str(folder), purge_step=round + 1 if self.continues else None)
        if not self.continues:
            self._writer.add_text("config", f"```yaml\n{yaml.safe_dump(config.dump(), sort_keys=False)}```", 0)
            self._writer.flush()

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Write numbers of a round."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def close(self, status: EndStatus) -> None:
        """Close the file."""
        self._writer.close()


open_tracker = TensorBoard
