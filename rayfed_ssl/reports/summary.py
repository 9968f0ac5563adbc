"""What a run achieved and what it cost, from its record."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from rayfed_ssl.config.choices import Foreign
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.ledger import BreakEven
from rayfed_ssl.evaluation.registry import ATTACK_SUCCESS
from rayfed_ssl.formats import DECISIVE, duration, number, percent, size, standard_error, value_text
from rayfed_ssl.method import Metrics
from rayfed_ssl.privacy.robust import HONEST_LOST, HOSTILE_FOUND, LEFT_OUT
from rayfed_ssl.records.audit_rows import audit_scores
from rayfed_ssl.records.bits import why_bits_differ
from rayfed_ssl.records.config_file import FILE
from rayfed_ssl.records.metric_rows import Row, client_of, headline
from rayfed_ssl.records.own_scores import own_scores
from rayfed_ssl.records.run_record import RunRecord

SCORES = {"knn": "kNN", "linear": "linear"}
"""Scores that are compared with the start, and their names."""


@dataclass(frozen=True)
class CurvePoint:
    """A run after a round: bytes moved, wall time and virtual seconds so far, and its encoders' mean accuracies."""

    round: int
    bytes: int
    seconds: float
    knn: float
    virtual: float | None = None
    linear: float | None = None


@dataclass(frozen=True)
class Summary:
    """A run in numbers.

    Attributes:
        recipe: The name of the recipe that the run began with; "" where there was none.
        name: The method's name; "local" on one pooled shard is the centralized upper bound.
        fingerprint: sha256 of the dataset, wherever it lay.
        rounds: Rounds that are on record.
        scores: Final accuracies in [0, 1] by encoder.
        bytes_by_kind: Bytes by (direction, kind of content).
        seconds: Wall time of all rounds, evaluation not included.
        phases: Wall time by phase of the last process that ran it to the end or to a pause.
        break_even: FLESD's Eq. 11, where representations are sent.
        starts: Scores in [0, 1] and diagnostics before round 1 by architecture.
        warnings: What the run warned of while it went on.
        changed: That its settings were changed after it began; None where they were not.
        epsilon: What uploads have cost so far; None where they are not noised.
        virtual_seconds: Virtual time of the last round's end; None without a clock.
        wasted_bytes: Bytes of transfers that no server step used, by the clock's schedule; not in the ledger.
        audit: What attacks on the last round's uploads reached, "attack.metric", the mean over clients.
        samples: Number of test pictures, or of held-out ones, that scores are of.
        own: Each client's scores on samples of its own, by client id; empty without `clients.test_fraction`.
        left_out: How many clients a robust rule gave no weight, hostile ones and others: means over the rounds of an
            attack, or over all.
    """

    directory: Path
    name: str
    config: Config
    fingerprint: str
    finished: bool
    rounds: int
    num_clients: int
    scores: dict[str, Metrics]
    bytes_up: int
    bytes_down: int
    bytes_by_kind: dict[tuple[str, str], int]
    seconds: float
    state_sha256: str | None
    curve: tuple[CurvePoint, ...]
    break_even: BreakEven | None
    phases: dict[str, float] = field(default_factory=dict)
    starts: dict[str, Metrics] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    changed: str | None = None
    epsilon: float | None = None
    virtual_seconds: float | None = None
    wasted_bytes: int = 0
    audit: dict[str, float] = field(default_factory=dict)
    samples: int = 0
    recipe: str = ""
    own: dict[int, Metrics] = field(default_factory=dict)
    left_out: Metrics = field(default_factory=dict)

    def headline(self, score: str) -> float | None:
        """The global encoder's score, or the mean over clients where there is no global one."""
        return headline(self.scores, score)

    def architecture(self, encoder: str) -> str:
        """Name an encoder's architecture: "client-3" has that of client 3, every other the global one."""
        client, models = client_of(encoder), self.config.clients.models
        return self.config.model.encoder if client is None or not models else models[client % len(models)]

    @property
    def objective(self) -> str:
        """The objective's name."""
        return str(self.config.dump()["objective"]["name"])

    @property
    def models(self) -> str:
        """The encoders' names: the clients' own ones, where they have some, else the global one."""
        return ", ".join(dict.fromkeys(self.config.clients.models or (self.config.model.encoder,)))

    @property
    def dataset(self) -> str:
        """The dataset's name, with that of its files: "parquet cifar10"."""
        data = self.config.data
        return data.name if data.path is None else f"{data.name} {data.path.name}"

    def start(self, score: str) -> float | None:
        """The score before round 1 of the encoders that `headline` is of; None where it is not known."""
        starts = {name: self.starts.get(self.architecture(name), {}) for name in self.scores}
        return headline(starts, score)

    def gain(self, score: str) -> float | None:
        """How far the headline is above the score before round 1."""
        now, before = self.headline(score), self.start(score)
        return None if now is None or before is None else now - before

    def reaching(self, target: float) -> CurvePoint | None:
        """The first round after which kNN is at least `target`, in [0, 1]; None if it never was."""
        return next((point for point in self.curve if point.knn >= target), None)

    @property
    def start_kind(self) -> str:
        """Whether the run began with random weights: "random start" or "start"."""
        return "random start" if self.config.model.is_random else "start"

    def error(self, score: str) -> float:
        """Standard error of `gain`; 0 where the number of test pictures is not known."""
        now, before = self.headline(score), self.start(score)
        return standard_error(now or 0.0, before or 0.0, self.samples)

    def side(self, score: str) -> int | None:
        """1 where the headline is above the score before round 1, -1 below it, 0 within two standard errors of it."""
        gain = self.gain(score)
        return None if gain is None else (gain > 0) - (gain < 0) if abs(gain) > DECISIVE * self.error(score) else 0

    @property
    def pictures(self) -> str:
        """The pictures that scores are of: "360 test pictures"."""
        return f"{self.samples:,} {'test' if self.config.data.validation is None else 'held-out'} pictures"

    @property
    def is_below_start(self) -> bool:
        """Whether each score that is known of the start, of kNN and the linear probe, was higher beyond chance."""
        return {side for name in SCORES if (side := self.side(name)) is not None} == {-1}

    def position(self, start: str = "it") -> str:
        """Say where the run is beside its start, "below it by 11.10 ± 2.40 points in linear"; empty without scores."""
        parts = dict[str, list[str]]()
        for name, title in SCORES.items():
            if (side := self.side(name)) is not None:
                place = {1: f"above {start} by", -1: f"below {start} by", 0: f"level with {start} at"}[side]
                points = f"{100 * (self.gain(name) or 0.0) * (side or 1):{'' if side else '+'}.2f}"
                parts.setdefault(place, []).append(f"{points} ± {100 * self.error(name):.2f} points in {title}")
        sides = " and ".join(f"{place} {' and '.join(scores)}" for place, scores in parts.items())
        return f"{sides} ({self.pictures}, ± a standard error)" if sides else ""

    def start_line(self) -> str | None:
        """Say what the run started from and where it is now; None where nothing was scored."""
        starts = {title: share for name, title in SCORES.items() if (share := self.start(name)) is not None}
        if not starts:
            return None
        before = ", ".join(f"{title} {percent(share)}" for title, share in starts.items())
        if self.config.evaluation.augment and "linear" in starts:
            before += " (without new crops in each epoch, which the run's own probe has)"
        position = self.position()
        return f"{self.start_kind}: {before}" + (f"; this run is {position}" if position else "")

    def attack_line(self) -> str | None:
        """Say how often a trigger succeeds, and how often it does before round 1; None without a backdoor."""
        if (now := self.headline(ATTACK_SUCCESS)) is None:
            return None
        before, errors = self.start(ATTACK_SUCCESS), 100 * self.error(ATTACK_SUCCESS)
        beside = (
            "" if before is None else f"; {self.start_kind}: {percent(before)}, ± {errors:.2f} points of difference"
        )
        return f"attack success: {percent(now)} of pictures with the trigger are taken for the target class{beside}"

    def rule_line(self) -> str | None:
        """Say how many clients a robust rule left out of a round; None where it weighs none."""
        numbers = [
            f"{number(self.left_out[name])} {which}"
            for name, which in zip(LEFT_OUT, ("hostile", "honest"), strict=True)
            if name in self.left_out
        ]
        return f"clients that the rule left out, a round: {', '.join(numbers)}" if numbers else None

    def minimum(self, score: str) -> float | None:
        """The lowest score over clients' own encoders: FLESD's Min-Local for the method "local"."""
        return headline(self.scores, score, "minimum")


def with_client_summary(scores: Mapping[str, Metrics]) -> dict[str, Metrics]:
    """Add mean and minimum over clients' encoders, if there are several."""
    clients = [metrics for name, metrics in scores.items() if name != "global"]
    if len(clients) < 2:
        return dict(scores)
    names = [name for name in clients[0] if all(name in metrics for metrics in clients)]
    summary = {
        label: {name: reduce(metrics[name] for metrics in clients) for name in names}
        for label, reduce in (("mean of clients", fmean), ("minimum of clients", min))
    }
    return dict(scores) | summary


def summarize(record: RunRecord) -> Summary:
    """Summarize a run, finished or not, from its record, which is not read again."""
    config, rounds = record.described_config(), record.manifest.rounds
    epsilons = by_round(record.metrics, "epsilon", "server")
    virtual, wasted = (by_round(record.metrics, name, "run") for name in ("virtual_seconds", "wasted_bytes"))
    last = rounds[-1].round if rounds else 0
    changed = f"{record.directory / FILE} changed since this run began, so settings that it shows may be wrong"
    # Whether a foreign method or objective follows the number of rounds is not known.
    foreign = any(isinstance(part, Foreign) for part in (config.method, config.objective, config.training.optimizer))
    by_kind: dict[tuple[str, str], int] = defaultdict(int)
    for row in record.ledger:
        by_kind[row["direction"], row["kind"]] += row["bytes"]
    return Summary(
        directory=record.directory,
        name=record.manifest.method + (f" ({partition_text(config)})" if config.partition.name == "pooled" else ""),
        config=config,
        fingerprint=record.manifest.data.fingerprint,
        finished=record.manifest.finished is not None,
        rounds=last,
        num_clients=len(record.manifest.data.shards),
        scores=record.scores(last),
        bytes_up=sum(size for (direction, _), size in by_kind.items() if direction == "up"),
        bytes_down=sum(size for (direction, _), size in by_kind.items() if direction == "down"),
        bytes_by_kind=dict(by_kind),
        seconds=sum(r["value"] for r in record.metrics if r["participant"] == "run" and r["name"] == "seconds"),
        state_sha256=rounds[-1].state_sha256 if rounds else None,
        curve=_curve(record),
        break_even=record.manifest.break_even,
        phases=record.manifest.seconds,
        starts=record.manifest.starts,
        warnings=tuple(warning.message for warning in record.manifest.warnings),
        changed=changed if not foreign and record.is_changed(config) else None,
        epsilon=fmean(epsilons[max(epsilons)]) if epsilons else None,
        virtual_seconds=fmean(virtual[max(virtual)]) if virtual else None,
        wasted_bytes=round(sum(map(fmean, wasted.values()))),
        audit=audit_scores(record.directory, last),
        samples=record.manifest.data.test,
        recipe=record.manifest.recipe,
        own=own_scores(record.metrics, last),
        left_out=left_out(record.metrics, last),
    )


def score_differences(summaries: Sequence[Summary]) -> str | None:
    """Say in what runs' data and their scoring differ, so that accuracies do not compare; None where they are the same."""
    keys = ("size", "channels", "train_limit", "test_limit", "validation")
    values = {f"data.{key}": [value_text(getattr(s.config.data, key)) for s in summaries] for key in keys}
    if len({summary.fingerprint for summary in summaries}) > 1:
        values["dataset"] = [summary.dataset for summary in summaries]
        if not any(len(set(each)) > 1 for each in values.values()):
            values["fingerprint"] = [summary.fingerprint[:12] for summary in summaries]
    flat = [summary.config.flat() for summary in summaries]
    scoring = ("evaluation.train_limit", "evaluation.augment", "evaluation.knn.", "evaluation.linear.")
    for key in dict.fromkeys(key for settings in flat for key in settings if key.startswith(scoring)):
        values[key] = [value_text(settings.get(key)) for settings in flat]
    differing = [f"{key} {' and '.join(dict.fromkeys(each))}" for key, each in values.items() if len(set(each)) > 1]
    return f"the runs differ in {', '.join(differing)}: their accuracies do not compare" if differing else None


def error_note(summaries: Sequence[Summary]) -> str | None:
    """Say which differences of accuracies are within two standard errors; None for a run alone and without scores."""
    scored = [s for s in summaries if any(s.headline(name) is not None for name in SCORES)]
    shares = [share for summary in scored for name in SCORES if (share := summary.headline(name)) is not None]
    samples = min((summary.samples for summary in scored), default=0)
    if len(scored) < 2 or not samples:
        return None
    largest = 100 * DECISIVE * max(standard_error(share, share, samples) for share in shares)
    within = f"up to {largest:.2f} points, by {samples:,} pictures"
    return f"differences of accuracies within two standard errors are none: {within}"


def digest_notes(records: Sequence[RunRecord]) -> list[str]:
    """Say of runs with equal settings, data and rounds whether their digests are equal, and if not, why."""
    alike: dict[tuple[object, ...], list[RunRecord]] = defaultdict(list)
    for record in records:
        if record.last_round:
            data = record.manifest.data
            key = (record.manifest.settings_sha256, data.fingerprint, data.shards_sha256, record.last_round)
            alike[key].append(record)
    notes = []
    for first, *others in alike.values():
        for other in others:
            names = f"{first.directory.name} and {other.directory.name}"
            digest, other_digest = (each.manifest.rounds[-1].state_sha256 for each in (first, other))
            if digest == other_digest:
                notes.append(f"{names} have equal states, state_sha256 {digest[:16]}")
                continue
            why = why_bits_differ(first.manifest, other.manifest)
            reason = why or "nothing on record says why: see `rayfed-ssl verify`"
            digests = f"{digest[:16]} and {other_digest[:16]}"
            notes.append(f"{names} have equal settings and different digests, {digests}: {reason}")
    return notes


def virtual_text(summary: Summary) -> str:
    """Write what a run takes by its clock: "3 h 20 min, 1.20 MB of transfers wasted"; "" without one."""
    seconds = summary.virtual_seconds
    return "" if seconds is None else f"{duration(seconds)}, {size(summary.wasted_bytes)} of transfers wasted"


def epsilon_text(epsilon: float, config: Config) -> str:
    """Write a privacy budget: "epsilon 8.1 at delta 1e-05 (client level)"."""
    return f"epsilon {epsilon:.3g} at delta {config.privacy.delta:g} ({config.privacy.level} level)"


def partition_text(config: Config) -> str:
    """Name a partition with its concentration, its file, column or part of the samples: "dirichlet, alpha 0.5"."""
    partition, column = config.partition, config.data_settings["group"]
    alpha, path, part = (getattr(partition, field, None) for field in ("alpha", "path", "fraction"))
    fields = (f", alpha {alpha:g}" if alpha else "") + (f", {Path(path).name}" if path else "")
    fields += f" {column}" if column else ""
    return str(partition.name) + fields + (f", fraction {part:g}" if part not in (None, 1) else "")


def by_round(rows: Iterable[Row], name: str, participant: str | None = None) -> dict[int, list[float]]:
    """Collect a metric of all participants, or of one, by round, in ascending rounds."""
    values: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        if row["name"] == name and participant in (None, row["participant"]):
            values[row["round"]].append(row["value"])
    return dict(sorted(values.items()))


def left_out(rows: Sequence[Row], until: int) -> dict[str, float]:
    """Average how many clients a rule left out over the rounds up to one, of an attack only if there are such."""
    counts = {n: {r: v for r, (v,) in by_round(rows, n, "server").items() if r <= until} for n in LEFT_OUT}
    rounds = counts[HOSTILE_FOUND] or counts[HONEST_LOST]
    return {name: fmean(values[round] for round in rounds) for name, values in counts.items() if values}


def _curve(record: RunRecord) -> tuple[CurvePoint, ...]:
    moved, seconds = Counter[int](), by_round(record.metrics, "seconds", "run")
    for row in record.ledger:
        moved[row["round"]] += row["bytes"]
    virtual, linear = by_round(record.metrics, "virtual_seconds", "run"), by_round(record.metrics, "linear")
    return tuple(
        CurvePoint(
            round,
            sum(size for at, size in moved.items() if at <= round),
            sum(sum(values) for at, values in seconds.items() if at <= round),
            fmean(values),
            virtual[round][0] if round in virtual else None,
            fmean(linear[round]) if round in linear else None,
        )
        for round, values in by_round(record.metrics, "knn").items()
    )
