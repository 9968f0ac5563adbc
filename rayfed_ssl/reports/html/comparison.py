"""The part of the report that compares runs: those that differ in seed alone are one row, with mean and deviation."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from rayfed_ssl import formats
from rayfed_ssl.reports.html import record_plots
from rayfed_ssl.reports.html.figure import FigureWriter
from rayfed_ssl.reports.html.page import Card, PageSection, score_title
from rayfed_ssl.reports.html.sources import ReportedRun
from rayfed_ssl.reports.seed_groups import SeedGroup, by_seed, differences, labeled
from rayfed_ssl.reports.summary import Summary, error_note, score_differences
from rayfed_ssl.reports.table import MISSING, Cell, Table


def labeled_groups(runs: Sequence[ReportedRun]) -> tuple[SeedGroup, ...]:
    """Group runs by their setting; a label is what a run is for in a study, or else its own name with what differs."""
    return labeled(by_seed(run.summary for run in runs), {run.summary.directory: (run.name, run.label) for run in runs})


def comparison_sections(runs: Sequence[ReportedRun], writer: FigureWriter, command: str) -> tuple[PageSection, ...]:
    """Make the sections that are about all runs."""
    groups, summaries = labeled_groups(runs), [run.summary for run in runs]
    names = ", ".join(run.name for run in runs[:6]) + (f" and {len(runs) - 6} more" if len(runs) > 6 else "")
    origin = f"{command} · runs {names}"
    plots = [*record_plots.accuracy_plots(groups), record_plots.traffic_plot(groups)]
    figures = tuple(writer.render(plot, "comparison", origin) for plot in plots)
    held_out = any(run.config.data.validation is not None for run in summaries)
    text: tuple[str, ...] = (
        "A row is a setting; seeds are averaged: mean ± standard deviation (n − 1) and n. “Last epoch” is the result; “best "
        f"epoch” is chosen on the test set{' or the held-out samples that a run is measured on' * held_out}.",
    )
    text += tuple(f"Note: {note}." for note in (error_note(summaries), score_differences(summaries)) if note)
    no_accuracy = () if len(figures) > 1 else ("No accuracy is on record yet.",)
    differing = [[key, *values] for key, values in differences(groups, MISSING).items()]
    settings = Table.of("Settings that differ", ["key", *(group.label for group in groups)], differing)
    what = f"{len(differing)} settings." if differing else "Nothing but the seed."
    return (
        PageSection("headline", "Headline", cards=_cards(groups), text=text, tables=(scores_table(groups),)),
        PageSection("accuracy", "Accuracy and communication", text=no_accuracy, figures=figures),
        PageSection("differences", "What differs", text=(what,), folded=(settings,) if differing else ()),
        PageSection("runs", "All runs", tables=(_runs(runs),)),
    )


def _cards(groups: Sequence[SeedGroup]) -> tuple[Card, ...]:
    runs = [run for group in groups for run in group.runs]
    unfinished = sum(not run.finished for run in runs)
    state = (f"{unfinished} unfinished",) if unfinished else ("all finished",)
    cards = [Card("Runs", str(len(runs)), state), Card("Settings", str(len(groups)))]
    scored = [(scores["linear"].mean, group) for group in groups if "linear" in (scores := group.scores)]
    if scored:
        best, group = max(scored, key=lambda pair: pair[0])
        title = "Highest linear probe, last epoch"
        samples = group.runs[0].samples
        level = sum(best - mean <= formats.DECISIVE * formats.standard_error(best, mean, samples) for mean, _ in scored)
        errors = f"{level - 1} of {len(scored) - 1} others within two standard errors, by {samples:,} pictures"
        notes = (group.label, f"n = {len(group.runs)}", *[errors] * (len(scored) > 1 and samples > 0))
        cards.append(Card(title, formats.percent(best), notes))
    sent = formats.size(sum(run.bytes_up for run in runs))
    seconds = formats.duration(sum(run.seconds for run in runs))
    return (*cards, Card("Sent by all clients", sent), Card("Time of rounds", seconds))


def scores_table(groups: Sequence[SeedGroup]) -> Table:
    """Show final scores, bytes and time of each group."""
    names = list(dict.fromkeys(name for group in groups for name in group.scores))
    names.sort(key=lambda name: (name != "linear", name != "linear_best", name != "knn", name))
    rows = [
        [
            group.label,
            len(group.runs),
            Cell(text=f"{group.runs[0].rounds} × {group.runs[0].config.epochs}", mean=group.runs[0].rounds),
            *(Cell.of(group.scores.get(name), "percent") for name in names),
            Cell.of(fmean(run.bytes_up for run in group.runs), "bytes"),
            Cell.of(fmean(run.bytes_down for run in group.runs), "bytes"),
            Cell.of(fmean(run.seconds for run in group.runs), "seconds"),
        ]
        for group in groups
    ]
    costs = ["up, all", "down, all", "time of rounds"]
    columns = ["run", "seeds", "rounds", *map(score_title, names), *costs]
    return Table.of("Final scores and costs, mean over seeds", columns, rows)


def _runs(runs: Sequence[ReportedRun]) -> Table:
    rows = [_run(run.name, run.summary) for run in runs]
    return Table.of("Each run", list(rows[0]), [row.values() for row in rows])


def _run(name: str, run: Summary) -> Mapping[str, object]:
    gain = run.gain("linear")
    return {
        "run": name,
        "recipe": run.recipe or MISSING,
        "method": run.name,
        "objective": run.objective,
        "model": run.models,
        "dataset": run.dataset,
        "seed": run.config.seed,
        "finished": "yes" if run.finished else f"no, round {run.rounds} of {run.config.rounds}",
        "linear probe, last epoch": Cell.of(run.headline("linear"), "percent"),
        "points over its start": Cell(text=formats.points(gain, MISSING), mean=gain),
        "kNN": Cell.of(run.headline("knn"), "percent"),
        "up": Cell.of(run.bytes_up, "bytes"),
        "time of rounds": Cell.of(run.seconds, "seconds"),
        "state": (run.state_sha256 or MISSING)[:16],
    }
