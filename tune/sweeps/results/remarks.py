"""What a reader of a sweep's table has to know beside its numbers, a line each, from its trials and the runs' records."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rayfed_ssl.reports.sweep_results import TrialResult
from tune.sweeps.definition.schema import Sweep
from tune.sweeps.results.trial_results import best_of, scores_text, unit_of

BEST = "best.yaml"

RunSummary = Mapping[str, Any]
"""run.json."""


def chosen_by(sweep: Sweep, held_out: Sequence[int]) -> str:
    """Say which samples have decided; `held_out` are their numbers, one for each dataset, none if no run has started."""
    if sweep.selection == "test":
        return "chosen on the test set, as the sweep says: selection: test"
    counts = " or ".join(map(str, held_out))
    return f"chosen by {counts} held-out training samples" if counts else "chosen by held-out training samples"


def remarks_of(sweep: Sweep, trials: Sequence[TrialResult], held_out: Sequence[int], finished: bool) -> list[str]:
    """Collect the remarks on a sweep's trials; `held_out` as for `chosen_by`, `finished` if all trials have ended."""
    lines, best = [_seeds_text(sweep)], best_of(trials, sweep.goals)
    if best is not None:
        scores = scores_text(best)
        lines.append(
            f"Best by {sweep.goals[0].score}: trial {best.number} ({best.label}): {scores}; its recipe is {BEST}."
        )
    lines.append(f"Settings are {chosen_by(sweep, held_out)}.")
    lines.append(_counts(trials))
    if not finished:
        ended = sum(trial.state != "waiting" for trial in trials)
        lines.append(f"Not finished: {ended} of {sweep.num_trials} trials have ended.")
    for state in ("stopped", "failed"):
        lines += [
            f"{state.capitalize()}, trial {trial.number} ({trial.label}): {trial.reason}"
            for trial in trials
            if trial.state == state
        ]
    return lines


def _seeds_text(sweep: Sweep) -> str:
    unit = " Scores are in percent." if any(unit_of(goal.score) == "percent" for goal in sweep.goals) else ""
    if len(sweep.seeds) == 1:
        return f"Each cell: one run, seed {sweep.seeds[0]}.{unit}"
    seeds = ", ".join(map(str, sweep.seeds))
    return f"Each cell: mean ± standard deviation (n - 1) over seeds {seeds}.{unit}"


def _counts(trials: Sequence[TrialResult]) -> str:
    runs = [run for trial in trials for run in trial.runs]
    counted = f"{len(trials)} trials, {len(set(runs))} different runs"
    shared = len(runs) - len(set(runs))
    return counted + (f": {shared} of {len(runs)} are those of other trials of equal settings." if shared else ".")


def read_summaries(directory: Path, trials: Sequence[TrialResult]) -> list[RunSummary]:
    """Read the records of a sweep's runs that are there and whole, each once."""
    runs = dict.fromkeys(run for trial in trials for run in trial.runs)
    return [summary for run in runs if (summary := _read(directory / run)) is not None]


def _read(run: Path) -> RunSummary | None:
    with suppress(OSError, ValueError):  # not started, or damaged, which resuming reports
        summary = json.loads((run / "run.json").read_text())
        return summary if isinstance(summary, dict) else None
    return None


def held_out_samples(summaries: Sequence[RunSummary]) -> tuple[int, ...]:
    """Count the samples that the runs were scored on, one number for each dataset."""
    counts = set()
    for summary in summaries:
        with suppress(LookupError, TypeError, ValueError):
            counts.add(int(summary["data"]["test"]))
    return tuple(sorted(counts))


def leak_warnings(summaries: Sequence[RunSummary]) -> list[str]:
    """Warn of encoders that runs start from, directly or not, that may have been trained on the held-out samples."""
    warnings: dict[str, str] = {}
    for summary in summaries:
        with suppress(LookupError, TypeError):
            fingerprint = summary["data"]["fingerprint"]
            for file, theirs in _starts(summary):
                if theirs is None:
                    warnings[file] = f"{file} does not say what it was trained on"
                elif theirs != fingerprint:
                    warnings[file] = (
                        f"{file} was not trained with the same samples held out: data, data.validation or seed differ"
                    )
    return [f"{warning}; it may have seen the samples that settings are chosen by." for warning in warnings.values()]


def _starts(summary: RunSummary) -> Iterator[tuple[str, str | None]]:
    """Follow what a run started from: each file, and the fingerprint of what it was trained on."""
    seen: set[str] = set()
    while summary.get("start") is not None and (file := summary["start"]["file"]) not in seen:
        seen.add(file)
        made = next((read for parent in list(Path(file).parents)[:3] if (read := _read(parent)) is not None), None)
        yield file, None if made is None else made["data"]["fingerprint"]
        summary = {} if made is None else made


def version_warnings(summaries: Sequence[RunSummary]) -> list[str]:
    """Say which packages had several versions while the runs were made."""
    versions: dict[str, set[str]] = {}
    for summary in summaries:
        with suppress(LookupError, TypeError, AttributeError):
            for package, version in summary["versions"].items():
                versions.setdefault(package, set()).add(str(version))
    several = [f"{package} {' and '.join(sorted(each))}" for package, each in versions.items() if len(each) > 1]
    return (
        [f"The runs were made with several versions, whose results may differ: {', '.join(several)}."]
        if several
        else []
    )
