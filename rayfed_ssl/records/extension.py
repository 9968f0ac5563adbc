"""A run with more rounds: allowed where the rounds that it has would have been the same."""

import yaml

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.records.config_file import FILE
from rayfed_ssl.records.manifest import follows_rounds
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage.filesystem import write_atomically


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
    longer = Config.load(config.dump(), *rounds, trust=False)
    if longer.rounds < config.rounds:
        raise ConfigError(
            f"this run has {config.rounds} rounds, got {rounds[-1]}: name more, or resume it without rounds"
        )
    return longer


def write_rounds(record: RunRecord, federation: Federation) -> None:
    """Write the number of rounds into config.yaml, and what follows from it into the manifest; signs what is trusted."""
    config, rounds, manifest = record.described_config(), federation.config.rounds, record.manifest
    trusted = record.trusted
    if config.rounds != rounds:
        text = yaml.safe_dump(config.model_copy(update={"rounds": rounds}).dump(), sort_keys=False)
        write_atomically(record.directory / FILE, text.encode())
    if trusted:
        record.sign()
    if manifest.num_rounds != rounds:
        manifest.num_rounds, manifest.method = rounds, federation.config.system
        manifest.notes, manifest.break_even = list(federation.notes), federation.break_even()
