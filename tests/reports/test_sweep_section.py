"""The report's section on a sweep, from `results.json` alone."""

import json
import shutil
from pathlib import Path

import pytest

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.reports.html import write_report
from rayfed_ssl.reports.html.figure import FigureWriter
from rayfed_ssl.reports.html.groups import labeled_groups
from rayfed_ssl.reports.html.sources import open_sources
from rayfed_ssl.reports.html.sweep_section import sweep_section


def value(mean, std=None):
    return {"mean": mean, "std": std, "each": [mean, mean]}


def trial(number, label, run, state="complete", reason="", **values):
    common = {"number": number, "label": label, "state": state, "reason": reason, "seeds": [0, 1], "runs": [run]}
    return common | {"point": {"system": label}, "reached": 2, "rounds": 2, "bytes": 1_500_000.0, "values": values}


RESULTS = {
    "name": "mine",
    "started": "2026-01-01T00:00:00+00:00",
    "take": None,
    "selection": "validation",
    "seeds": [0, 1],
    "held_out": [12],
    "runs": 2,
    "title": "A <sweep>",
    "source": "FLESD, Figure 4",
    "notes": ["A note."],
    "command": "rayfed-ssl sweep mine.yaml",
    "finished": None,
    "goals": [
        {"score": "linear", "maximize": True, "unit": "percent"},
        {"score": "bytes", "maximize": False, "unit": "bytes"},
    ],
    "search": {"name": "grid", "settings": {}, "trials": 4, "generation": 8, "stop": None},
    "layout": {"rows": "system", "columns": None, "x": "rounds", "lines": None, "panels": None},
    "states": {"complete": 1, "stopped": 0, "failed": 1, "waiting": 0},
    "trials": [
        trial(0, "system=FLESD", "runs/flesd-0", linear=value(0.75, 0.01), bytes=value(1_500_000, 0.0)),
        trial(1, "system=Local", "runs/local-0", "failed", "its process died"),
    ],
    "tables": [
        {
            "goal": "linear",
            "title": "linear (%), more is better",
            "head": ["system", "linear (%)"],
            "lines": [
                {"label": "FLESD", "cells": [{"text": "75.00 ± 1.00", "mean": 0.75, "best": True}]},
                {"label": "Local", "cells": [{"text": "failed", "mean": None, "best": False}]},
            ],
            "remarks": ["Each cell is the best."],
        }
    ],
    "best": {"trial": 0, "point": {"system": "FLESD"}, "values": {}, "recipe": "best.yaml"},
    "front": [0],
    "recipes": {"0": "pareto-0.yaml"},
    "remarks": [
        "Settings are chosen by 12 held-out training samples.",
        "Failed, trial 1 (system=Local): its process died",
    ],
    "figures": ["figures/curve-linear.png", "figures/curve-linear.svg", "figures/pareto.svg"],
}


def make(sweep: Path, folder: Path, content: object = RESULTS) -> Path:
    """Make a sweep's directory from finished runs."""
    (folder / "runs").mkdir(parents=True)
    for name in ("flesd-0", "local-0"):
        shutil.copytree(sweep / name, folder / "runs" / name)
    (folder / "sweep.json").write_text("{}")
    (folder / "results.json").write_text(json.dumps(content))
    (folder / "figures").mkdir()
    (folder / "figures" / "curve-linear.svg").write_text("<svg/>")
    (folder / "figures" / "curve-linear.png").write_bytes(b"PNG")
    return folder


def texts(table):
    return [[cell.text for cell in row] for row in table.rows]


@pytest.fixture
def section(sweep, tmp_path):
    (found,) = open_sources([make(sweep, tmp_path / "mine")]).sweeps
    return sweep_section(found, FigureWriter(tmp_path / "figures"), "rayfed-ssl report mine", "sweep-1")


def test_the_best_comes_first_with_its_recipe(section, tmp_path):
    best, trials = section.cards
    assert (best.title, best.value) == ("Best linear", "75.00 ± 1.00% (n = 2)")
    assert best.notes == ("trial 0: system=FLESD", f"rayfed-ssl run {tmp_path / 'mine' / 'best.yaml'}")
    assert (trials.value, trials.notes) == ("2 of 4", ("1 complete", "1 failed"))


def test_table_front_and_trials_are_there(section):
    table, front = section.tables
    assert (table.caption, table.columns) == ("linear (%), more is better", ("system", "linear (%)"))
    assert texts(table) == [["FLESD", "75.00 ± 1.00"], ["Local", "failed"]]
    assert [row[1].small for row in table.rows] == [("best",), ()]
    assert front.columns == ("trial", "state", "rounds", "linear", "bytes", "bytes a run", "recipe")
    row = [
        "0: system=FLESD",
        "complete",
        "2 of 2",
        "75.00 ± 1.00% (n = 2)",
        "1.50 MB (n = 2)",
        "1.50 MB",
        "pareto-0.yaml",
    ]
    assert texts(front) == [row]
    ended, everything = section.folded
    assert texts(ended) == [["1: system=Local", "failed", "its process died"]]
    assert len(everything.rows) == 2


def test_remarks_are_paragraphs_but_for_those_that_are_a_table(section):
    assert section.text == (
        "FLESD, Figure 4.",
        "Each cell is the best.",
        "Settings are chosen by 12 held-out training samples.",
        "A note.",
    )


def test_figures_that_are_there_are_shown_with_their_files(section):
    (figure,) = section.figures
    assert figure.title == "Linear over rounds"
    assert figure.files == ("figures/curve-linear-svg.svg", "figures/curve-linear-png.png")
    assert figure.origin == "rayfed-ssl sweep mine.yaml · rayfed-ssl report mine"


def test_a_sweep_brings_its_runs_named_for_their_points(sweep, tmp_path):
    folder = make(sweep, tmp_path / "mine")
    sources = open_sources([folder])
    assert [(run.name, run.label) for run in sources.runs] == [
        ("flesd-0", "system=FLESD"),
        ("local-0", "system=Local"),
    ]
    assert [one.label for one in labeled_groups(sources.runs)] == ["system=FLESD", "system=Local"]
    assert open_sources([tmp_path]).sweeps[0].directory == folder


def test_the_page_has_the_section_and_keeps_titles_text(sweep, tmp_path):
    page = write_report([make(sweep, tmp_path / "mine")], tmp_path / "report.html").read_text()
    assert "Sweep: A &lt;sweep&gt;" in page
    assert "A <sweep>" not in page
    assert 'id="sweep-1"' in page
    assert f"rayfed-ssl run {tmp_path / 'mine' / 'best.yaml'}" in page
    assert "data:image/svg+xml;base64," in page


def test_a_sweep_whose_runs_are_gone_is_shown_without_them(sweep, tmp_path):
    folder, told = make(sweep, tmp_path / "mine"), []
    shutil.rmtree(folder / "runs")
    page = write_report([folder], tmp_path / "report.html", on_left_out=told.append).read_text()
    assert "A sweep by rayfed-ssl, without its runs." in page
    (line,) = told
    assert line.startswith(f"2 of 2 runs of {folder}, which are missing (such as runs/flesd-0)")


def test_a_sweep_without_results_shows_its_runs_and_says_so(sweep, tmp_path):
    folder = make(sweep, tmp_path / "mine")
    (folder / "results.json").unlink()
    sources = open_sources([folder])
    assert (len(sources.runs), sources.sweeps) == (2, [])
    assert sources.left_out == [f"the table of {folder}: the sweep writes it at its end"]
    shutil.rmtree(folder / "runs")
    with pytest.raises(ConfigError, match="is a sweep of which no run has begun: see `rayfed-ssl sweep --status"):
        open_sources([folder])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "input should be a valid dictionary"),
        ({key: RESULTS[key] for key in RESULTS if key != "trials"}, "trials is missing"),
        (
            RESULTS | {"best": RESULTS["best"] | {"trial": 9}},
            "the best and the front are trials that are not in it",
        ),
        (RESULTS | {"tables": [RESULTS["tables"][0] | {"head": ["system"]}]}, "as many cells as headings are needed"),
    ],
)
def test_damaged_results_are_one_line_if_named_and_else_left_out(sweep, tmp_path, content, message):
    folder = make(sweep, tmp_path / "sweeps" / "mine", content)
    with pytest.raises(ConfigError, match=rf"results.json is damaged \(.*{message}.*: make it anew$"):
        open_sources([folder])
    shutil.copytree(sweep / "local-0", folder.parent / "good")
    sources = open_sources([folder.parent])
    assert sources.sweeps == []
    assert ["results.json is damaged" in line for line in sources.left_out] == [True]
