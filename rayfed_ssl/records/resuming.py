"""Resuming: with which settings, from which state, whether to the same bits, and with more rounds.

More rounds are allowed where the rounds that a run has would have been the same.
"""

import shlex
from collections.abc import Iterator

import yaml

from rayfed_ssl.config.recipes import Setting, parse_setting
from rayfed_ssl.config.schema import Config, takes_text
from rayfed_ssl.config.sections import Engine
from rayfed_ssl.engine.arithmetic import Arithmetic
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.run_watch import RunWarning
from rayfed_ssl.errors import CheckpointError, ConfigError
from rayfed_ssl.machine.environment import environment
from rayfed_ssl.records.bits import other_processor, other_versions
from rayfed_ssl.records.config_file import FILE
from rayfed_ssl.records.manifest import bits_settings, follows_rounds, settings_sha256
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.checkpoints import RunState
from rayfed_ssl.storage.filesystem import write_atomically


def config_to_resume(record: RunRecord, *overrides: Setting) -> Config:
    """Read the configuration to resume with: settings of `engine.*` and `evaluation.*`, and more `rounds`.

    Raises:
        ConfigError: Another setting would change, or earlier rounds would not have been the same with so many rounds.
    """
    settings = [parse_setting(override, takes_text) for override in overrides]
    extension = dict(setting for setting in settings if setting[0] in ("rounds", "training.schedule_rounds"))
    config = record.config(*(setting for setting in settings if setting[0] not in extension))
    if not extension or extension == {"rounds": config.rounds}:
        return config
    spans = config.training.schedule_rounds or config.rounds
    training = config.training.model_copy(update={"schedule_rounds": spans})
    repeating = config.model_copy(update={"training": training})
    texts = [f"{key}={value}" for key, value in extension.items()]
    if isinstance(rounds := extension.get("rounds"), int) and rounds < config.rounds:
        raise ConfigError(
            f"this run has {config.rounds} rounds, got rounds={rounds}: name more, or resume it without rounds"
        )
    named = "training.schedule_rounds" in extension
    if why := follows_rounds(repeating if named else config):
        remedy = (
            "" if follows_rounds(repeating) else f"add training.schedule_rounds={spans} to repeat its last rates, or "
        )
        anew = shlex.join(
            ["rayfed-ssl", "run", str(record.directory / FILE), *(text for text in texts if text.startswith("rounds="))]
        )
        raise ConfigError(
            f"{why}, so that {texts[-1]} would have changed the rounds before: {remedy}start a new run with "
            f"`{anew}`; model.start=RUN takes its encoder"
        )
    longer = Config.load(config.dump(), *extension.items(), trust=False)
    if longer.training.schedule_rounds != (spans if named else config.training.schedule_rounds):
        got = longer.training.schedule_rounds
        raise ConfigError(
            f"the schedule of this run spans {spans} rounds, got training.schedule_rounds={got}: take {spans}"
        )
    return longer


def state_to_resume(record: RunRecord, round: int | None) -> RunState | None:
    """Find the last committed round, or a given one; None where the run was stopped before its first commit.

    Raises:
        CheckpointError: There is none, its manifest is damaged, or it is another run's.
    """
    if not checkpoints.manifests(record.checkpoints):
        if not record.last_round:
            return None
        raise CheckpointError(
            f"{record.checkpoints} holds no committed round, but this run reached round {record.last_round}: restore its "
            "states, or start the run anew"
        )
    state = checkpoints.latest(record.checkpoints, round)
    recorded = {entry.round: entry.state_sha256 for entry in record.manifest.rounds}.get(state.round)
    if state.round and recorded != state.sha256:
        raise CheckpointError(
            f"{record.checkpoints} holds states of another run: their digest after round {state.round} is "
            f"{state.sha256[:12]}, this run recorded {str(recorded)[:12]}: restore its own states, or start a new run"
        )
    return state


def check_schedule(state: RunState | None, federation: Federation) -> None:
    """Refuse another schedule than the rounds before kept to, as another table of devices gives.

    Raises:
        ConfigError: It differs.
    """
    schedule = federation.schedule
    if state is not None and schedule is not None and schedule.digests[state.round] != state.schedule:
        raise ConfigError(
            f"the schedule of this run up to round {state.round} is another one than it began with: restore its table of "
            "devices and the versions of torch and numpy, or start a new run"
        )


def check_bits(record: RunRecord, engine: Engine, arithmetic: Arithmetic) -> None:
    """Refuse another device, precision or number of threads than a run began with, with other bits as result.

    Raises:
        ConfigError: They differ.
    """
    began, now = record.manifest.bits, bits_settings(arithmetic, engine)
    if names := [name for name in began if began[name] != now[name]]:
        before, after = (" ".join(f"engine.{name}={bits[name]}" for name in names) for bits in (began, now))
        raise ConfigError(
            f"this run began with {before}, got {after}, which gives other results: resume it with {before}, or start a "
            "new run"
        )


def other_bits(record: RunRecord, arithmetic: Arithmetic) -> Iterator[RunWarning]:
    """Warn where clients' steps have other bits here than where the run began."""
    manifest = record.manifest
    processor = other_processor(manifest.fingerprint, arithmetic.fingerprint, manifest.bits)
    versions = other_versions(manifest.versions, environment()["versions"])
    for line in (processor, versions and f"this run began with other versions: {versions}"):
        if line:
            message = f"{line}; the run goes on, and its digests compare with no other run's"
            yield RunWarning("bits", record.last_round, message)


def other_scoring(record: RunRecord, federation: Federation) -> Iterator[RunWarning]:
    """Warn where rounds to come are scored by other settings than config.yaml names."""
    before, after = (
        config.evaluation.model_dump(mode="json") for config in (record.described_config(), federation.config)
    )
    if names := [f"evaluation.{name}" for name in before | after if after.get(name) != before.get(name)]:
        message = f"rounds after {record.last_round} are scored with another {', '.join(names)} than config.yaml has"
        yield RunWarning("scores", record.last_round, message)


def write_rounds(record: RunRecord, federation: Federation) -> None:
    """Write the number of rounds into config.yaml, and what follows from it into the manifest; signs what is trusted."""
    config, rounds, manifest = record.described_config(), federation.config.rounds, record.manifest
    trusted = record.trusted
    if config.rounds != rounds:
        training = config.training.model_copy(update={"schedule_rounds": federation.config.training.schedule_rounds})
        changed = config.model_copy(update={"rounds": rounds, "training": training})
        text = yaml.safe_dump(changed.dump(), sort_keys=False)
        write_atomically(record.directory / FILE, text.encode())
    if trusted:
        record.sign()
    if manifest.num_rounds != rounds:
        manifest.settings_sha256 = settings_sha256(record.described_config())
        manifest.num_rounds, manifest.method = rounds, federation.config.system
        manifest.warnings = [warning for warning in manifest.warnings if warning.kind != "start"]  # of its old end
        manifest.notes, manifest.break_even = list(federation.notes), federation.break_even()
