"""What a reader of a study's table has to know beside its numbers, a line each, from its trials and the runs' records."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.records.manifest import RunManifest
from tune.studies.definition.study import Study
from tune.studies.execution.trial_table import unit_of
from tune.studies.results.results import TrialResult
from tune.studies.results.trial_results import best_of, scores_text

BEST = "best.yaml"


def chosen_by(study: Study, held_out: Sequence[int]) -> str:
    """Say which samples have decided; `held_out` are their numbers, one for each dataset, none if no run has started."""
    if study.selects_on == "test":
        return "chosen on the test set, as the sweep says: selection: test"
    counts = " or ".join(map(str, held_out))
    return f"chosen by {counts} held-out training samples" if counts else "chosen by held-out training samples"


def remarks_of(study: Study, trials: Sequence[TrialResult], held_out: Sequence[int], finished: bool) -> list[str]:
    """Collect the remarks on a study's trials; `held_out` as for `chosen_by`, `finished` if all trials have ended."""
    lines, best = [_seeds_text(study)], best_of(trials, study.goals)
    if best is not None:
        scores = scores_text(best)
        lines.append(
            f"Best by {study.goals[0].score}: trial {best.number} ({best.label}): {scores}; its recipe is {BEST}."
        )
    if study.kind == "sweep":
        lines.append(f"Settings are {chosen_by(study, held_out)}.")
    runs = [run for trial in trials for run in trial.runs]
    shared = len(runs) - len(set(runs))
    equal = f", as {shared} of {len(runs)} are those of other trials of equal settings" if shared else ""
    lines.append(f"{len(trials)} trials, {len(set(runs))} different runs{equal}.")
    if not finished:
        ended = sum(trial.state != "waiting" for trial in trials)
        lines.append(f"Not finished: {ended} of {study.num_trials} trials have ended.")
    for trial in sorted(trials, key=lambda trial: trial.state != "stopped"):
        if trial.reason:
            kind = "Stopped" if trial.state == "stopped" else "Failed"
            lines.append(f"{kind}, trial {trial.number} ({trial.label}): {trial.reason}")
    return lines


def _seeds_text(study: Study) -> str:
    unit = " Scores are in percent." if any(unit_of(goal.score) == "percent" for goal in study.goals) else ""
    if len(study.seeds) == 1:
        return f"Each cell: one run, seed {study.seeds[0]}.{unit}"
    seeds = ", ".join(map(str, study.seeds))
    return f"Each cell: mean ± standard deviation (n - 1) over seeds {seeds}.{unit}"


def read_manifests(directory: Path, trials: Sequence[TrialResult]) -> list[RunManifest]:
    """Read run.json of a study's runs, where it is there and whole, each once."""
    runs = dict.fromkeys(run for trial in trials for run in trial.runs)
    return [manifest for run in runs if (manifest := _read(directory / run)) is not None]


def _read(run: Path) -> RunManifest | None:
    with suppress(ConfigError):  # not started, or damaged, which resuming reports
        return RunManifest.read(run / "run.json")
    return None


def held_out_samples(manifests: Sequence[RunManifest]) -> tuple[int, ...]:
    """Count the samples that the runs were scored on, one number for each dataset."""
    return tuple(sorted({manifest.data.test for manifest in manifests}))


def leak_warnings(manifests: Sequence[RunManifest]) -> list[str]:
    """Warn of encoders that runs start from, directly or not, that may have been trained on the held-out samples."""
    warnings: dict[str, str] = {}
    for manifest in manifests:
        for file, theirs in _starts(manifest):
            if theirs is None:
                warnings[file] = f"{file} does not say what it was trained on"
            elif theirs != manifest.data.fingerprint:
                warnings[file] = (
                    f"{file} was not trained with the same samples held out: data, data.validation or seed differ"
                )
    return [f"{warning}; it may have seen the samples that settings are chosen by." for warning in warnings.values()]


def _starts(manifest: RunManifest | None) -> Iterator[tuple[str, str | None]]:
    """Follow what a run started from: each file, and the fingerprint of what it was trained on."""
    seen: set[str] = set()
    while manifest is not None and manifest.start is not None and (file := manifest.start.file) not in seen:
        seen.add(file)
        manifest = next((read for parent in list(Path(file).parents)[:3] if (read := _read(parent)) is not None), None)
        yield file, None if manifest is None else manifest.data.fingerprint
