"""rayfed-ssl as a user runs it: `actors.run` with its checkpoints, hashes and records of every round."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import actors
from actors.cluster.connect import start
from benchmarks.peers.meter import Meter, main
from benchmarks.peers.work import Case
from rayfed_ssl.engine.round_loop import ClientReport, Observer, RoundOutcome
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.trees import Weights

KILL_AFTER = 0.5
"""Seconds into the round after which an actor is killed."""


class RoundsDoneError(Exception):
    """Ends a run before its final evaluation, which other systems do not have."""


class Watch(Observer):
    """Reads the clock where rounds begin, and stops before the evaluation."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.hashes: list[str] = []
        self.retries = 0

    def on_round(self, round: int, cohort: Sequence[int]) -> None:
        """A round begins."""
        self.meter.start_round()
        if round == self.meter.case.kill:
            self.meter.kill_one("ray::ClientActor", KILL_AFTER)

    def on_client(self, report: ClientReport) -> None:
        """A client is done."""
        self.meter.note_client(report.seconds)

    def on_round_end(self, outcome: RoundOutcome) -> None:
        """A round is computed."""
        self.meter.note_cohort([report.client for report in outcome.clients], len(outcome.dropped))
        self.hashes.append(outcome.state.sha256)
        self.retries += outcome.retries

    def on_evaluations(self, final: bool) -> None:
        """The rounds are over."""
        self.meter.stop()
        raise RoundsDoneError


def measure(case: Case, meter: Meter) -> None:
    """Run a case, or go on with it if its directory holds its beginning."""
    start()  # all cases share one Ray
    watch = Watch(meter)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(case.directory or folder) / "run"
        try:
            if (directory / "run.json").exists():
                actors.resume(directory, observer=watch)
            else:
                actors.run(case.config(), directory, observer=watch)
        except RoundsDoneError:
            meter.finish(_weights(directory), hashes=watch.hashes, retries=watch.retries)


def _weights(directory: Path) -> Weights:
    places = RunRecord.open(directory).checkpoints
    found: Weights = checkpoints.read(checkpoints.latest(places).server, places).weights
    return found


if __name__ == "__main__":
    main("rayfed-ssl", measure)
