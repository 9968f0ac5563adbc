"""What the records of runs say: scores of the encoder that is meant, and bytes, after a round and so far."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.evaluation.registry import OWN, OWN_GOALS, is_score
from rayfed_ssl.privacy.robust import LEFT_OUT
from rayfed_ssl.records.audit_rows import audit_scores
from rayfed_ssl.records.metric_rows import taken
from rayfed_ssl.records.own_scores import deciding_samples, own_scores
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.summary import by_round, left_out
from tune.studies.definition.schema import BYTES, EPSILON, TARGET, is_audit
from tune.studies.definition.study import Study
from tune.studies.execution.directory import TrialRecord
from tune.studies.execution.trial_table import NO_ROUNDS, Row
from tune.studies.search.search import Outcome, Search


def outcome_after(
    directory: Path, names: Iterable[str], take: str | None, round: int, *, whole: bool = False
) -> Outcome:
    """Read what a run had come to after a round; it may have reached later ones.

    Args:
        directory: The run.
        names: Scores, or bytes.
        take: Of which encoder; None takes the global one, or the clients' mean.
        round: The round.
        whole: Whether the run must be finished, scores included.

    Returns:
        Values by name; a failure where the run has not come there, or has not been scored there.
    """
    unfinished = Outcome(failure=f"{directory.name} has not come to its end: resume the study")
    if not (directory / "run.json").is_file():
        return unfinished
    record, values = RunRecord.open(directory), {}
    if record.last_round < round or (whole and record.manifest.finished is None):
        return unfinished
    moved = bytes_of(record, round)
    for name in names:
        value = moved[name] if name in BYTES else score_of(record, name, take, round)
        if value is None:
            of = "" if take is None else f" of {take}"
            return Outcome(
                failure=f"{directory.name} has no score {name}{of} after round {round}: see docs/sweeps.md, goals and take"
            )
        values[name] = value
    return Outcome(values)


def bytes_of(record: RunRecord, until: int) -> dict[str, float]:
    """Count what has crossed clients' boundaries by the end of a round."""
    up, down = (
        float(sum(row["bytes"] for row in record.ledger if row["direction"] == way and row["round"] <= until))
        for way in ("up", "down")
    )
    return {"bytes": up + down, "bytes_up": up, "bytes_down": down}


def score_of(record: RunRecord, name: str, take: str | None, round: int) -> float | None:
    """Read the score of the encoder that is meant, an audit's mean over clients, or a run's number; None without one."""
    if target := TARGET.fullmatch(name):
        return reaching(record, take, round, float(target[2]), target[1])
    if is_audit(name):
        return audit_scores(record.directory, round).get(name)
    if name in LEFT_OUT:
        return left_out(record.metrics, round).get(name)
    rows = [row for row in record.metrics if row["name"] == name and row["round"] == round]
    return taken({row["participant"]: row["value"] for row in rows}, None if name == EPSILON else take)


def reaching(record: RunRecord, take: str | None, until: int, target: float, what: str) -> float | None:
    """Find what a run had taken when kNN first came to a target: virtual seconds (`what` is "time"), or "bytes".

    Infinity where it had not by the round `until`; None where kNN, or virtual time, is not on record.
    """
    scores_by_round = defaultdict[int, dict[str, float]](dict)
    for row in record.metrics:
        if row["name"] == "knn" and row["round"] <= until:
            scores_by_round[row["round"]][row["participant"]] = row["value"]
    times = by_round(record.metrics, "virtual_seconds", "run")
    if not scores_by_round or (what == "time" and not times):
        return None
    for round, scores in sorted(scores_by_round.items()):
        if (taken(scores, take) or 0) >= target:
            return times[round][0] if what == "time" else bytes_of(record, round)["bytes"]
    return math.inf


def read_progress(directory: Path, take: str | None, scores: Collection[str] = ()) -> Row:
    """Read from a run's record its rounds, bytes and last scores, `scores` among them."""
    try:
        record = RunRecord.open(directory)
    except ConfigError:
        return NO_ROUNDS
    seconds = [row["value"] for row in record.metrics if (row["participant"], row["name"]) == ("run", "seconds")]
    progress: Row = {"round": record.last_round, "seconds": sum(seconds)} | bytes_of(record, record.last_round)
    own = own_scores(record.metrics, record.last_round)
    is_own = bool(own) and any(score.startswith(OWN) for score in scores)
    deciding = min((deciding_samples(own, score) for score in scores), default=0) if is_own else 0
    progress["samples"] = deciding or record.manifest.data.test
    progress["finished"] = record.manifest.finished is not None
    progress["state_sha256"] = record.manifest.rounds[-1].state_sha256 if record.manifest.rounds else None
    names = {(row["name"], row["round"]) for row in record.metrics}
    names |= {(name, record.last_round) for name in filter(TARGET.fullmatch, scores)}
    for name, round in sorted(names, key=lambda each: (each[0], -each[1])):  # of the last round that has it
        is_shown = is_score(name) or name.startswith("diag_") or name in (EPSILON, *LEFT_OUT, *OWN_GOALS, *scores)
        is_read = f"score.{name}" in progress
        if is_shown and not is_read and (value := score_of(record, name, take, round)) is not None:
            progress[f"score.{name}"] = value
    return progress | {f"score.{name}": value for name, value in audit_scores(directory, record.last_round).items()}


def record_trials(search: Search) -> list[TrialRecord]:
    """Describe the trials of a search as they are now."""
    return [
        TrialRecord(
            point=dict(trial.point),
            runs=trial.names,
            rounds=trial.rounds if trial.runs else None,
            state=trial.state,
            reason=trial.reason,
        )
        for trial in search.trials
    ]


@dataclass
class TrialRows:
    """Makes the rows of trials; a run is read once, and again when it is forgotten."""

    runs: Path
    _read: dict[str, dict[tuple[str | None, tuple[str, ...]], Row]] = field(default_factory=dict)

    def forget(self, run: str) -> None:
        """Read a run anew, as it has come farther."""
        self._read.pop(run, None)

    def of(self, study: Study, trials: Iterable[TrialRecord]) -> list[Row]:
        """Describe trials by their runs' records."""
        rows = []
        for number, trial in enumerate(trials):
            cell = study.cell(trial.point)
            common: Row = {"trial": number, "state": trial.state, "reason": trial.reason, "point": trial.point}
            common |= {"rounds": trial.rounds}
            if not trial.runs:
                rows.append(common | {"seed": None, "run": None} | NO_ROUNDS)
            for seed, run in zip(study.seeds, trial.runs, strict=False):
                scores = tuple(goal.score for goal in study.goals) if cell.score is None else (cell.score,)
                read, key = self._read.setdefault(run, {}), (cell.take, scores)
                if key not in read:
                    read[key] = read_progress(self.runs / run, *key)
                rows.append(common | {"seed": seed, "run": f"{self.runs.name}/{run}"} | read[key])
        return rows
