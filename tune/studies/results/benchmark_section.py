"""A benchmark's tables, figures, commands and what its searches chose, from `benchmark.json`."""

from functools import partial

from rayfed_ssl.reports.html.figure import FigureWriter, Plot
from rayfed_ssl.reports.html.page import PageSection
from rayfed_ssl.reports.html.tables import MISSING, PageCell, PageTable, yaml_text
from tune.studies.results.benchmark_figures import FIGURES, benchmark_figure
from tune.studies.results.benchmark_results import BenchmarkResults


def benchmark_section(results: BenchmarkResults, writer: FigureWriter, command: str, key: str) -> PageSection:
    """Make the section of a benchmark."""
    plots = [
        Plot(
            f"{name}-{split}",
            f"{title}, {split}",
            f"{title}, {split}. The numbers are in the tables of this section.",
            partial(benchmark_figure, results, name, [split]),
        )
        for split in results.splits
        for name, title in FIGURES.items()
    ]
    chosen = [
        [name, yaml_text([f"{key}={value}" for key, value in point.items()])] for name, point in results.chosen.items()
    ]
    runs = [
        [row.split, row.system, str(run.seed), run.run, run.state_sha256 or MISSING]
        for row in results.rows
        for run in row.runs
    ]
    spreads = [f"{split}: {spread}" for split in results.splits if (spread := results.spread(split))]
    return PageSection(
        key,
        f"Benchmark: {results.title}",
        text=(*results.notes, *(f"Failed, {name}: {why}" for name, why in results.failures.items()), *spreads),
        figures=tuple(writer.render(plot, key, f"{results.command} · {command}") for plot in plots),
        tables=tuple(_table(results, split) for split in results.splits),
        folded=(
            PageTable.of("What the searches chose", ["system", "settings"], chosen),
            PageTable.of("What makes each row", ["system", "command"], list(map(list, results.commands.items()))),
            PageTable.of("Runs", ["split", "system", "seed", "run", "state_sha256"], runs),
        ),
    )


def _table(results: BenchmarkResults, split: str) -> PageTable:
    head, lines = results.table(split)
    return PageTable.of(split, head, ([PageCell(text, _number(text)) for text in line] for line in lines))


def _number(text: str) -> float | None:
    """Read the number that a cell begins with, to sort by."""
    try:
        return float(text.partition(" ")[0])
    except ValueError:
        return None
