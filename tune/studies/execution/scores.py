"""What the record of a run says after a round: scores of the encoder that is meant, and bytes."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from rayfed_ssl.engine.ledger import Direction
from rayfed_ssl.records.metric_rows import taken
from rayfed_ssl.records.run_record import RunRecord
from tune.studies.definition.search_plan import BYTES


def scores_after(
    directory: Path, names: Iterable[str], take: str | None, round: int, *, whole: bool = False
) -> dict[str, float] | None:
    """Read what a run had come to after a round; it may have reached later ones.

    Args:
        directory: The run.
        names: Scores, or bytes.
        take: Of which encoder; None takes the global one, or the clients' mean.
        round: The round.
        whole: Whether the run must be finished, scores included.

    Returns:
        Values by name; None where the run has not come there, or not been scored there.
    """
    if not (directory / "run.json").is_file():
        return None
    record, values = RunRecord.open(directory), {}
    if record.last_round < round or (whole and record.manifest.finished is None):
        return None
    for name in names:
        value = _bytes(record, name, round) if name in BYTES else score_of(record, name, take, round)
        if value is None:
            return None
        values[name] = value
    return values


def why_none(directory: Path, names: Iterable[str], take: str | None, round: int) -> str:
    """Say which score a run does not have after a round, where `scores_after` gives None."""
    record = RunRecord.open(directory)
    for name in names:
        if name in BYTES or score_of(record, name, take, round) is not None:
            continue
        participants = sorted(
            {row["participant"] for row in record.metrics if row["name"] == name and row["round"] == round}
        )
        if participants:
            return f"{name} is of {', '.join(participants)} in this method, which take: {take} does not mean: leave take out"
        return f"{directory.name} has no score {name} after round {round}: see `rayfed-ssl list protocols`"
    return f"{directory.name} has not come to its end: resume the sweep"


def _bytes(record: RunRecord, name: str, round: int) -> float:
    directions: Mapping[str, tuple[Direction, ...]] = {"bytes_up": ("up",), "bytes_down": ("down",)}
    counted = directions.get(name, ("up", "down"))
    return float(sum(row["bytes"] for row in record.ledger if row["round"] <= round and row["direction"] in counted))


def score_of(record: RunRecord, name: str, take: str | None, round: int) -> float | None:
    """Read the score of the encoder that is meant; None where the run has none."""
    rows = [row for row in record.metrics if row["name"] == name and row["round"] == round]
    values = {row["participant"]: row["value"] for row in rows}
    return taken(values, take)
