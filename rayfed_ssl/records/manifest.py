"""The schema of run.json: what a run started from and what happened in each round."""

import hashlib
import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, ValidationError

from rayfed_ssl.config.choices import METHOD, OBJECTIVE
from rayfed_ssl.config.schema import Config
from rayfed_ssl.config.sections import BITS, Engine
from rayfed_ssl.config.strict import StrictModel
from rayfed_ssl.data.partitions import Skew
from rayfed_ssl.engine.arithmetic import Arithmetic
from rayfed_ssl.engine.federation import Federation, training_seed
from rayfed_ssl.engine.ledger import BreakEven
from rayfed_ssl.engine.round_loop import Dropped
from rayfed_ssl.engine.run_watch import RunWarning
from rayfed_ssl.errors import ConfigError, plain, reason
from rayfed_ssl.foreign.reading import read_json
from rayfed_ssl.machine.environment import environment
from rayfed_ssl.randomness.seeds import SERVER


class _Model(StrictModel):
    model_config = ConfigDict(frozen=False)


class RowCounts(_Model):
    """How many rows of each table belong to a round."""

    metrics: int
    ledger: int


class RoundEntry(_Model):
    """A round; `state_sha256` is the digest of all states after it."""

    round: int
    cohort: list[int]
    state_sha256: str
    rows: RowCounts
    dropped: list[Dropped]


class DataEntry(_Model):
    """The dataset: image shape [C, H, W], numbers of samples, and of samples by client.

    Attributes:
        shards_sha256: Digest of which samples each client has.
        names: Clients' names, where a column of the data divides the samples.
    """

    name: str
    fingerprint: str
    shape: Annotated[list[Annotated[int, Field(ge=1, le=1 << 14)]], Field(min_length=3, max_length=3)]
    classes: list[str]
    train: NonNegativeInt
    test: NonNegativeInt
    public: NonNegativeInt
    shards: dict[int, NonNegativeInt]
    shards_sha256: str
    skew: Skew
    names: dict[int, str] = Field({}, exclude_if=lambda names: not names)

    def check(self, federation: Federation) -> None:
        """Raise ConfigError if a federation has other data, or divides them otherwise."""
        began, now = self.fingerprint, federation.dataset.fingerprint
        if began != now:
            raise ConfigError(
                f"the data of {federation.dataset.name} changed since this run began (fingerprint {now[:12]} instead of "
                f"{began[:12]}): restore them, or start a new run"
            )
        if self.shards_sha256 != shards_sha256(federation):
            raise ConfigError(
                f"partition={federation.config.partition.name} gives clients other samples than when this run began: "
                "restore its file or the version of numpy, or start a new run"
            )


class StartEntry(_Model):
    """The file that a run's first weights come from."""

    file: str
    sha256: str


class PrecisionEntry(_Model):
    """How clients compute; see `models.precision.Precision`."""

    device: str
    dtype: str
    channels_last: bool
    compile: bool
    reason: str

    @classmethod
    def of(cls, arithmetic: Arithmetic) -> "PrecisionEntry":
        """Describe how clients' processes compute."""
        return cls(device=arithmetic.device, **asdict(arithmetic.precision))


class HardwareEntry(_Model):
    """The machine that the run was started on."""

    machine: str
    cpu: str
    cores: int | None
    gpus: list[str]


class RunManifest(_Model):
    """The content of run.json.

    Attributes:
        method: The method and objective, as `Config.system` names them.
        recipe: The recipe's name; "" where there was none.
        num_rounds: How many rounds were asked for.
        settings_sha256: Digest of the settings that the states depend on.
        parts: Which parts of the model are trained, averaged or kept, by part.
        notes: Where the run differs from what was configured.
        start: The file of the first weights; None if they are drawn.
        bits: Settings of the engine that decide bits, with what "auto" and null stand for.
        fingerprint: Digests of fixed computations where clients' steps ran, by operation.
        seeds: Derived seeds, to compare implementations by.
        break_even: FLESD's Eq. 11, where representations are sent.
        starts: What was measured of each architecture before round 1, scores in [0, 1].
        warnings: What a run warned of while it went on.
        seconds: Wall time by phase (`engine.phase_timer`) of the last process that ran it, to the end or to a pause.
        encoders: Digest of each final encoder.
        checkpoints: The address of the states; None is the run's own directory.
        states_id: Random; the marker beside states outside the run's directory holds it.
        signature: Of config.yaml, by the user who made the run; see `storage.signatures`.
    """

    started: str
    finished: str | None
    method: str
    recipe: str = ""
    num_rounds: int
    settings_sha256: str
    parts: dict[str, str]
    notes: list[str]
    data: DataEntry
    start: StartEntry | None
    precision: PrecisionEntry
    seeds: dict[str, int]
    break_even: BreakEven | None
    versions: dict[str, str | None]
    hardware: HardwareEntry
    bits: dict[str, str]
    fingerprint: dict[str, str]
    checkpoints: str | None
    states_id: str | None = None
    signature: str | None = None
    starts: dict[str, dict[str, float]]
    warnings: list[RunWarning]
    seconds: dict[str, NonNegativeFloat] = Field({})
    encoders: dict[str, str] = Field({})
    rounds: list[RoundEntry]

    @classmethod
    def read(cls, file: Path) -> "RunManifest":
        """Read run.json.

        Raises:
            ConfigError: It is missing, damaged or cannot be read.
        """
        try:
            manifest = cls.model_validate(read_json(file), strict=False)  # keys of JSON are no integers
            rounds = [entry.round for entry in manifest.rounds]
            if rounds == list(range(1, len(rounds) + 1)) and (rounds or manifest.finished is None):
                return manifest
            problem = "its rounds are not 1, 2 and so on" if rounds else "it is finished and has no rounds"
        except (FileNotFoundError, NotADirectoryError):
            raise ConfigError(f"{file.parent} holds no run: name a directory with a run.json in it") from None
        except ValidationError as error:
            problem = plain(
                f"{'.'.join(map(str, error.errors()[0]['loc']))}: {error.errors()[0]['msg']}".removeprefix(": ")
            )
        except OSError as error:
            raise ConfigError(f"{file} cannot be read ({reason(error)})") from None
        except ValueError as error:
            problem = reason(error)
        raise ConfigError(f"{file} is damaged ({problem}): restore it from a copy, or start a new run") from None

    def text(self) -> str:
        """Write run.json, with one line per round."""
        head = self.model_copy(update={"rounds": []}).model_dump_json(indent=1)
        if not self.rounds:
            return head
        rounds = ",\n  ".join(entry.model_dump_json() for entry in self.rounds)
        return head.replace('\n "rounds": []', f'\n "rounds": [\n  {rounds}\n ]')


def settings_sha256(config: Config) -> str:
    """Digest of the settings that a run's states depend on.

    All but how it is computed and scored, what the data's fingerprint stands for, and the number of rounds where no round
    depends on it.
    """
    others = {"engine", "evaluation"} | (set() if follows_rounds(config) else {"rounds"})
    settings = {key: value for key, value in config.dump().items() if key not in others}
    del settings["data"]["max_pixels"]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def follows_rounds(config: Config) -> str | None:
    """Say which setting makes a round depend on the number of all rounds; None where none does."""
    if config.training.total_epochs is not None:
        return "training.total_epochs is divided among the rounds"
    if (schedule := config.training.optimizer.schedule) != "constant" and config.training.schedule_rounds is None:
        return f"training.optimizer.schedule={schedule} follows the number of rounds"
    if config.method.follows_rounds:
        return f"method={METHOD.name_of(config.method)} weighs its terms by the number of rounds"
    if config.objective.follows_rounds:
        return f"objective={OBJECTIVE.name_of(config.objective)} follows the number of rounds"
    return None


def as_begun(config: Config) -> Config:
    """Take back what `resume RUN rounds=N training.schedule_rounds=R` changes: rounds 1 to R are the same without it."""
    rounds = config.training.schedule_rounds or config.rounds
    training = config.training.model_copy(update={"schedule_rounds": None})
    return config.model_copy(update={"rounds": rounds, "training": training})


def shards_sha256(federation: Federation) -> str:
    """Digest which samples each client has."""
    digest = hashlib.sha256()
    for client_id, rows in sorted(federation.shards.items()):
        digest.update(f"{client_id}:{len(rows)}:".encode() + rows.astype("<i8").tobytes())
    return digest.hexdigest()


def start_entry(federation: Federation) -> StartEntry | None:
    """Name the file that a run's first weights come from."""
    start = federation.task.start
    return None if start is None else StartEntry(file=str(start.file), sha256=start.sha256)


def bits_settings(arithmetic: Arithmetic, engine: Engine) -> dict[str, str]:
    """Write down what `BITS` names, with what "auto" and null stand for where clients' steps run."""
    precision = arithmetic.precision
    values = {
        "device": arithmetic.device.partition(":")[0],
        "cpu": engine.cpu,
        "precision": precision.dtype,
        "channels_last": precision.channels_last,
        "compile": precision.compile,
        "deterministic": engine.deterministic or not arithmetic.device.startswith("cuda"),
        "threads": engine.threads,
        "server_threads": engine.server_threads,
    }
    return {name: str(values[name]).lower() for name in BITS}


def describe(federation: Federation, arithmetic: Arithmetic) -> RunManifest:
    """Make the manifest of a run that starts now, where clients' steps are computed so."""
    config, task, dataset, facts = federation.config, federation.task, federation.dataset, environment()
    return RunManifest(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        finished=None,
        method=config.system,
        recipe=config.recipe,
        num_rounds=config.rounds,
        settings_sha256=settings_sha256(config),
        parts=dict(federation.method.rules(task)),
        notes=list(federation.notes),
        data=DataEntry(
            name=dataset.name,
            fingerprint=dataset.fingerprint,
            shape=list(dataset.train.shape),
            classes=list(dataset.train.classes),
            train=len(dataset.train),
            test=len(dataset.test),
            public=federation.num_public,
            shards={client_id: len(rows) for client_id, rows in federation.shards.items()},
            shards_sha256=shards_sha256(federation),
            skew=federation.skew,
            names=dict(federation.client_names),
        ),
        start=start_entry(federation),
        precision=PrecisionEntry.of(arithmetic),
        seeds={"run": config.seed, "server_round_1": training_seed(config, 1, SERVER)},
        break_even=federation.break_even(),
        versions=facts["versions"],
        hardware=HardwareEntry(**facts["hardware"]),
        bits=bits_settings(arithmetic, config.engine),
        fingerprint=arithmetic.fingerprint,
        checkpoints=None,
        starts={},
        warnings=[],
        rounds=[],
    )
