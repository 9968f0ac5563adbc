"""Weights & Biases, by its own settings (WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY and so on); its files lie in RUN/wandb."""

import os
from collections.abc import Mapping
from pathlib import Path

import wandb

from rayfed_ssl.trackers import Ending, Subject

PROJECT = "rayfed-ssl"
"""Where runs go if WANDB_PROJECT says nothing else."""


class WeightsAndBiases:
    """Logs by round rather than by W&B's own step, which counts calls and never goes back.

    Args:
        subject: The run.
    """

    rewinds = False

    def __init__(self, subject: Subject) -> None:
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=subject.directory.name,
            id=subject.identity,
            resume=None if subject.identity is None else "allow",
            dir=str(subject.directory),
            config=dict(subject.config),
            # Progress lines are the terminal's; W&B would wrap both streams to copy them.
            settings=wandb.Settings(console="off", silent=True),
        )
        self.identity: str = self._run.id
        self.continues = subject.identity is not None and (self._run.offline or self._run.resumed)
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Log numbers of a round."""
        self._run.log({"round": round, **values})

    def show(self, round: int, figures: Mapping[str, Path]) -> None:
        """Log figures."""
        pictures = {f"figures/{name}": wandb.Image(str(path)) for name, path in figures.items()}
        self._run.log({"round": round, **pictures})

    def close(self, ending: Ending) -> None:
        """Wait until everything is written or sent."""
        self._run.finish(exit_code=0 if ending == "finished" else 1)


open_tracker = WeightsAndBiases
