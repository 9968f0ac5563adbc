"""MLflow, with its own settings (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME)."""

import os
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # MLflow reads it on import
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")

from mlflow.entities import Metric, Param, RunStatus
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from rayfed_ssl.trackers import EndStatus, TrackedRun

EXPERIMENT = "rayfed-ssl"
"""The experiment, unless MLFLOW_EXPERIMENT_NAME names another."""

MAX_PARAMS = 100
"""Parameters of one request."""

MAX_VALUE = 6000
"""Characters of a parameter's value."""

STATUS = {"finished": RunStatus.FINISHED, "interrupted": RunStatus.KILLED, "failed": RunStatus.FAILED}


class MLflow:
    """Logs through MLflow's client, which does not touch the process's active run."""

    rewinds = False

    def __init__(self, run: TrackedRun) -> None:
        self._client = MlflowClient()
        self.continues = run.identity is not None and self._exists(run.identity)
        if run.identity is not None and self.continues:
            self.identity = run.identity
            self._client.update_run(self.identity, status=RunStatus.to_string(RunStatus.RUNNING))
        else:
            self.identity = self._client.create_run(self._experiment(), run_name=run.directory.name).info.run_id
            params = (Param(name, str(value)[:MAX_VALUE]) for name, value in run.config.flat().items())
            while batch := list(islice(params, MAX_PARAMS)):
                self._client.log_batch(self.identity, params=batch)

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Log numbers of a round."""
        now = int(time.time() * 1000)
        self._client.log_batch(self.identity, metrics=[Metric(n, v, now, round) for n, v in values.items()])

    def log_figures(self, round: int, figures: Mapping[str, Path]) -> None:
        """Log figures."""
        for path in figures.values():
            self._client.log_artifact(self.identity, str(path), "figures")

    def close(self, status: EndStatus) -> None:
        """Set the run's status."""
        self._client.set_terminated(self.identity, RunStatus.to_string(STATUS[status]))

    def _exists(self, identity: str) -> bool:
        try:
            return bool(self._client.get_run(identity).info.lifecycle_stage == "active")
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = self._client.get_experiment_by_name(name)
        identity: str = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        return identity


open_tracker = MLflow
