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

    def on_round(self, round: int, cohort: Any) -> None:
        self.round = round
        self._stop("on_round")

    def on_client(self, report: Any) -> None:
        self._stop("on_client")

    def on_server(self, report: Any) -> None:
        self._stop("on_server")

    def on_round_end(self, outcome: Any) -> None:
        self._stop("on_round_end")

    def on_evaluations(self, final: bool) -> None:
        self._stop("on_evaluations")

    def on_evaluated(self, evaluations: Any) -> None:
        self._stop("on_evaluated")

    def _stop(self, hook: str) -> None:
        if (self.hook, self.at) == (hook, self.round):
            raise Stop
