"""What a reader of a sweep's table has to know beside its numbers, a line each."""

from collections.abc import Sequence

from tune.sweeps.definition.sweep import Sweep
from tune.sweeps.results.best_recipe import BEST
from tune.sweeps.results.trial_results import TrialResult, best_of, named, number_of, unit_of, worded


def chosen_by(sweep: Sweep, held_out: Sequence[int]) -> str:
    """Say which samples have decided.

    Args:
        sweep: Whose.
        held_out: Numbers of held-out samples, one for each dataset; none where no run has begun.
    """
    if sweep.selection == "test":
        return "chosen on the test set, as the sweep says: selection: test"
    counts = " or ".join(map(str, held_out))
    return f"chosen by {counts} held-out training samples" if counts else "chosen by held-out training samples"


def remarks_of(sweep: Sweep, trials: Sequence[TrialResult], held_out: Sequence[int], finished: bool) -> list[str]:
    """Collect the remarks.

    Args:
        sweep: Whose results these are.
        trials: Its trials.
        held_out: As for `chosen_by`.
        finished: Whether all trials have ended.
    """
    best = best_of(trials, sweep.goals[0])
    lines = [_reading(sweep)]
    if best is not None:
        lines.append(f"Best by {sweep.goals[0].score}: trial {best.number} ({named(best.point)}): "
                     f"{worded(best, sweep.goals)}; its recipe is {BEST}.")  # fmt: skip
    lines.append(f"Settings are {chosen_by(sweep, held_out)}.")
    lines.append(_counts(sweep, trials))
    if not finished:
        ended = sum(trial.state != "waiting" for trial in trials)
        lines.append(f"Not finished: {ended} of {number_of(sweep)} trials have ended.")
    for state in ("stopped", "failed"):
        lines += [
            f"{state.capitalize()}, trial {trial.number} ({named(trial.point)}): {trial.reason}"
            for trial in trials
            if trial.state == state
        ]
    return lines


def _reading(sweep: Sweep) -> str:
    unit = " Scores are in percent." if any(unit_of(goal.score) == "percent" for goal in sweep.goals) else ""
    if len(sweep.seeds) == 1:
        return f"Each cell: one run, seed {sweep.seeds[0]}.{unit}"
    seeds = ", ".join(map(str, sweep.seeds))
    return f"Each cell: mean ± standard deviation (n - 1) over seeds {seeds}.{unit}"


def _counts(sweep: Sweep, trials: Sequence[TrialResult]) -> str:
    runs = [run for trial in trials for run in trial.runs]
    counted = f"{len(trials)} trials, {len(set(runs))} different runs"
    shared = len(runs) - len(set(runs))
    return counted + (f": {shared} of {len(runs)} are those of other trials of equal settings." if shared else ".")
