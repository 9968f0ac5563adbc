"""The run record: one directory with all that a run was, did and measured.

config.yaml      the resolved configuration; `rayfed-ssl run config.yaml` repeats the run
run.json         versions, hardware, seeds, cohorts, hashes, what the run did otherwise than asked
metrics.parquet  one number a row: round, participant, name, value
ledger.parquet   one kind of content a row: round, client, direction, kind, field, bytes
checkpoints/     the last committed rounds, unless engine.checkpoints puts them elsewhere; encoders/ the final encoders;
                 figures/

While the run continues, tables/ holds the rows that the two Parquet files do not contain yet.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import yaml
from filelock import FileLock, Timeout

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.faults import Fault
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.round_loop import Evaluation, Observer, RoundOutcome
from rayfed_ssl.engine.server_init_cache import start_of
from rayfed_ssl.errors import BusyError, CheckpointError, ConfigError
from rayfed_ssl.evaluation.registry import is_score
from rayfed_ssl.method import Encoder, Metrics
from rayfed_ssl.records.manifest import describe, describes_a_run, settings_sha256, states_name
from rayfed_ssl.records.metric_rows import (
    EVALUATION_SECONDS,
    LEDGER,
    METRICS,
    Row,
    entry_rows,
    ledger_rows,
    lost_round,
    metric_rows,
    score_rows,
)
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.addresses import Directory, join, open_backend
from rayfed_ssl.storage.backend import StorageBackend
from rayfed_ssl.storage.checkpoints import RunState, check_moved
from rayfed_ssl.storage.filesystem import LocalDirectory, write_atomically
from rayfed_ssl.storage.tables import GrowingTable


class RunRecord(Observer):
    """Writes the record while the run continues; each file is replaced atomically.

    Args:
        directory: The run's directory, which exists.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.summary: dict[str, Any] = {}
        self._metrics = GrowingTable(directory / "metrics.parquet", METRICS)
        self._ledger = GrowingTable(directory / "ledger.parquet", LEDGER)

    @property
    def metrics(self) -> list[Row]:
        """Rows of metrics.parquet."""
        return self._metrics.rows

    @property
    def ledger(self) -> list[Row]:
        """Rows of ledger.parquet."""
        return self._ledger.rows

    @property
    def last_round(self) -> int:
        """The last round that run.json tells of."""
        return max((row["round"] for row in self.summary["rounds"]), default=0)

    @cached_property
    def checkpoints(self) -> StorageBackend:
        """Where the states lie."""
        address = self.summary.get("checkpoints")
        return LocalDirectory(self.directory / "checkpoints") if address is None else open_backend(address)

    def _address(self, root: str | None) -> str | None:
        """Name where the states of this run lie below a root of many runs'; None is beside its record."""
        if root is None:
            return None
        known = self.summary.get("checkpoints")
        name = (
            known.partition("?")[0].rpartition("/")[2]
            if known
            else states_name(self.directory, self.summary["started"])
        )
        return open_backend(join(root, name)).address

    def find_states(self, root: str | None, round: int | None = None) -> None:
        """Take the states from where a run that goes on is told to look.

        Raises:
            ConfigError: They are not there, or, unless a round is asked for, those of earlier rounds only.
        """
        address, before = self._address(root), self.checkpoints
        if address == self.summary.get("checkpoints"):
            return
        self.summary["checkpoints"] = address
        del self.checkpoints
        check_moved(before, self.checkpoints, self.last_round, round)

    @staticmethod
    def refuse_used(directory: Path) -> None:
        """Refuse to write a run over something else.

        Raises:
            ConfigError: The directory holds something already, or is a file.
        """
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ConfigError(
                f"{directory} is not an empty directory: name another one with --out, or resume the run in it"
            )

    @classmethod
    def create(cls, directory: Path, federation: Federation) -> "RunRecord":
        """Begin a record.

        Raises:
            ConfigError: The directory holds something already.
        """
        cls.refuse_used(directory)
        record = cls(directory)
        record.summary = describe(federation)
        record.summary["checkpoints"] = record._address(federation.config.engine.checkpoints)
        record.checkpoints.create()
        (directory / "checkpoints").mkdir(parents=True, exist_ok=True)
        (directory / "config.yaml").write_text(yaml.safe_dump(federation.config.dump(), sort_keys=False))
        record._metrics.create()
        record._ledger.create(entry_rows(federation.public_entries()))
        record.save()
        return record

    @classmethod
    def open(cls, directory: Path, *, tables: bool = True) -> "RunRecord":
        """Read a record.

        Args:
            directory: The run's directory.
            tables: Whether to read the tables now, and to check that no row is missing.

        Raises:
            ConfigError: There is none, or it is damaged.
        """
        record = cls(directory)
        if not (directory / "run.json").is_file():
            raise ConfigError(f"{directory} holds no run: there is no run.json in it")
        try:
            record.summary = json.loads((directory / "run.json").read_text())
            if not describes_a_run(record.summary):
                raise ValueError("run.json does not describe a run")
        except (OSError, ValueError) as error:
            why = " ".join(str(error).split())
            raise ConfigError(f"the record in {directory} is damaged ({why}): start a new run") from None
        if tables and (missing := lost_round(record.summary["rounds"], record.metrics, record.ledger)):
            raise ConfigError(
                f"{directory} is damaged (rows of round {missing} are missing): `rayfed-ssl resume` computes it again where "
                "its checkpoint is kept"
            )
        return record

    def last_whole_round(self) -> int:
        """Find the last round up to which run.json and the tables have every row; damaged files have none."""
        metrics, ledger = (table.read(skip_damaged=True).to_pylist() for table in (self._metrics, self._ledger))
        missing = lost_round(self.summary["rounds"], metrics, ledger)
        return self.last_round if missing is None else missing - 1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing this run.

        Raises:
            BusyError: Another process is writing it.
        """
        (self.directory / "checkpoints").mkdir(exist_ok=True)
        try:
            lock = FileLock(self.directory / "checkpoints" / "lock").acquire(blocking=False)
        except Timeout:
            raise BusyError(f"another process is running {self.directory}: wait for it or stop it") from None
        with lock:
            yield

    def config(self, *overrides: str) -> Config:
        """Read the run's configuration; overrides may change how it is computed, nothing else."""
        for override in overrides:
            if not override.startswith(("engine.", "evaluation.")):
                raise ConfigError(
                    f"a run goes on with the settings it began with, got {override}: only engine.* and evaluation.* may "
                    "change"
                )
        return Config.load(self.directory / "config.yaml", *overrides)

    def check(self, federation: Federation, *, draws: bool = False) -> None:
        """Refuse other settings, other data and, where weights are drawn, another start than the run began with.

        Raises:
            ConfigError: They differ.
        """
        if self.summary.get("settings_sha256") != settings_sha256(federation.config):
            raise ConfigError(
                f"{self.directory / 'config.yaml'} is not what this run began with: restore it, or start a new run from it"
            )
        if draws and self.summary.get("start") != start_of(federation):
            raise ConfigError(
                f"model.start={federation.config.model.start} changed since this run began: restore it, or start a new run"
            )
        began, now = self.summary["data"]["fingerprint"], federation.dataset.fingerprint
        if began != now:
            raise ConfigError(
                f"the data of {federation.dataset.name} changed since this run began (fingerprint {now[:12]} instead of "
                f"{began[:12]}): restore them, or start a new run"
            )

    def check_states(self, state: RunState) -> None:
        """Refuse states that are not those which this run came to in that round.

        Raises:
            CheckpointError: They are another run's.
        """
        came = {entry["round"]: entry["state_sha256"] for entry in self.summary["rounds"]}.get(state.round)
        if came not in (None, state.sha256):
            raise CheckpointError(
                f"{self.checkpoints} holds states of another run: their digest after round {state.round} is "
                f"{state.sha256[:12]}, this run's record says {str(came)[:12]}: put its own states back, or start a new run"
            )

    def dropped(self) -> list[tuple[int, dict[str, Any]]]:
        """List who was left out of a round that it belonged to: round, and client, reason, quarantined."""
        return [(entry["round"], client) for entry in self.summary["rounds"] for client in entry.get("dropped", ())]

    def quarantined(self) -> dict[int, int]:
        """Find the clients that are left out of all rounds to come, and the round since when."""
        found: dict[int, int] = {}
        for round, client in self.dropped():
            if client["quarantined"]:
                found.setdefault(client["client"], round)
        return found

    def truncate(self, round: int, federation: Federation) -> None:
        """Remove what was recorded after a round, and the encoders of the run's end."""
        if round:
            self._metrics.truncate(round)
            self._ledger.truncate(round)
        else:
            self._metrics.create()
            self._ledger.create(entry_rows(federation.public_entries()))
        self.summary["rounds"] = [row for row in self.summary["rounds"] if row["round"] <= round]
        self.summary["finished"] = None
        self.save()
        if (self.directory / "encoders").exists():
            shutil.rmtree(self.directory / "encoders")

    def scores(self, round: int) -> dict[str, Metrics]:
        """Accuracies in [0, 1] of a round by encoder."""
        found: dict[str, Metrics] = {}
        for row in self.metrics:
            if row["round"] == round and is_score(row["name"]):
                found.setdefault(row["participant"], {})[row["name"]] = row["value"]
        return found

    def evaluated(self) -> set[int]:
        """Rounds whose scores are on record, those without labels to score by among them."""
        table = self._metrics.read()
        return set(table.filter(pc.equal(table["name"], EVALUATION_SECONDS))["round"].to_pylist())

    def on_round_end(self, outcome: RoundOutcome) -> None:
        """Write down a round."""
        metrics, ledger = metric_rows(outcome), ledger_rows(outcome)
        self._metrics.append(metrics)
        self._ledger.append(ledger)
        self.summary["rounds"].append(
            {
                "round": outcome.state.round,
                "cohort": [report.client for report in outcome.clients],
                "state_sha256": outcome.state.sha256,
                "rows": {"metrics": len(metrics), "ledger": len(ledger)},
                "dropped": [asdict(dropped) for dropped in outcome.dropped],
            }
        )
        self.save()

    def on_fault(self, fault: Fault) -> None:
        """Write down a fault before it happens, as it may end this process."""
        self.summary.setdefault("faults", []).append(fault.row())
        self.save()

    def on_evaluated(self, evaluations: Sequence[Evaluation]) -> None:
        """Write down the scores of a round."""
        rows = score_rows(evaluations)
        self._metrics.append(rows)
        self.summary["rounds"][-1]["rows"]["metrics"] += len(rows)
        self.save()

    def finish(self, federation: Federation) -> None:
        """Write the final encoders and mark the run as complete."""
        state = checkpoints.latest(self.checkpoints)
        (self.directory / "encoders").mkdir(exist_ok=True)
        encoders = LocalDirectory(self.directory / "encoders")
        for name, encoder in encoders_of(federation, state, self.checkpoints).items():
            checkpoints.store(encoder, encoders, name)
        self.pause()
        self.summary["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
        self.save()

    def pause(self) -> None:
        """Join each table's files into one."""
        self._metrics.merge()
        self._ledger.merge()

    def save(self) -> None:
        """Write run.json, with one line per round."""
        rounds = ",\n  ".join(json.dumps(entry) for entry in self.summary["rounds"])
        text = json.dumps(self.summary | {"rounds": []}, indent=1)
        if rounds:
            text = text.replace('\n "rounds": []', f'\n "rounds": [\n  {rounds}\n ]')
        write_atomically(self.directory / "run.json", text.encode())


def encoders_of(federation: Federation, state: checkpoints.RunState, directory: Directory) -> dict[str, Encoder]:
    """Read from a checkpoint the encoders that the method shows."""
    clients = checkpoints.StoredStates(state.clients, directory)
    return federation.method.encoders(checkpoints.read(state.server, directory), clients)
