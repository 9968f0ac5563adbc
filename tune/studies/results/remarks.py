"""What a reader of a study's table has to know beside its numbers, a line each."""

from collections.abc import Sequence

from tune.studies.definition.study import Study
from tune.studies.execution.trial_table import unit_of
from tune.studies.results.results import TrialResult
from tune.studies.results.trial_results import best_of, scores_text

BEST = "best.yaml"


def chosen_by(study: Study) -> str:
    """Say which samples have decided."""
    if study.selects_on == "test":
        return "chosen on the test set, as the sweep says: selection: test"
    return "chosen by held-out training samples"


def remarks_of(study: Study, trials: Sequence[TrialResult], finished: bool) -> list[str]:
    """Collect the remarks on a study's trials; `finished` if all of them have ended."""
    lines, best = [_seeds_text(study)], best_of(trials, study.goals)
    if best is not None:
        scores = scores_text(best)
        lines.append(
            f"Best by {study.goals[0].score}: trial {best.number} ({best.label}): {scores}; its recipe is {BEST}."
        )
    if study.kind == "sweep":
        lines.append(f"Settings are {chosen_by(study)}.")
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
