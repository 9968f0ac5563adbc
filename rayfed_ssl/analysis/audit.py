"""Audit of a run: what the uploads of a round reveal, measured by attacks; RUN/audit.parquet.

Uploads are computed again from the round's checkpoint, so that none has to be stored. The table is written after each
client, so that an audit that is killed goes on with the next. What attacks reconstruct is in RUN/audit/.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import torch

from rayfed_ssl.adversaries.adversary import UploadAdversary
from rayfed_ssl.attacks import ATTACK, ATTACKS, Attack
from rayfed_ssl.attacks.attack import Finding, Pictures, Seen, Truth
from rayfed_ssl.config.strict import parse
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.arithmetic import Arithmetic, different
from rayfed_ssl.engine.federation import Federation, training_seed
from rayfed_ssl.errors import CheckpointError, ConfigError, reason
from rayfed_ssl.foreign import plugins
from rayfed_ssl.machine.environment import compute_threads
from rayfed_ssl.privacy import client_level, secure_sum
from rayfed_ssl.privacy.protection import hostile_ids
from rayfed_ssl.privacy.secure_sum import SecureSum
from rayfed_ssl.randomness.seeds import Purpose, derive_seed
from rayfed_ssl.records.audit_rows import ATTACKS_VERSION, SCHEMA, TABLE, pictures_of, read_audit
from rayfed_ssl.records.metric_rows import Row
from rayfed_ssl.records.replay import open_run, replay_step
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.filesystem import write_atomically
from rayfed_ssl.storage.tables import write_table
from rayfed_ssl.trees import digest

OTHER_BITS = "audit it on a processor like that of the run, or run again with engine.cpu=portable"

Job = tuple[Path, bool, int, int, dict[str, Mapping[str, Any]]]
"""What one worker does: a run's directory, whether it is trusted, a round, a client, and attacks with their settings."""


@dataclass(frozen=True)
class Plan:
    """Attacks on the uploads of a round.

    Attributes:
        jobs: What is left to compute, one for each client.
        rows: What an audit that was killed has found.
        notes: Attacks that fit no upload of the run, and why.
    """

    jobs: list[Job]
    rows: list[Row]
    notes: list[str]


@dataclass(frozen=True)
class Attacked:
    """What attacks on a client's upload gave: rows, contents of files of pictures, and why attacks failed."""

    client: int
    rows: list[Row]
    pictures: dict[Path, str]
    failures: list[str]


def audit(
    directory: Path | str,
    attacks: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    required: bool = True,
    round: int | None = None,
    clients: Sequence[int] | None = None,
    trust: bool = False,
    work: Callable[[list[Job]], Iterable[Attacked]] | None = None,
    on_client: Callable[[int], None] = lambda client_id: None,
) -> tuple[list[Row], list[str]]:
    """Attack the uploads of a round, and write RUN/audit.parquet.

    Args:
        directory: The run.
        attacks: Settings by the attack's name; None takes all of `list attacks`.
        required: Whether an attack that was named and does not fit is an error; None leaves it out.
        round: Whose uploads; None takes the last.
        clients: Whose uploads; None takes those of the round that no adversary replaced.
        trust: Import the modules that a run of somebody else names.
        work: Does the jobs, in any order and in any process; None does them here.
        on_client: Called with each client that is done.

    Returns:
        The rows of the table, and notes on attacks that do not fit or failed.

    Raises:
        ConfigError: An attack does not fit, or the run lacks what it compares with; or, when the others are done and in the
            table, one that was named has failed.
        CheckpointError: The round's states are gone.
    """
    directory = Path(directory)
    required = required and attacks is not None
    chosen = attacks or {name: {} for name in ATTACK.names()}
    plan = make_plan(directory, chosen, required=required, round=round, clients=clients, trust=trust)
    rows, failures, order = plan.rows, dict[str, None](), list(chosen)
    for attacked in (work or attack_clients)(plan.jobs):
        for file, content in attacked.pictures.items():
            file.parent.mkdir(exist_ok=True)
            write_atomically(file, content.encode())
        failures |= dict.fromkeys(attacked.failures)
        rows = sorted([*rows, *attacked.rows], key=lambda row: (row["client"], order.index(row["attack"])))
        _write(directory, rows)
        on_client(attacked.client)
    if not plan.jobs:
        _write(directory, rows)
    if failures and (required or not rows):
        raise ConfigError(*failures)
    return rows, plan.notes + list(failures)


def _write(directory: Path, rows: list[Row]) -> None:
    if rows:
        write_table(directory / TABLE, pa.Table.from_pylist(rows, schema=SCHEMA))


def make_plan(
    directory: Path,
    attacks: Mapping[str, Mapping[str, Any]],
    *,
    required: bool,
    round: int | None,
    clients: Sequence[int] | None,
    trust: bool,
) -> Plan:
    """Check what is asked for, and find what is left to compute; errors as of `audit`."""
    run = OpenRun(directory, trust)
    record, federation = run.record, run.federation
    if not record.last_round:
        raise ConfigError(f"{directory} has no finished round: resume it first")
    round = record.last_round if round is None else round
    entry = next((entry for entry in record.manifest.rounds if entry.round == round), None)
    cohort = entry.cohort if entry is not None else []
    forged = _forged(federation, round)
    chosen = [k for k in cohort if k not in forged] if clients is None else sorted(set(clients))
    if not cohort:
        raise ConfigError(f"{directory} has no round {round}: it has rounds 1 to {record.last_round}")
    if absent := sorted(set(chosen) - set(cohort)):
        raise ConfigError(f"client {absent[0]} sent nothing in round {round}: those that did are {cohort}")
    if not chosen:
        raise ConfigError(f"round {round} has no upload to audit: name honest clients, or take another round")
    if named := forged.intersection(chosen):
        raise ConfigError(
            f"client {min(named)} is hostile: in round {round} its adversary sent something in the place of its upload, "
            "which is not audited: name others"
        )
    seen, _ = run.observe(round, chosen[0])
    built = {name: build(name, settings) for name, settings in attacks.items()}
    problems = {name: _misfits(name, attack, seen, federation, chosen) for name, attack in built.items()}
    for name, misfits in problems.items():
        if required and misfits:
            raise ConfigError(f"attack={name} does not fit {directory}: {min(misfits.items())[1]}")
    fitting = {k: [name for name in built if k not in problems[name]] for k in chosen}
    # Others' rows are not believed, and code of one's own may have changed.
    wanted = {(k, round, settings_text(built[name])) for k in chosen for name in fitting[k] if ":" not in name}
    found = read_audit(directory) if record.trusted else []
    rows = [row for row in found if (row["client"], row["round"], row["settings"]) in wanted]
    done = {(row["client"], row["attack"]) for row in rows}
    left = {k: {name: attacks[name] for name in fitting[k] if (k, name) not in done} for k in chosen}
    jobs: list[Job] = [(directory, trust, round, k, left[k]) for k in chosen if left[k]]
    by_reason: dict[str, list[str]] = {}
    for name, misfits in problems.items():
        for problem in dict.fromkeys(misfits.values()):
            by_reason.setdefault(problem, []).append(name)
    notes = [f"{', '.join(names)}: left out, as {problem}" for problem, names in by_reason.items()]
    if clients is None and (listed := ", ".join(str(k) for k in cohort if k in forged)):
        notes.append(f"left out, as an adversary sent something in the place of their uploads: {listed}")
    if not any(fitting.values()):
        raise ConfigError(*(f"{directory}: {note}" for note in notes))
    return Plan(jobs, rows, notes)


def _forged(federation: Federation, round: int) -> set[int]:
    """Name the clients whose uploads of a round were replaced."""
    config, adversary = federation.config, federation.config.adversary
    if not isinstance(adversary, UploadAdversary) or round < adversary.from_round:
        return set()
    return {*hostile_ids(adversary, federation.shards, config.seed)}


def _misfits(name: str, attack: Attack, seen: Seen, federation: Federation, clients: Sequence[int]) -> dict[int, str]:
    """Say which clients' uploads an attack does not fit, and why; the kind of upload is the same for all."""
    try:
        with plugins.named_errors("attack", name, ATTACKS):
            attack.target(seen)
    except ValueError as error:
        return dict.fromkeys(clients, str(error))
    lacking = {client_id: _lacking(attack, federation, client_id) for client_id in clients}
    return {client_id: lack for client_id, lack in lacking.items() if lack is not None}


def _lacking(attack: Attack, federation: Federation, client_id: int) -> str | None:
    """Say what a client lacks that the attack is measured by."""
    held = federation.held_out.get(client_id)
    if attack.most is not None and len(federation.shards[client_id]) > attack.most:
        return (
            f"it fits clients of at most {attack.most} samples: run again with more clients or a lower data.train_limit, or "
            "raise its setting most"
        )
    if attack.needs == "others" and held is None:
        return "there are no held-out samples to compare with: run again with privacy.held_out=0.2"
    if attack.needs == "others" and held is not None and len(held.rows) < 2:
        return f"client {client_id} has {len(held.rows)} held-out samples to compare with: run again with more"
    if attack.needs == "canaries" and (held is None or not len(held.canaries)):
        return "there are no canaries: run again with privacy.canaries=100"
    if attack.needs == "labels" and (federation.dataset.train.labels[federation.shards[client_id]] < 0).any():
        return f"client {client_id} has samples without labels to compare with"
    return None


def build(name: str, settings: Mapping[str, Any]) -> Attack:
    """Make an attack from its name and settings.

    Raises:
        ConfigError: There is none of that name, or a setting does not fit.
    """
    return parse(ATTACK.model(name), dict(settings), f"attack {name}")


class OpenRun:
    """A run whose clients' steps are computed again in this process.

    Raises:
        CheckpointError: This processor computes other bits than the run's.
        ConfigError: It sends adapters, of which no attack knows.
    """

    def __init__(self, directory: Path, trust: bool) -> None:
        self.record, self.federation = open_run(directory, trust=trust)
        if self.federation.config.model.adapters is not None:
            raise ConfigError(
                f"audit attacks uploads of whole models, and {directory} sends model.adapters: audit a run without them"
            )
        self._means: dict[int, Any] = {}
        self._first_state = cache(self.federation.init_server)
        here = Arithmetic.of(self.federation.task, self.federation.config.engine)
        if operations := different(self.record.manifest.fingerprint, here.fingerprint):
            raise CheckpointError(
                f"{directory} was computed on a processor of other bits ({', '.join(operations)}): {OTHER_BITS}"
            )

    def observe(self, round: int, client_id: int) -> tuple[Seen, Truth]:
        """Compute what the server saw of a client's step, and what is true of the client; under secure sums, the mean.

        Raises:
            CheckpointError: The round before is gone, or the step has other bits here than in the run.
        """
        download, result = replay_step(self.record, self.federation, round, client_id)
        stored = checkpoints.latest(self.record.checkpoints, round).clients.get(client_id)
        if stored is not None and stored.sha256 != digest(result.state):
            raise CheckpointError(f"client {client_id}'s step of round {round} has other bits here: {OTHER_BITS}")
        upload = result.upload
        if isinstance(self.federation.method, SecureSum):
            upload = self._mean(round, self.federation.method)
        return view(self.federation, round, client_id, plain_download(download), upload, self._first_state)

    def _mean(self, round: int, method: SecureSum) -> Any:
        """Give the one upload that stands for a round's, computed once."""
        if round not in self._means:
            cohort = next(entry.cohort for entry in self.record.manifest.rounds if entry.round == round)
            uploads = {k: replay_step(self.record, self.federation, round, k)[1].upload for k in cohort}
            (self._means[round],) = method.stand_in(uploads).values()
        return self._means[round]


def plain_download(download: Any) -> Any:
    """Take a method's own download out of those of secure sums and of budgets."""
    if isinstance(download, secure_sum.Download):
        download = download.base
    return download.inner if isinstance(download, client_level.Download) else download


def view(
    federation: Federation,
    round: int,
    client_id: int,
    download: Any,
    upload: Any,
    first: Callable[[], Any] | None = None,
) -> tuple[Seen, Truth]:
    """Divide what is known of a client's step into what the server saw of it and what is true; `first` makes state 0."""
    task, dataset = federation.task, federation.dataset
    test, train = dataset.test, dataset.train
    seed = derive_seed(federation.config.seed, Purpose.AUDIT, round=round, participant=client_id)
    seen = Seen(
        client_id,
        round,
        federation.config.method,
        task,
        download,
        upload,
        federation.public_shard,
        Shard.of(test.images, np.arange(len(test)), task.device, test.labels),
        seed,
        training_seed(federation.config, round, client_id),
        lambda: plain_download(federation.method.download((first or federation.init_server)(), client_id)),
        federation.config.privacy.delta,
    )
    rows, held = federation.shards[client_id], federation.held_out.get(client_id)
    none = np.zeros(0, dtype=np.int64)
    canaries = none if held is None else held.canaries
    counts = np.bincount(train.labels[rows][train.labels[rows] >= 0], minlength=train.num_classes)
    labeled = (train.labels[rows] >= 0).all() and train.num_classes > 1
    shares = torch.tensor(counts / len(rows)) if labeled else torch.full((max(1, train.num_classes),), torch.nan)
    truth = Truth(
        Shard.of(train.images, rows, task.device, train.labels),
        Shard.of(train.images, none if held is None else held.rows, task.device, train.labels),
        Shard.of(train.images, canaries, task.device, train.labels),
        torch.tensor(np.isin(canaries, rows)),
        shares,
    )
    return seen, truth


def attack_clients(jobs: Sequence[Job]) -> Iterator[Attacked]:
    """Run the attacks on clients' uploads of one run."""
    run: OpenRun | None = None
    memory: dict[str, Any] = {}
    for directory, trust, round, client_id, attacks in jobs:
        run = run or OpenRun(directory, trust)
        plugins.allow(list(attacks))
        attacked = Attacked(client_id, [], {}, [])
        with compute_threads(run.federation.config.engine.threads):
            seen, truth = run.observe(round, client_id)
            for name, settings in attacks.items():
                attack = build(name, settings)
                seed = derive_seed(seen.seed >> 1, Purpose.AUDIT, participant=crc32(name.encode()))
                try:
                    rows, shown = _rows(name, attack, dataclasses.replace(seen, seed=seed, memory=memory), truth)
                except (MemoryError, OSError):
                    raise
                except Exception as error:  # others go on, whatever an attack meets in an upload
                    raised = f"attack={name} failed, {type(error).__name__}: {reason(error)}"
                    attacked.failures.append(str(error) if isinstance(error, ConfigError) else raised)
                else:
                    attacked.rows.extend(rows)
                    if shown:
                        file = pictures_of(directory, round, client_id, name, settings_text(attack))
                        attacked.pictures[file] = json.dumps(shown)
        yield attacked


def settings_text(attack: Attack) -> str:
    """Write an attack's name and settings as JSON, and the version of its numbers."""
    return json.dumps({**ATTACK.dump(attack), "version": ATTACKS_VERSION}, sort_keys=True)


def _rows(name: str, attack: Attack, seen: Seen, truth: Truth) -> tuple[list[Row], list[Any]]:
    kind, settings = attack.target(seen), settings_text(attack)
    rows: list[Row] = []
    shown: list[Any] = []
    with plugins.named_errors("attack", name, ATTACKS):
        answers = list(attack.run(seen, truth))
    for answer in answers:
        if isinstance(answer, Pictures) and _is_shown(answer):
            shown += [answer.originals.tolist(), answer.reconstructions.tolist()]
        elif isinstance(answer, Finding) and _is_recorded(answer):
            place = {"attack": name, "kind": kind, "client": seen.client, "round": seen.round}
            numbers = {
                "value": float(answer.value),
                "low": -math.inf if answer.low is None else float(answer.low),
                "high": math.inf if answer.high is None else float(answer.high),
            }
            rows.append(place | vars(answer) | numbers | {"settings": settings})
        else:
            raise ConfigError(
                f"attack={name} must give Findings of a text, a finite value, numbers or None as its interval and a number "
                f"of targets, or Pictures, uint8 [M, C, H, W] twice, got {answer!r:.200}"
            )
    return rows, shown


def _is_recorded(finding: Finding) -> bool:
    value, ends, targets = finding.value, (finding.low, finding.high), finding.targets
    return (
        isinstance(finding.metric, str)
        and _is_number(value)
        and math.isfinite(value)
        and all(end is None or _is_number(end) for end in ends)
        and type(targets) is int
        and 0 <= targets < 2**31
    )


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**53)


def _is_shown(pictures: Pictures) -> bool:
    pair = (pictures.originals, pictures.reconstructions)
    if not all(isinstance(each, torch.Tensor) and each.dtype == torch.uint8 and each.dim() == 4 for each in pair):
        return False
    return pair[0].shape == pair[1].shape and pair[0].shape[1] in (1, 3)
