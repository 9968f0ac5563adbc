"""Whether runs on disk were made of the data that are there now; else half a table would be of other pictures."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.datasets import open_dataset
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.records.run_record import RunRecord


@dataclass
class SameData:
    """Compares fingerprints, and opens each dataset once."""

    _known: dict[str, str | None] = field(default_factory=dict)

    def confirm(self, directory: Path, config: Config) -> None:
        """Refuse a run that was made of other data; where they are not on this machine, nothing is compared.

        Args:
            directory: The run.
            config: What it is taken for.

        Raises:
            ConfigError: The fingerprints differ.
        """
        now = self._fingerprint(config)
        began = RunRecord.open(directory).summary["data"]["fingerprint"]
        if now is not None and began != now:
            raise ConfigError(
                f"{directory} was made of other data than {config.data.name} has now (fingerprint {now[:12]} instead of "
                f"{began[:12]}): restore them, or begin a new sweep; its runs are kept"
            )

    def _fingerprint(self, config: Config) -> str | None:
        key = json.dumps(config.dump()["data"], sort_keys=True)
        if key not in self._known:
            try:
                self._known[key] = open_dataset(
                    config.data.name, **config.data.model_dump(exclude={"name"})
                ).fingerprint
            except (ValueError, OSError):
                self._known[key] = None
        return self._known[key]
