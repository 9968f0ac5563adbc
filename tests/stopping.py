"""Control-C at a moment of a run."""

from dataclasses import dataclass
from typing import Any

from rayfed_ssl import Observer


class Stop(KeyboardInterrupt):
    """Control-C at a moment of our choice."""


@dataclass
class StopAt(Observer):
    """Interrupts a run at the first call of a hook in a round."""

    hook: str
    at: int
    round: int = 0

    def __post_init__(self) -> None:
        setattr(self, self.hook, self._on_hook)

    def on_round(self, round: int, cohort: Any) -> None:
        self.round = round

    def _on_hook(self, *arguments: Any) -> None:
        if self.hook == "on_round":
            self.round = arguments[0]
        # A round is committed while the next one runs.
        if self.at == (arguments[0].state.round if self.hook == "on_commit" else self.round):
            self.stop()

    def stop(self) -> None:
        raise Stop
