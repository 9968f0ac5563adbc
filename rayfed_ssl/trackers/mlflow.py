"""MLflow, by its own settings (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME)."""

import os
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when it is imported; what the user has set stays
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")

from mlflow.entities import Metric, Param, RunStatus
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from rayfed_ssl.trackers import Ending, Subject

EXPERIMENT = "rayfed-ssl"
"""Where runs go if MLFLOW_EXPERIMENT_NAME says nothing else."""

BATCH = 100
"""Parameters that MLflow takes at once."""

LONGEST = 6000
"""Characters that MLflow takes for a parameter's value."""

STATUS = {
    "finished": RunStatus.FINISHED,
    "interrupted": RunStatus.KILLED,
    "failed": RunStatus.FAILED,
}


class MLflow:
    """Logs through MLflow's client, which leaves alone what the process has as its active run.

    Args:
        subject: The run.
    """

    rewinds = False

    def __init__(self, subject: Subject) -> None:
        self._client = MlflowClient()
        self.continues = subject.identity is not None and self._exists(subject.identity)
        if subject.identity is not None and self.continues:
            self.identity = subject.identity
            self._client.update_run(self.identity, status=RunStatus.to_string(RunStatus.RUNNING))
        else:
            self.identity = self._client.create_run(self._experiment(), run_name=subject.directory.name).info.run_id
            params = (Param(name, str(value)[:LONGEST]) for name, value in flat(subject.config))
            while batch := list(islice(params, BATCH)):
                self._client.log_batch(self.identity, params=batch)

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Log numbers of a round."""
        now = int(time.time() * 1000)
        self._client.log_batch(self.identity, metrics=[Metric(n, v, now, round) for n, v in values.items()])

    def show(self, round: int, figures: Mapping[str, Path]) -> None:
        """Log figures."""
        for path in figures.values():
            self._client.log_artifact(self.identity, str(path), "figures")

    def close(self, ending: Ending) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self.identity, RunStatus.to_string(STATUS[ending]))

    def _exists(self, identity: str) -> bool:
        try:
            found: bool = self._client.get_run(identity).info.lifecycle_stage == "active"
            return found
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self._client.get_experiment_by_name(name)
        identity: str = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        return identity


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Give nested settings dotted names."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


open_tracker = MLflow
