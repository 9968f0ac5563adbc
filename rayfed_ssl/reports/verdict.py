"""The verdict that opens a report: where a run is beside its start, whether it has leveled off, what to do next."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from rayfed_ssl.engine.run_watch import longer
from rayfed_ssl.formats import DECISIVE, percent, standard_error
from rayfed_ssl.records.metric_rows import Row
from rayfed_ssl.reports.summary import Summary, by_round
from rayfed_ssl.training.objective import Objective

LEAST_ROUNDS = 4
"""With fewer numbers on record a trend is not told from noise."""

MOVED = 0.01
"""A smaller change, in the last third of the rounds, counts as none: a point of kNN, a hundredth of the loss."""

NEXT = {
    "rises": "More rounds may raise it further.",
    "has leveled off": "More rounds will hardly change it: compare it with a baseline and with other seeds.",
    "falls": "Fewer rounds may do.",
    "": "",
}
"""What to do with a run that is not below its start, by the trend, which is empty where it is not known."""


def verdict(summary: Summary, rows: Sequence[Row]) -> str:
    """Say of a run what its summary and its metrics on record tell; empty before the first round."""
    if not summary.rounds:
        return ""
    steps = sum(map(sum, by_round(rows, "steps").values())) / summary.num_clients
    position = summary.position(f"its {summary.start_kind}")
    sentences = [f"{f'After {steps:,.0f} steps of a client this' if steps else 'This'} run is {position}."] * bool(
        position
    )
    trend, change = "", _late_change({point.round: point.knn for point in summary.curve})
    if change is not None:
        last = summary.curve[-1].knn
        error = standard_error(last, last - change, summary.samples)
        trend = "has leveled off" if abs(change) < MOVED else "rises" if change > 0 else "falls"
        still = "still " * (trend != "has leveled off")
        points = f"{100 * change:+.2f} ± {100 * error:.2f} points in the last third of its rounds"
        if MOVED <= abs(change) <= DECISIVE * error:
            trend = ""
            sentences.append(f"kNN moved {points}, within two standard errors{_loss(rows)}.")
        else:
            sentences.append(f"kNN {still}{trend}: {points}.")
    elif not position and not summary.curve:
        sentences.append(f"No accuracy is on record{_loss(rows)}.")
    else:
        sentences.append(f"Too few rounds are scored to say whether kNN has converged{_loss(rows)}.")
    enough = getattr(
        summary.config.objective, "enough_steps", Objective.enough_steps
    )  # a foreign one has no such number
    remedy = f"Train longer in a new run: training.total_steps={longer(steps, enough)}." * (steps > 0)
    remedy = remedy if summary.is_below_start else NEXT[trend]
    return " ".join(filter(None, [*sentences, remedy if summary.finished else ""]))


def _loss(rows: Sequence[Row]) -> str:
    """Say whether the clients' loss still falls; empty where too few rounds are on record."""
    clients = [row for row in rows if row["participant"] != "server"]
    losses = {round: fmean(values) for round, values in by_round(clients, "loss").items()}
    change = _late_change(losses)
    if change is None or not losses[max(losses)] - change:
        return ""
    relative = change / abs(losses[max(losses)] - change)
    how = f"still falls, by {percent(-relative)}" if relative < -MOVED else "falls no more"
    return f"; the loss {how} in the last third of the rounds"


def _late_change(values: Mapping[int, float]) -> float | None:
    """The change in the last third of the rounds; None where too few are on record."""
    if len(values) < LEAST_ROUNDS:
        return None
    first, last = min(values), max(values)
    return values[last] - values[max(round for round in values if round <= first + 2 * (last - first) / 3)]
