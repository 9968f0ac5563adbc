"""Weights & Biases, with its own settings (WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY); its files lie in RUN/wandb."""

import os
from collections.abc import Mapping
from pathlib import Path

import wandb

from rayfed_ssl.config.schema import Config
from rayfed_ssl.trackers import EndStatus

PROJECT = "rayfed-ssl"
"""The project, unless WANDB_PROJECT names another."""


class WeightsAndBiases:
    """Logs by round rather than by W&B's own step, which counts calls and never goes back."""

    rewinds = False

    def __init__(self, directory: Path, config: Config, round: int, identity: str | None) -> None:
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=directory.name,
            id=identity,
            resume=None if identity is None else "allow",
            dir=str(directory),
            config=config.dump(),
            # W&B would wrap both output streams, which breaks progress lines.
            settings=wandb.Settings(console="off", silent=True),
        )
        self.identity: str = self._run.id
        self.continues = identity is not None and (self._run.offline or self._run.resumed)
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Log numbers of a round."""
        self._run.log({"round": round, **values})

    def close(self, status: EndStatus) -> None:
        """Wait until everything is written or sent."""
        self._run.finish(exit_code=0 if status == "finished" else 1)


open_tracker = WeightsAndBiases
