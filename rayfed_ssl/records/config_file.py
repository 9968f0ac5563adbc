"""A run's config.yaml, read without importing what somebody else has named in it."""

from pathlib import Path

from rayfed_ssl.config.recipes import Setting, parse_setting
from rayfed_ssl.config.schema import Config, takes_text
from rayfed_ssl.errors import ConfigError, UntrustedError

FILE = "config.yaml"

OUTSIDE = ("engine.shared=null", "engine.trackers=[]", "data.download=false")
"""How a run of somebody else writes nothing outside its directory."""


def read_config(directory: Path, *overrides: Setting, trust: bool) -> Config:
    """Read a run's configuration; overrides may change how it is computed, nothing else.

    Raises:
        ConfigError: It is missing, an override is of another kind, or it cannot be run.
        UntrustedError: It names code and is not trusted.
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
        return Config.load(_file_in(directory), *(() if trust else OUTSIDE), *overrides, trust=trust)
    except UntrustedError:
        raise
    except ConfigError as error:
        if not overrides:
            raise _naming(directory / FILE, error) from error
        read_config(directory, trust=trust)  # if the file is wrong by itself, its error names it
        raise


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
