"""Which samples a sweep has chosen by, as its runs' records say, and whether anything was trained on them before."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tune.trial_results import TrialResult


def samples_of(directory: Path, trials: Sequence[TrialResult]) -> tuple[int, ...]:
    """Read how many samples the runs were scored on, one number for each dataset.

    Args:
        directory: The sweep's.
        trials: Its trials.
    """
    return tuple(
        sorted({count for summary in _summaries(directory, trials) if (count := _samples(summary)) is not None})
    )


def leaks_of(directory: Path, trials: Sequence[TrialResult]) -> list[str]:
    """Say which encoders that runs begin with may have been trained on the samples that are held out here.

    Args:
        directory: The sweep's.
        trials: Its trials.
    """
    found: dict[str, str] = {}
    for summary in _summaries(directory, trials):
        with suppress(LookupError, TypeError):
            file, own = summary["start"]["file"], summary["data"]["fingerprint"]
            theirs = _fingerprint(Path(file))
            if theirs is None:
                found[file] = f"{file} does not say what it was trained on"
            elif theirs != own:
                found[file] = (
                    f"{file} was not trained with the same samples held out: data, data.validation or seed differ"
                )
    return [f"{what}; it may have seen the samples that settings are chosen by." for what in found.values()]


def _summaries(directory: Path, trials: Sequence[TrialResult]) -> Iterator[dict[str, Any]]:
    for run in dict.fromkeys(run for trial in trials for run in trial.runs):
        with suppress(OSError, ValueError):  # not begun, or damaged, which going on says
            summary = json.loads((directory / run / "run.json").read_text())
            if isinstance(summary, dict):
                yield summary


def _samples(summary: dict[str, Any]) -> int | None:
    with suppress(LookupError, TypeError, ValueError):
        return int(summary["data"]["test"])
    return None


def _fingerprint(file: Path) -> str | None:
    """Find what the run that wrote an encoder was trained on."""
    for parent in list(file.parents)[:3]:
        with suppress(OSError, ValueError, LookupError, TypeError):
            return str(json.loads((parent / "run.json").read_text())["data"]["fingerprint"])
    return None
