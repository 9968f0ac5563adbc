"""A run with more rounds: allowed where the rounds that it has would have been the same."""

import yaml

from rayfed_ssl.config.choices import METHOD, OBJECTIVE
from rayfed_ssl.config.schema import Config
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.records.manifest import settings_sha256
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage.filesystem import write_atomically

MOST_TRIED = 1_000
"""Numbers of rounds after the last one to try for a digest, a third of a second."""


def config_to_resume(record: RunRecord, *overrides: str) -> Config:
    """Read the configuration to resume with: settings of `engine.*` and `evaluation.*`, and more `rounds`.

    Raises:
        ConfigError: Another setting would change, or earlier rounds would not have been the same with so many rounds.
    """
    rounds = [override for override in overrides if override.startswith("rounds=")]
    config = record.config(*(override for override in overrides if override not in rounds))
    if not rounds or rounds[-1] == f"rounds={config.rounds}":
        return config
    if why := follows_rounds(config):
        raise ConfigError(f"{why}, so that {rounds[-1]} would have changed the rounds before: start a new run with it")
    longer = Config.load(config.dump(), *rounds)
    if longer.rounds < config.rounds:
        raise ConfigError(
            f"this run has {config.rounds} rounds, got {rounds[-1]}: name more, or resume it without rounds"
        )
    return longer


def expect(record: RunRecord, config: Config) -> None:
    """Let `record.check` expect a longer run's settings; those of another file stay refused.

    A kill in `resume` can leave more rounds in config.yaml while run.json has the digest of fewer.
    """
    now = record.config()
    fewer = (
        range(record.last_round, min(now.rounds, record.last_round + MOST_TRIED)) if follows_rounds(now) is None else ()
    )
    digests = (settings_sha256(now.model_copy(update={"rounds": rounds})) for rounds in (now.rounds, *fewer))
    if record.manifest.settings_sha256 in digests:
        record.manifest.settings_sha256 = settings_sha256(config)


def write_rounds(record: RunRecord, rounds: int) -> None:
    """Write the number of rounds into the run's config.yaml."""
    config = record.config()
    if config.rounds != rounds:
        text = yaml.safe_dump(config.model_copy(update={"rounds": rounds}).dump(), sort_keys=False)
        write_atomically(record.directory / "config.yaml", text.encode())


def follows_rounds(config: Config) -> str | None:
    """Say which setting makes a round depend on the number of all rounds; None where none does."""
    if config.training.total_epochs is not None:
        return "training.total_epochs is divided among the rounds"
    if (schedule := config.training.optimizer.schedule) != "constant":
        return f"training.optimizer.schedule={schedule} follows the number of rounds"
    if config.method.follows_rounds:
        return f"method={METHOD.name_of(config.method)} weighs its terms by the number of rounds"
    if config.objective.follows_rounds:
        return f"objective={OBJECTIVE.name_of(config.objective)} follows the number of rounds"
    return None
