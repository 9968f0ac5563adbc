"""MLflow, with its own settings (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME)."""

import os
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # MLflow reads it on import
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # 14 s; its 7 take four minutes
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")

from mlflow.entities import Metric, Param, RunStatus
from mlflow.tracking import MlflowClient

from rayfed_ssl.config.schema import Config
from rayfed_ssl.trackers import EndStatus

EXPERIMENT = "rayfed-ssl"
"""The experiment, unless MLFLOW_EXPERIMENT_NAME names another."""

MAX_PARAMS, MAX_VALUE = 100, 6000
"""Parameters of one request, and characters of a parameter's value."""

STATUS = {"finished": RunStatus.FINISHED, "interrupted": RunStatus.KILLED, "failed": RunStatus.FAILED}


class MLflow:
    """Logs through MLflow's client, which does not touch the process's active run."""

    rewinds = False

    def __init__(self, directory: Path, config: Config, round: int, identity: str | None) -> None:
        self._client, self.continues = MlflowClient(), identity is not None
        if identity is not None:
            self.identity = identity
            self._client.update_run(identity, status=RunStatus.to_string(RunStatus.RUNNING))
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        self.identity = self._client.create_run(experiment, run_name=directory.name).info.run_id
        params = (Param(name, str(value)[:MAX_VALUE]) for name, value in config.flat().items())
        while batch := list(islice(params, MAX_PARAMS)):
            self._client.log_batch(self.identity, params=batch)

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Log numbers of a round."""
        now = int(time.time() * 1000)
        self._client.log_batch(self.identity, metrics=[Metric(n, v, now, round) for n, v in values.items()])

    def close(self, status: EndStatus) -> None:
        """Set the run's status."""
        self._client.set_terminated(self.identity, RunStatus.to_string(STATUS[status]))


open_tracker = MLflow
