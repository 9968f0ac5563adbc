"""A run's config.yaml, read without importing what somebody else has named in it."""

from collections.abc import Sequence
from pathlib import Path

from rayfed_ssl.config.recipes import Setting, parse_setting
from rayfed_ssl.config.schema import Config, takes_text
from rayfed_ssl.data.folders import is_saved
from rayfed_ssl.errors import ConfigError, UntrustedError

FILE = "config.yaml"

OUTSIDE = ("engine.shared=null", "engine.trackers=[]", "data.download=false")
"""How a run of somebody else writes nothing outside its directory."""


def read_config(directory: Path, *overrides: Setting, trust: bool, opens_data: bool = True) -> Config:
    """Read a run's configuration; overrides may change how it is computed, nothing else.

    Raises:
        ConfigError: It is missing, an override is of another kind, or it cannot be run.
        UntrustedError: It names code, or data to open that would be fetched, and is not trusted.
    """
    for override in overrides:
        if isinstance(override, str) and "=" not in override:
            raise ConfigError(f"after the run come settings, KEY=VALUE, got {override}")
        if not parse_setting(override, takes_text)[0].startswith(("engine.", "evaluation.")):
            raise ConfigError(
                f"a run keeps the settings that it began with, got {override}: only engine.* and evaluation.* may change"
                ", and rounds by `rayfed-ssl resume`"
            )
    try:
        config = Config.load(_file_in(directory), *(() if trust else OUTSIDE), *overrides, trust=trust)
        if opens_data and not trust:
            refuse_fetching(directory / FILE, config, overrides)
        return config
    except UntrustedError:
        raise
    except ConfigError as error:
        if not overrides:
            raise _naming(directory / FILE, error) from error
        read_config(directory, trust=trust)  # if the file is wrong by itself, its error names it
        raise


def refuse_fetching(file: object, config: Config, typed: Sequence[Setting]) -> None:
    """Raise UntrustedError for a dataset that Hugging Face's library would open, which fetches what a directory names.

    What the user's own settings name is not refused.
    """
    named = [f"{config.data.name}:{config.data.path}", (config.public or "").rpartition(":")[0]]
    named += [str(settings.get("dataset")) for settings in config.evaluation.settings.values()]
    settings = [parse_setting(setting, takes_text) for setting in typed]
    typed_parts = [
        str(value).split(":") for key, value in settings if key in ("data.path", "public") or key.endswith(".dataset")
    ]
    for name, _, place in (text.partition(":") for text in named):
        if name == "hub" and not is_saved(Path(place)) and not any(place in parts for parts in typed_parts):
            raise UntrustedError(
                f"{file} names the dataset hub:{place}, which would be fetched: to allow it, add --trust (Python: "
                "trust=True), or put there what save_to_disk wrote"
            )


def describe_config(directory: Path) -> Config:
    """Read a run's configuration to show it; see `Config.describe`. Errors name the file."""
    file = _file_in(directory)
    try:
        return Config.describe(file)
    except ConfigError as error:
        raise _naming(file, error) from error


def _naming(file: Path, error: ConfigError) -> ConfigError:
    return ConfigError(*(line if str(file) in line else f"{file}: {line}" for line in error.args))


def _file_in(directory: Path) -> Path:
    file = directory / FILE
    if not file.is_file():
        raise ConfigError(f"{file} is missing or no regular file: restore it from a copy, or start a new run")
    return file
