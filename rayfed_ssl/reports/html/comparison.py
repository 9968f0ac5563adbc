"""The part of the report that compares runs: those that differ in seed alone are one row, with mean and deviation."""

from collections.abc import Sequence
from statistics import fmean

from rayfed_ssl import formats
from rayfed_ssl.reports.html import bars, curves
from rayfed_ssl.reports.html.figure import FigureWriter
from rayfed_ssl.reports.html.groups import LabeledGroup, differences
from rayfed_ssl.reports.html.page import Card, PageSection
from rayfed_ssl.reports.html.sources import ReportedRun
from rayfed_ssl.reports.html.tables import MISSING, PageCell, PageTable, score_title
from rayfed_ssl.reports.summary import data_differences

MAX_UNFOLDED = 12
"""Differing settings in a table that is open; a longer one opens on demand."""


def comparison_sections(groups: Sequence[LabeledGroup], writer: FigureWriter, command: str) -> tuple[PageSection, ...]:
    """Make the sections that are about all runs."""
    runs = [run for group in groups for run in group.runs]
    names = ", ".join(run.name for run in runs[:6]) + (f" and {len(runs) - 6} more" if len(runs) > 6 else "")
    origin = f"{command} · runs {names}"
    accuracy = tuple(writer.render(plot, "comparison", origin) for plot in curves.accuracy_plots(groups))
    traffic = writer.render(bars.traffic_plot(groups), "comparison", origin)
    held_out = any(run.summary.config.data.validation is not None for run in runs)
    text: tuple[str, ...] = (
        "A row is a setting; seeds are averaged: mean ± standard deviation (n − 1) and n. “Last epoch” is the result; “best "
        f"epoch” is chosen on the test set{' or the held-out samples that a run is measured on' * held_out}.",
    )
    if note := data_differences([run.summary for run in runs]):
        text += (f"Note: {note}.",)
    no_accuracy = () if accuracy else ("No accuracy is on record yet.",)
    return (
        PageSection("headline", "Headline", cards=_cards(groups), text=text, tables=(scores_table(groups),)),
        PageSection("accuracy", "Accuracy", text=no_accuracy, figures=accuracy),
        PageSection("communication", "Communication", figures=(traffic,)),
        _differences(groups),
        PageSection("runs", "All runs", tables=(_runs(runs),)),
    )


def _cards(groups: Sequence[LabeledGroup]) -> tuple[Card, ...]:
    runs = [run for group in groups for run in group.runs]
    unfinished = sum(not run.summary.finished for run in runs)
    notes = (f"{unfinished} unfinished",) if unfinished else ("all finished",)
    cards = [Card("Runs", str(len(runs)), notes), Card("Settings", str(len(groups)))]
    scored = [(scores["linear"].mean, group) for group in groups if "linear" in (scores := group.scores)]
    if scored:
        best, group = max(scored, key=lambda pair: pair[0])
        title = "Highest linear probe, last epoch"
        cards.append(Card(title, formats.percent(best), (group.label, f"n = {len(group.runs)}")))
    sent = formats.size(sum(run.summary.bytes_up for run in runs))
    seconds = formats.duration(sum(run.summary.seconds for run in runs))
    return (*cards, Card("Sent by all clients", sent), Card("Time of rounds", seconds))


def scores_table(groups: Sequence[LabeledGroup]) -> PageTable:
    """Show final scores, bytes and time of each group."""
    names = list(dict.fromkeys(name for group in groups for name in group.scores))
    names.sort(key=lambda name: (name != "linear", name != "linear_best", name != "knn", name))
    rows = []
    for group in groups:
        runs = [run.summary for run in group.runs]
        first, scores = runs[0], group.scores
        rows.append(
            [
                group.label,
                len(runs),
                PageCell(f"{first.rounds} × {first.config.epochs}", first.rounds),
                *(PageCell.mean_std(scores.get(name)) for name in names),
                PageCell.size(fmean(run.bytes_up for run in runs)),
                PageCell.size(fmean(run.bytes_down for run in runs)),
                PageCell.duration(fmean(run.seconds for run in runs)),
                first.privacy,
            ]
        )
    costs = ["up, all", "down, all", "time of rounds", "privacy risk"]
    columns = ["run", "seeds", "rounds", *map(score_title, names), *costs]
    return PageTable.of("Final scores and costs, mean over seeds", columns, rows)


def _differences(groups: Sequence[LabeledGroup]) -> PageSection:
    differing = differences(groups)
    if not differing:
        return PageSection("differences", "What differs", text=("Nothing but the seed.",))
    rows = [[key, *values] for key, values in differing.items()]
    tables = (PageTable.of("Settings that differ", ["key", *(group.label for group in groups)], rows),)
    if len(rows) <= MAX_UNFOLDED:
        return PageSection("differences", "What differs", tables=tables)
    text = (f"{len(rows)} settings, including those of methods and objectives that other runs do not have.",)
    return PageSection("differences", "What differs", text=text, folded=tables)


def _runs(runs: Sequence[ReportedRun]) -> PageTable:
    rows = [
        [
            run.name,
            run.summary.name,
            run.summary.objective,
            run.summary.models,
            run.summary.dataset,
            run.summary.config.seed,
            "yes" if run.summary.finished else f"no, round {run.summary.rounds} of {run.summary.config.rounds}",
            PageCell.percent(run.summary.headline("linear")),
            PageCell(formats.points(run.summary.gain("linear"), MISSING), run.summary.gain("linear")),
            PageCell.percent(run.summary.headline("knn")),
            PageCell.size(run.summary.bytes_up),
            PageCell.duration(run.summary.seconds),
            (run.summary.state_sha256 or MISSING)[:16],
        ]
        for run in runs
    ]
    probe = ["linear probe, last epoch", "points over its start"]
    columns = [
        "run",
        "method",
        "objective",
        "model",
        "dataset",
        "seed",
        "finished",
        *probe,
        "kNN",
        "up",
        "time of rounds",
        "state",
    ]
    return PageTable.of("Each run", columns, rows)
