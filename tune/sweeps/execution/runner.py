"""Begin, go on with and look at a sweep: one directory with all that it was and gave.

sweep.json       what was asked for, with which versions, and how far it is
trials.parquet   a row for each trial and seed, written anew as runs end
study.journal    Optuna's storage, for `optuna-dashboard DIR/study.journal`
shared/          what the server of several runs begins with, trained once
runs/NAME        the runs, named for their settings: equal runs of several trials are one
tune/            Ray Tune's own files
table.md, best.yaml, results.json, figures   when the sweep has come to its end

Who goes on asks the search again from its beginning, and answers with the runs on disk.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfed_ssl.environment import environment
from rayfed_ssl.errors import ConfigError
from tune.sweeps.execution.directory import SweepDirectory
from tune.sweeps.results.rows import Known, rows_of
from tune.sweeps.results.trial_table import write_rows
from tune.sweeps.search.search import Search

if TYPE_CHECKING:
    from actors.cluster.health import Health

__all__ = ["Record", "SweepDirectory", "default_directory", "run_sweep"]

Say = Callable[[str], None]

LOOK_EVERY = 2.0
"""Seconds between two looks at Ray's processes."""


@dataclass
class Record:
    """Writes down what a search comes to while it goes on.

    Args:
        directory: Where.
        search: Whose.
    """

    directory: SweepDirectory
    search: Search
    _before: list[Any] = field(init=False)
    _known: Known = field(default_factory=dict)
    _failures: int = 0

    def __post_init__(self) -> None:
        content = self.directory.content
        self._before = list(zip(content["points"], content["runs"], strict=False))

    def update(self) -> None:
        """Write the trials as they are now.

        Raises:
            ConfigError: Other points were chosen than before the sweep was interrupted.
        """
        points = [dict(trial.point) for trial in self.search.trials]
        runs = [list(trial.names.values()) for trial in self.search.trials]
        for number, (old, new) in enumerate(zip(self._before, zip(points, runs, strict=True), strict=False)):
            if old != new:
                self._refuse(number, *((old[0], new[0]) if old[0] != new[0] else (old[1], new[1])))
        content = self.directory.content
        failures = len(content.get("failures", ()))
        if len(points) > len(content["points"]) or failures > self._failures:
            self._failures = failures
            content |= {"points": points, "runs": runs}
            self.directory.save()
        write_rows(rows_of(self.search, self.directory.runs, self._known), self.directory.path / "trials.parquet")

    def _refuse(self, number: int, old: Any, new: Any) -> None:
        now, then = environment()["versions"], self.directory.content["versions"]
        changed = [f"{name} {then.get(name)} is now {now[name]}" for name in now if then.get(name) != now[name]]
        why = f" ({', '.join(changed)})" if changed else ""
        raise ConfigError(
            f"trial {number} was {old} and would now be {new}{why}: go on with the versions and recipes that the sweep "
            "began with, or begin a new one; its runs are kept"
        )

    def finish(self) -> None:
        """Mark the sweep as complete."""
        self.update()
        if self.directory.content["finished"] is None:
            self.directory.content["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
            self.directory.save()


def default_directory(source: str) -> Path:
    """Name a sweep's directory after it, under ./runs."""
    return Path("runs") / f"sweep-{Path(source).stem}"


def run_sweep(
    directory: SweepDirectory,
    *,
    concurrency: int | None = None,
    address: str | None = None,
    say: Say = lambda line: None,
    lost: Say | None = None,
) -> Search:
    """Run a sweep to its end, from wherever it is.

    Args:
        directory: What to run.
        concurrency: Trials at a time at most; None means as many as the machines hold.
        address: A Ray to join; None starts one here.
        say: Is told of each trial that ended.
        lost: Is told, in a thread of its own, when a Ray that was started here has died, and must end this process: whoever
            waits for Ray then may wait for ever. None looks at nothing.

    Raises:
        ConfigError: It cannot be run, or another process runs it.
        ClusterError: Ray does not start.
    """
    with directory.locked():
        return _run(directory, concurrency, address, say, lost)


@contextmanager
def _watched(health: "Health", lost: Say | None) -> Iterator[None]:
    """Look after Ray's processes meanwhile."""
    from actors.errors import ClusterError

    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_EVERY):
            try:
                health.check_processes()
            except ClusterError as error:
                if not over.is_set() and lost is not None:
                    health.kill_processes()
                    lost(str(error))
                return

    thread = threading.Thread(target=watch, daemon=True)
    if lost is not None:
        thread.start()
    try:
        yield
    finally:
        over.set()


def _run(directory: SweepDirectory, concurrency: int | None, address: str | None, say: Say, lost: Say | None) -> Search:
    from actors.cluster.connect import start
    from tune.sweeps.execution.progress import SweepProgress
    from tune.sweeps.execution.resources import Room
    from tune.sweeps.execution.same_data import SameData
    from tune.sweeps.execution.trials import Legs, run_legs

    sweep = directory.sweep
    cluster = start(address, alternative="; sweeps run on Ray alone, single runs need none")
    try:
        room = Room(cluster.nodes(), directory.path.resolve() / "shared")
        progress = SweepProgress(sweep, say)
        search = Search(sweep, directory.path / "study.journal", tell=progress.trial_ended)
        record = Record(directory, search)
        legs = Legs(
            search,
            directory.runs,
            directory.seen_failures(),
            check=room.check,
            confirm=SameData().confirm,
            say=lambda ended: progress.leg_ended(ended, search.total),
            changed=record.update,
        )
        first = legs.next()  # what is on disk is answered before anything is started
        record.update()
        if first is not None:
            directory.content["finished"] = None
            legs.give_back(first)
            with _watched(cluster.health, lost):
                run_legs(legs, room, directory.path, concurrency=concurrency, attempts=3)
        if search.finished:
            record.finish()
        return search
    finally:
        cluster.stop()
