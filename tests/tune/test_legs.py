"""Legs on their way: what an earlier call came to is answered and not run again."""

from pathlib import Path

from tests.tune.test_search import KINDS, answer, sweep
from tune.search import Outcome, Search
from tune.trials import Legs


def explore(folder: Path, failures: dict[str, str], dies: int | None) -> list[tuple]:
    """Run a search whose runs leave nothing on disk; one of its trials dies."""
    search = Search(sweep(**KINDS["tpe"]))
    legs = Legs(search, folder, failures)
    while (leg := legs.next()) is not None:
        legs.done(leg.name, Outcome(failure="its process died") if leg.trial == dies else answer(leg))
    return [(trial.number, dict(trial.point), trial.state, trial.reason) for trial in search.trials]


def test_a_search_that_adapts_goes_on_with_the_failures_that_it_has_seen(tmp_path):
    failures: dict[str, str] = {}
    first = explore(tmp_path, failures, dies=2)
    assert explore(tmp_path, failures, dies=None) == first
    assert explore(tmp_path, {}, dies=None) != first
