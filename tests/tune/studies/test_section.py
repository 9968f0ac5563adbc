"""The report's section on a sweep, from `results.json` alone."""

import pytest

from rayfed_ssl.reports.html.figure import FigureWriter
from tests.reports.fabricated import study_in
from tune.studies.results.reported import read_study


@pytest.fixture
def section(tmp_path):
    table = read_study(study_in(tmp_path / "mine"))
    return table.section(FigureWriter(tmp_path / "figures"), "rayfed-ssl report mine", "sweep-1")


def test_tables_are_there_with_the_best_of_each_column(section):
    (table,) = section.tables
    assert (table.title, table.head) == ("linear (%), more is better", ["system", "linear (%)"])
    assert table.texts() == [["FLESD", "75.00 ± 1.00"], ["Local", "failed"]]
    assert [line[1].best for line in table.lines] == [True, False]
    (trials,) = section.folded
    assert trials.texts() == [["0: system=FLESD", "complete"], ["1: system=Local", "failed"]]


def test_remarks_are_paragraphs_but_for_those_that_are_a_table(section):
    assert section.text == (
        "FLESD, Figure 4.",
        "Each cell is the best.",
        "Settings are chosen by 12 held-out training samples.",
        "A note.",
    )


def test_figures_that_are_there_are_shown_with_their_files(section):
    assert section.figures == ()  # tables come first
    (figure,) = section.parts[0].figures
    assert figure.title == "Linear over rounds"
    assert figure.files == ("figures/linear-over-rounds-svg.svg", "figures/linear-over-rounds-png.png")
    assert figure.origin == "rayfed-ssl sweep mine.yaml · rayfed-ssl report mine"
