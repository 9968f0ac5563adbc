"""Running a run again and comparing all that it recorded: digests of states, metrics, bytes, encoders."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import torch

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.arithmetic import Arithmetic
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.round_loop import Observer, RoundOutcome
from rayfed_ssl.errors import CheckpointError, ConfigError
from rayfed_ssl.evaluation.registry import ATTACK_SUCCESS, ATTACK_SUCCESS_KNN, BEST, is_score
from rayfed_ssl.records.bits import other_processor, why_bits_differ
from rayfed_ssl.records.manifest import settings_sha256
from rayfed_ssl.records.metric_rows import EVALUATION_SECONDS, Row
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.runs import ExecutorFactory, Observers, run
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.checkpoints import RunState
from rayfed_ssl.storage.encoder_file import Info
from rayfed_ssl.storage.saved_encoders import read_encoder
from rayfed_ssl.trees import digest

NOT_COMPARED = ("seconds", EVALUATION_SECONDS, "retries")
"""Metrics that depend on the machine's speed and on its faults."""

FACTS = ("method", "num_rounds", "parts", "notes", "data", "start", "seeds", "break_even", "starts")
"""What run.json says besides, wherever and whenever it is run."""

PUBLISHED = "digests.json"
"""In `rayfed_ssl.recipes`: digests of recipes with engine.cpu=portable, and the version and fingerprint they hold for."""


@dataclass(frozen=True)
class Verification:
    """What came of running a run again.

    Attributes:
        rounds: Rounds that were compared.
        state_sha256: Digest after the last of them, computed here.
        differences: A line for each thing that differs, the first round first; none if all is equal.
        reason: What on record explains other states or scores; None where nothing does.
    """

    rounds: int
    state_sha256: str
    differences: tuple[str, ...] = ()
    reason: str | None = None


class _DifferentBitsError(RuntimeError):
    """A round has another digest; the run is not continued."""

    def __init__(self, state: RunState, message: str) -> None:
        super().__init__(message)
        self.state = state


class _DigestCheck(Observer):
    """Ends a run after the first round whose digest is not the expected one."""

    def __init__(self, digests: Mapping[int, str], record: RunRecord | None = None) -> None:
        self._digests, self._record = digests, record

    def on_warning(self, message: str) -> None:
        """Ignore a warning, which the other observer shows."""

    def on_round_end(self, outcome: RoundOutcome) -> None:
        """Compare a round."""
        state = outcome.state
        if (expected := self._digests[state.round]) != state.sha256:
            detail = "" if self._record is None else f"; {_first_state(self._record, outcome)}"
            message = (
                f"round {state.round} is the first that differs: {expected[:16]} on record, {state.sha256[:16]} here"
            )
            raise _DifferentBitsError(state, message + detail)


def verify_run(
    record: RunRecord, config: Config, directory: Path, observer: Observer, executor: ExecutorFactory
) -> Verification:
    """Run a recorded run again, up to its last round or the first that differs; `directory` is for the second record.

    Raises:
        ConfigError: It cannot be repeated here: data or start are missing or have changed, or clients had failed.
    """
    digests = {entry.round: entry.state_sha256 for entry in record.manifest.rounds}
    if not digests:
        raise ConfigError(f"{record.directory} has no finished round to compare: resume it first")
    if dropped := record.dropped():
        raise ConfigError(
            f"{record.directory} cannot be repeated: {len(dropped)} client steps failed or came too late, such as client "
            f"{dropped[0][1].client} in round {dropped[0][0]}"
        )
    alone = config.engine.model_copy(update={"checkpoints": None, "shared": None, "trackers": ()})
    federation = Federation.open(config.model_copy(update={"engine": alone}))
    record.check(federation, draws=True)
    ends = _ends(record, config)
    result = _run_again(federation, _DigestCheck(digests, record), max(digests), directory, observer, executor, ends)
    again = RunRecord.open(directory)
    if not result.differences:
        scoring = [warning.message for warning in record.manifest.warnings if warning.kind == "scores"]
        others = tuple(_other_contents(record, again, ends))
        return Verification(result.rounds, result.state_sha256, others, "; ".join(scoring) or None)
    reason = why_bits_differ(record.manifest, again.manifest)
    return Verification(result.rounds, result.state_sha256, result.differences, reason)


def verify_recipe(name: str, directory: Path, observer: Observer, executor: ExecutorFactory) -> Verification:
    """Run a recipe with engine.cpu=portable and compare it with the published digests; arguments as in `verify_run`.

    Raises:
        ConfigError: None are published of it, or it has changed since.
    """
    published = json.loads(resources.files("rayfed_ssl.recipes").joinpath(PUBLISHED).read_text())
    if name not in published["recipes"]:
        raise ConfigError(
            f"no digests of {name} are published: verify one of {', '.join(published['recipes'])}, or a run's directory"
        )
    entry, config = published["recipes"][name], Config.load(name, "engine.cpu=portable")
    if entry["settings_sha256"] != settings_sha256(config):
        raise ConfigError(f"the recipe {name} has changed since its digests were published: verify a run's directory")
    digests, federation = dict(enumerate(entry["rounds"], 1)), Federation.open(config)
    result = _run_again(federation, _DigestCheck(digests), len(digests), directory, observer, executor)
    if not result.differences:
        return result
    here = torch.__version__.partition("+")[0]
    versions = f"other versions: torch {published['torch']} and {here}" if here != published["torch"] else None
    arithmetic = Arithmetic.of(federation.task, config.engine)
    processor = other_processor(published["fingerprint"], arithmetic.fingerprint, {"cpu": "portable"})
    return replace(result, reason=versions or processor or None)


def _run_again(
    federation: Federation,
    check: _DigestCheck,
    last: int,
    directory: Path,
    observer: Observer,
    executor: ExecutorFactory,
    finals: Collection[int] = (),
) -> Verification:
    observers = Observers(observer, check)
    observers.on_warning = observer.on_warning  # type: ignore[method-assign]
    try:
        result = run(
            federation.config,
            directory,
            observer=observers,
            executor=executor,
            federation=federation,
            until=last,
            finals=finals,
        )
    except _DifferentBitsError as error:
        return Verification(error.state.round, error.state.sha256, (str(error),))
    return Verification(last, result.state_sha256)


def _first_state(record: RunRecord, outcome: RoundOutcome) -> str:
    """Name the first state that differs in a round: by its checkpoint if it is kept, else by its clients' metrics."""
    state = outcome.state
    try:
        kept = checkpoints.latest(record.checkpoints, state.round)
    except CheckpointError:
        rows = _values(record.metrics)
        for report in outcome.clients:
            for name, value in report.metrics.items():
                if rows.get((state.round, f"client-{report.client}", name)) != repr(float(value)):
                    return f"client {report.client} is the first whose {name} differs"
        return "its checkpoint is not kept, and its clients' metrics are equal"
    if kept.sha256 == state.sha256:
        return "its checkpoint has the digest that was computed here, so run.json was changed"
    for client in sorted(state.clients):
        if client not in kept.clients or kept.clients[client].sha256 != state.clients[client].sha256:
            return f"the state of client {client} is the first that differs"
    return "the server's state differs"


def _other_contents(record: RunRecord, again: RunRecord, ends: Set[int]) -> Iterator[str]:
    """Compare what a record holds besides its states' digests."""
    recorded, computed = _values(record.metrics), _values(again.metrics)
    names = set(recorded) | (set(computed) if record.manifest.finished else set())
    for key in sorted(names):
        round, participant, name = key
        if key not in computed and round in ends - {record.last_round} and name.startswith("diag_"):
            continue  # of a round that was the last one
        if recorded.get(key) != computed.get(key):
            was, now = recorded.get(key, "nothing"), computed.get(key, "nothing")
            yield f"metrics.parquet: {name} of {participant} in round {round} is {was} on record and {now} here"
    if _counted(record.ledger) != _counted(again.ledger):
        yield "ledger.parquet differs"
    for name in FACTS:
        if getattr(record.manifest, name) != getattr(again.manifest, name):
            yield f"run.json: {name} differs"
    for entry, computed_entry in zip(record.manifest.rounds, again.manifest.rounds, strict=True):
        if entry.cohort != computed_entry.cohort:
            yield f"run.json: the cohort of round {entry.round} differs"
    if record.manifest.finished:
        yield from _other_encoders(record, again)
    yield from _damaged_states(record)


def _other_encoders(record: RunRecord, again: RunRecord) -> Iterator[str]:
    files = {file.stem for file in (record.directory / "encoders").glob("*.safetensors")}
    for name in sorted(files | record.manifest.encoders.keys() | again.manifest.encoders.keys()):
        recorded, computed = (_encoder(run, name) for run in (record, again))
        if recorded is None or recorded != computed:
            yield f"encoders/{name}.safetensors is missing, damaged or differs, or its digest in run.json does"


def _encoder(record: RunRecord, name: str) -> tuple[Info, str] | None:
    """Read what a final encoder is, without who wrote its file, and its digest; None where it is missing or damaged."""
    try:
        export = read_encoder(record.directory / "encoders" / f"{name}.safetensors", trust=record.trust)
    except (CheckpointError, ConfigError):
        return None
    return replace(export.info, version=""), digest(export.encoder)


def _damaged_states(record: RunRecord) -> Iterator[str]:
    """Name the first state of a kept round that is not what its manifest says."""
    try:
        for round in checkpoints.manifests(record.checkpoints):
            for stored in checkpoints.latest(record.checkpoints, round).states:
                checkpoints.read(stored, record.checkpoints)
    except CheckpointError as error:
        yield str(error)


def _ends(record: RunRecord, config: Config) -> set[int]:
    """Find the rounds with scores that only the last one has: those in which a run ended before it was extended."""
    others = {"knn", ATTACK_SUCCESS_KNN, "supervised"}
    if config.evaluation.probe == "every":
        others |= {"linear", f"linear{BEST}", ATTACK_SUCCESS}
    return {row["round"] for row in record.metrics if is_score(row["name"]) and row["name"] not in others}


def _values(rows: Sequence[Row]) -> dict[tuple[int, str, str], str]:
    """Key the metrics that are compared; numbers as text, in which NaN equals NaN."""
    return {
        (row["round"], row["participant"], row["name"]): repr(row["value"])
        for row in rows
        if row["name"] not in NOT_COMPARED
    }


def _counted(rows: Sequence[Row]) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for row in rows)
