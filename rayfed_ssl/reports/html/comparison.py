"""The part of the report that compares runs: those that differ in seed alone are one row, with mean and spread."""

from collections.abc import Sequence
from statistics import fmean

from rayfed_ssl import formats
from rayfed_ssl.reports.html import bars, curves
from rayfed_ssl.reports.html.figure import FigureWriter
from rayfed_ssl.reports.html.groups import Group, differences, spread
from rayfed_ssl.reports.html.page import Card, PageSection
from rayfed_ssl.reports.html.sources import ReportedRun
from rayfed_ssl.reports.html.tables import PageCell, PageTable, score_title

MAX_SHOWN = 12
"""Differing settings that are shown at once; more fold away."""


def comparison_sections(groups: Sequence[Group], writer: FigureWriter, command: str) -> tuple[PageSection, ...]:
    """Make the sections that are about all runs."""
    runs = [run for group in groups for run in group.runs]
    names = ", ".join(run.name for run in runs[:6]) + (f" and {len(runs) - 6} more" if len(runs) > 6 else "")
    origin = f"{command} · runs {names}"
    accuracy = tuple(writer.render(plot, "comparison", origin) for plot in curves.accuracy_plots(groups))
    held_out = any(run.summary.config.data.validation is not None for run in runs)
    text = (
        "A row is a setting; seeds are averaged: mean ± standard deviation (n − 1) and n. “Last epoch” is the result; “best "
        f"epoch” is chosen on the test set{' or the held-out samples that a run is measured on' * held_out}.",
    )
    return (
        PageSection("headline", "Headline", cards=_cards(groups), text=text, tables=(scores(groups),)),
        PageSection("accuracy", "Accuracy", figures=accuracy)
        if accuracy
        else PageSection("accuracy", "Accuracy", text=("No accuracy is on record yet.",)),
        PageSection(
            "communication", "Communication", figures=(writer.render(bars.traffic_plot(groups), "comparison", origin),)
        ),
        _differences(groups),
        PageSection("runs", "All runs", tables=(_runs(runs),)),
    )


def _cards(groups: Sequence[Group]) -> tuple[Card, ...]:
    runs = [run for group in groups for run in group.runs]
    unfinished = sum(not run.summary.finished for run in runs)
    notes = (f"{unfinished} unfinished",) if unfinished else ("all finished",)
    found = [Card("Runs", str(len(runs)), notes), Card("Settings", str(len(groups)))]
    scored = [(fmean(values), group) for group in groups if (values := group.scores("linear"))]
    if scored:
        best, group = max(scored, key=lambda pair: pair[0])
        found.append(
            Card("Highest linear probe, last epoch", formats.percent(best), (group.label, f"n = {len(group.runs)}"))
        )
    sent = sum(run.summary.bytes_up for run in runs)
    seconds = sum(run.summary.seconds for run in runs)
    return (*found, Card("Sent by all clients", formats.size(sent)), Card("Time of rounds", formats.duration(seconds)))


def scores(groups: Sequence[Group]) -> PageTable:
    """Show final scores, bytes and time of each group."""
    found = [metrics for group in groups for run in group.runs for metrics in run.summary.scores.values()]
    names = list(dict.fromkeys(name for metrics in found for name in metrics))
    names.sort(key=lambda name: (name != "linear", name != "linear_best", name != "knn", name))
    columns = [
        "run",
        "seeds",
        "rounds",
        *map(score_title, names),
        "up, all",
        "down, all",
        "time of rounds",
        "privacy risk",
    ]
    rows = [
        [
            PageCell(group.label),
            len(group.runs),
            PageCell(
                f"{group.runs[0].summary.rounds} × {group.runs[0].summary.config.epochs}", group.runs[0].summary.rounds
            ),
            *(spread(group.scores(name)) for name in names),
            PageCell.size(fmean(run.summary.bytes_up for run in group.runs)),
            PageCell.size(fmean(run.summary.bytes_down for run in group.runs)),
            PageCell.duration(fmean(run.summary.seconds for run in group.runs)),
            PageCell(group.runs[0].summary.privacy),
        ]
        for group in groups
    ]
    return PageTable.of("Final scores and costs, mean over seeds", columns, rows)


def _differences(groups: Sequence[Group]) -> PageSection:
    differing = differences(groups)
    if not differing:
        return PageSection("differences", "What differs", text=("Nothing but the seed.",))
    rows = [[key, *values] for key, values in differing.items()]
    table = PageTable.of("Settings that differ", ["key", *(group.label for group in groups)], rows)
    if len(rows) <= MAX_SHOWN:
        return PageSection("differences", "What differs", tables=(table,))
    text = (f"{len(rows)} settings, those of methods and objectives that other runs do not have included.",)
    return PageSection("differences", "What differs", text=text, folded=(table,))


def _runs(runs: Sequence[ReportedRun]) -> PageTable:
    rows = []
    for run in runs:
        summary = run.summary
        rows.append(
            [
                PageCell(run.name),
                PageCell(summary.name),
                summary.config.seed,
                PageCell("yes" if summary.finished else f"no, round {summary.rounds} of {summary.config.rounds}"),
                PageCell.percent(summary.headline("linear")),
                PageCell.percent(summary.headline("knn")),
                PageCell.size(summary.bytes_up),
                PageCell.duration(summary.seconds),
                PageCell((summary.state_sha256 or "–")[:16]),
            ]
        )
    columns = ["run", "method", "seed", "finished", "linear probe, last epoch", "kNN", "up", "time of rounds", "state"]
    return PageTable.of("Each run", columns, rows)
