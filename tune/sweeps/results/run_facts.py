"""What the records of a sweep's runs say beside scores: the samples that chose, who may have seen them, and versions."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tune.sweeps.results.trial_results import TrialResult

Summary = Mapping[str, Any]
"""run.json."""


def summaries_of(directory: Path, trials: Sequence[TrialResult]) -> list[Summary]:
    """Read the records that are there and whole, each once.

    Args:
        directory: The sweep's.
        trials: Its trials.
    """
    found = (_read(directory / run) for run in dict.fromkeys(run for trial in trials for run in trial.runs))
    return [summary for summary in found if summary is not None]


def samples_of(summaries: Sequence[Summary]) -> tuple[int, ...]:
    """Find how many samples the runs were scored on, one number for each dataset."""
    counts = set()
    for summary in summaries:
        with suppress(LookupError, TypeError, ValueError):
            counts.add(int(summary["data"]["test"]))
    return tuple(sorted(counts))


def leaks_of(summaries: Sequence[Summary]) -> list[str]:
    """Say which encoders that runs begin with, and those that they began with, may have seen the held-out samples."""
    found: dict[str, str] = {}
    for summary in summaries:
        with suppress(LookupError, TypeError):
            own = summary["data"]["fingerprint"]
            for file, theirs in _starts(summary):
                if theirs is None:
                    found[file] = f"{file} does not say what it was trained on"
                elif theirs != own:
                    found[file] = (
                        f"{file} was not trained with the same samples held out: data, data.validation or seed differ"
                    )
    return [f"{what}; it may have seen the samples that settings are chosen by." for what in found.values()]


def versions_of(summaries: Sequence[Summary]) -> list[str]:
    """Say which packages had several versions while the runs were made."""
    found: dict[str, set[str]] = {}
    for summary in summaries:
        with suppress(LookupError, TypeError, AttributeError):
            for package, version in summary["versions"].items():
                found.setdefault(package, set()).add(str(version))
    told = [f"{package} {' and '.join(sorted(versions))}" for package, versions in found.items() if len(versions) > 1]
    return [f"The runs were made with several versions, which may differ in bits: {', '.join(told)}."] if told else []


def _read(run: Path) -> Summary | None:
    with suppress(OSError, ValueError):  # not begun, or damaged, which going on says
        summary = json.loads((run / "run.json").read_text())
        return summary if isinstance(summary, dict) else None
    return None


def _starts(summary: Summary) -> Iterator[tuple[str, str | None]]:
    """Follow what a run began with to its origin: each file, and the fingerprint of what it was trained on."""
    seen: set[str] = set()
    while summary.get("start") is not None and (file := summary["start"]["file"]) not in seen:
        seen.add(file)
        made = next((read for parent in list(Path(file).parents)[:3] if (read := _read(parent)) is not None), None)
        yield file, None if made is None else made["data"]["fingerprint"]
        summary = {} if made is None else made
