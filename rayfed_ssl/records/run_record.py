"""The run record: one directory with all that a run was, did and measured.

config.yaml      the resolved configuration; `rayfed-ssl run config.yaml` repeats the run
run.json         versions, hardware, seeds, cohorts, hashes, what the run did otherwise than asked
metrics.parquet  one number a row: round, participant, name, value
ledger.parquet   one kind of content a row: round, client, direction, kind, field, bytes
schedule.parquet with a clock, one event of virtual time a row, written before training
checkpoints/     the last committed rounds, unless engine.checkpoints puts them elsewhere; encoders/ the final encoders

While the run continues, tables/ holds the rows that the two Parquet files do not contain yet.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import yaml

from rayfed_ssl.config.recipes import Setting
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.arithmetic import Arithmetic
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.ledger import LedgerEntry
from rayfed_ssl.engine.round_loop import Dropped, Evaluation, Observer, RoundOutcome
from rayfed_ssl.engine.run_watch import RunWarning
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.evaluation.registry import is_score
from rayfed_ssl.foreign.own_files import refuse_links_out
from rayfed_ssl.foreign.reading import MAX_YAML, read_bytes
from rayfed_ssl.foreign.signatures import is_signed, sign
from rayfed_ssl.method import Metrics
from rayfed_ssl.records.config_file import FILE, describe_config, read_config
from rayfed_ssl.records.manifest import (
    RoundEntry,
    RowCounts,
    RunManifest,
    as_begun,
    describe,
    settings_sha256,
    start_entry,
)
from rayfed_ssl.records.metric_rows import (
    EVALUATION_SECONDS,
    LEDGER,
    METRICS,
    Row,
    entry_rows,
    impossible,
    ledger_rows,
    lost_round,
    metric_rows,
    score_rows,
)
from rayfed_ssl.records.own_scores import own_rows
from rayfed_ssl.records.run_lock import locked, locked_states
from rayfed_ssl.records.state_location import mark_states, open_states, states_address, states_backend
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.backend import StorageBackend
from rayfed_ssl.storage.filesystem import LocalDirectory, write_atomically
from rayfed_ssl.storage.tables import GrowingTable


class RunRecord(Observer):
    """Writes the record while the run continues; each file is replaced atomically.

    With `trust` the modules that its files name may be imported, whoever wrote them.
    """

    def __init__(self, directory: Path, manifest: RunManifest, *, trust: bool = False) -> None:
        self.directory = directory
        self.trust = trust
        self.manifest = manifest
        self._states_named = False
        self._own_rows: list[Row] = []
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
        """The last round in run.json."""
        return self.manifest.rounds[-1].round if self.manifest.rounds else 0

    @cached_property
    def checkpoints(self) -> StorageBackend:
        """The backend of the run's states."""
        trusted = self.manifest.checkpoints is None or self._states_named or self.trusted
        return open_states(self.directory, self.manifest, trusted=trusted)

    def find_states(self, root: str | None) -> None:
        """Use the states below the root that a user names from now on; a ConfigError if there are none."""
        self._states_named = True
        address = states_address(root, self.directory, self.manifest)
        if address != self.manifest.checkpoints:
            self.manifest.checkpoints = address
            states = states_backend(self.directory, self.manifest)
            if not checkpoints.manifests(states):
                raise ConfigError(f"{states} holds no states: copy them there, or leave engine.checkpoints as it was")
            if address is not None:
                mark_states(states, self.manifest)

    @classmethod
    def create(cls, directory: Path, federation: Federation, arithmetic: Arithmetic) -> "RunRecord":
        """Begin a record in an empty or a missing directory; `arithmetic` is the executor's."""
        data = federation.config.data
        if data.path is not None and data.path.exists():  # a name on the Hub is no path
            data = data.model_copy(update={"path": data.path.resolve()})
            federation.config = federation.config.model_copy(update={"data": data})
        record = cls(directory, describe(federation, arithmetic))
        record._states_named = True
        record.manifest.checkpoints = states_address(federation.config.engine.checkpoints, directory, record.manifest)
        states_backend(directory, record.manifest).create()
        if record.manifest.checkpoints is not None:
            mark_states(states_backend(directory, record.manifest), record.manifest)
        (directory / "checkpoints").mkdir(parents=True, exist_ok=True)
        write_atomically(directory / FILE, yaml.safe_dump(federation.config.dump(), sort_keys=False).encode())
        record.sign()
        record._metrics.create()
        record._ledger.create(entry_rows(federation.public_entries()))
        record.save()
        return record

    @classmethod
    def open(cls, directory: Path, *, tables: bool = True, trust: bool = False) -> "RunRecord":
        """Read a record.

        Args:
            directory: The run's directory.
            tables: Whether to read the tables now, and to check that no row is missing.
            trust: Whether the modules that its files name may be imported, though this user did not make the run here.

        Raises:
            ConfigError: There is none, or it is damaged.
        """
        refuse_links_out(directory)
        record = cls(directory, RunManifest.read(directory / "run.json"), trust=trust)
        if tables and (missing := lost_round(record.manifest.rounds, record.metrics, record.ledger)):
            raise ConfigError(
                f"{directory} is damaged (rows of round {missing} are missing): restore it from a copy, or start a new run"
            )
        if tables and (wrong := impossible(record.metrics, record.manifest.starts)):
            raise ConfigError(f"{directory} is damaged ({wrong}): restore it from a copy, or start a new run")
        return record

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from writing this run; a BusyError if one does."""
        return locked(self.directory)

    def locked_states(self) -> AbstractContextManager[None]:
        """Keep copies of this run from writing its states where they lie outside of it, except in buckets."""
        states = self.checkpoints
        if self.manifest.checkpoints is None or not isinstance(states, LocalDirectory):
            return nullcontext()
        return locked_states(states.path, f"a copy of {self.directory}")

    @property
    def trusted(self) -> bool:
        """Whether the modules that config.yaml names may be imported: on trust, or as this user made the run here."""
        file = self.directory / FILE
        with suppress(OSError):  # it is missing or too large
            return self.trust or is_signed(file, read_bytes(file, MAX_YAML), self.manifest.signature)
        return False

    def sign(self) -> None:
        """Sign config.yaml as this user's, in the manifest."""
        file = self.directory / FILE
        self.manifest.signature = sign(file, file.read_bytes())

    def config(self, *overrides: Setting, opens_data: bool = True) -> Config:
        """Read the run's configuration to run it; errors as in `read_config`."""
        return read_config(self.directory, *overrides, trust=self.trusted, opens_data=opens_data)

    def described_config(self) -> Config:
        """Read the run's configuration to show it; nothing is imported."""
        return describe_config(self.directory)

    def is_changed(self, config: Config) -> bool:
        """Whether a configuration has other settings than the run began with, of those that its states depend on."""
        data = config.data.model_copy(update={"download": True})  # what it changes is where the data come from
        fetching = config.model_copy(update={"data": data})
        same = (config, fetching, as_begun(config), as_begun(fetching))
        return self.manifest.settings_sha256 not in map(settings_sha256, same)

    def check(self, federation: Federation, *, draws: bool = False) -> None:
        """Refuse other settings, other data and, where weights are drawn, another start than the run began with.

        Raises:
            ConfigError: They differ.
        """
        config = federation.config
        file = self.directory / FILE
        if self.is_changed(config):
            raise ConfigError(f"{file} changed since this run began: restore it, or start a new run from it")
        if config.rounds < max(self.manifest.num_rounds, self.last_round):
            raise ConfigError(
                f"{file} has fewer rounds than this run was asked for: restore it, or start a new run from it"
            )
        if draws and self.manifest.start != start_entry(federation):
            raise ConfigError(
                f"model.start={config.model.start or config.model.encoder} changed since this run "
                "began: restore it, or start a new run"
            )
        self.manifest.data.check(federation)

    def dropped(self) -> list[tuple[int, Dropped]]:
        """List the clients that are missing from rounds that they belonged to, with the round."""
        return [(entry.round, client) for entry in self.manifest.rounds for client in entry.dropped]

    def quarantined(self) -> dict[int, int]:
        """Find the clients that are left out of all rounds to come, and the round since when."""
        since: dict[int, int] = {}
        for round, client in self.dropped():
            if client.quarantined:
                since.setdefault(client.client, round)
        return since

    def truncate(self, round: int, entries: Iterable[LedgerEntry] = ()) -> None:
        """Remove what was recorded after a round, and the final encoders.

        Args:
            round: The last that stays.
            entries: What clients receive before round 1, with which the tables begin anew if no round stays.
        """
        self.manifest.rounds = [entry for entry in self.manifest.rounds if entry.round <= round]
        self.manifest.warnings = [warning for warning in self.manifest.warnings if warning.round <= round]
        for file in (self.directory / "encoders").glob("*.safetensors"):
            if file.stem in self.manifest.encoders:
                file.unlink()
        self.manifest.finished, self.manifest.encoders = None, {}
        self.save()  # before the tables, so that a kill leaves no round in it without its rows
        if round:
            self._metrics.truncate(round)
            self._ledger.truncate(round)
        else:
            self._metrics.create()
            self._ledger.create(entry_rows(entries))

    def scores(self, round: int) -> dict[str, Metrics]:
        """Accuracies in [0, 1] of a round by encoder."""
        scores: dict[str, Metrics] = {}
        for row in self.metrics:
            if row["round"] == round and is_score(row["name"]):
                scores.setdefault(row["participant"], {})[row["name"]] = row["value"]
        return scores

    def evaluated(self) -> set[int]:
        """Rounds whose scores are on record, those without labels to score by among them."""
        return {row["round"] for row in self.metrics if row["name"] == EVALUATION_SECONDS}

    def on_commit(self, outcome: RoundOutcome) -> None:
        """Write down a round."""
        metrics, ledger = metric_rows(outcome), ledger_rows(outcome)
        self._metrics.append(metrics)
        self._ledger.append(ledger)
        entry = RoundEntry(
            round=outcome.state.round,
            cohort=[report.client for report in outcome.clients],
            state_sha256=outcome.state.sha256,
            rows=RowCounts(metrics=len(metrics), ledger=len(ledger)),
            dropped=list(outcome.dropped),
        )
        self.manifest.rounds.append(entry)
        self.save()

    def on_start_scored(self, scores: Mapping[str, Metrics]) -> None:
        """Write down what the run has to be above."""
        self.manifest.starts = {architecture: dict(metrics) for architecture, metrics in scores.items()}
        self.save()

    def add_warning(self, warning: RunWarning) -> None:
        """Write down a warning."""
        self.manifest.warnings.append(warning)
        self.save()

    def on_clients_scored(self, evaluations: Sequence[Evaluation]) -> None:
        """Keep clients' own scores, to write them with the others of the round: a round has all or none."""
        self._own_rows = own_rows(evaluations)

    def on_evaluated(self, evaluations: Sequence[Evaluation]) -> None:
        """Write down the scores of a round."""
        rows = [*score_rows(evaluations), *self._own_rows]
        self._own_rows = []
        self._metrics.append(rows)
        self.manifest.rounds[-1].rows.metrics += len(rows)
        self.save()

    def finish(self, encoders: Mapping[str, str]) -> None:
        """Mark the run as complete, with the digests of its final encoders."""
        self.manifest.encoders = dict(encoders)
        self.pause()
        self.manifest.finished = datetime.now(UTC).isoformat(timespec="seconds")
        self.save()

    def add_seconds(self, seconds: Mapping[str, float]) -> None:
        """Write down where this process's time went."""
        self.manifest.seconds = dict(seconds)
        self.save()

    def pause(self) -> None:
        """Join each table's files into one."""
        self._metrics.merge()
        self._ledger.merge()

    def save(self) -> None:
        """Write run.json."""
        write_atomically(self.directory / "run.json", self.manifest.text().encode())
