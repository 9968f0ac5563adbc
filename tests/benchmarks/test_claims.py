"""The published runs: their differences stand in the documentation, and its figures are drawn from them."""

import re
from pathlib import Path

import pytest
from PIL import Image

from benchmarks import claims
from rayfed_ssl.formats import MeanStd

CLAIMS = (Path(__file__).parents[2] / "docs" / "claims.md").read_text().replace("+", "")

PAYS = re.compile(r"\d+ public, FLESD, (10|30) local epochs|FedSimCLR, (30|100) local epochs")
"""Rows whose differences from the public photographs alone are in the table."""


def test_a_difference_is_paired_over_the_seeds_that_both_rows_have() -> None:
    table = {"a": {0: {"knn": 0.3}, 1: {"knn": 0.5}, 7: {"knn": 0.9}}, "b": {1: {"knn": 0.4}, 0: {"knn": 0.4}}}
    ((score, difference),) = claims.differences(table, "a", "b")
    assert (score, difference.n, difference.mean) == ("knn", 2, pytest.approx(0.0))
    assert difference.high == pytest.approx(12.706 * 0.1, rel=1e-3)


@pytest.mark.parametrize("row", filter(PAYS.fullmatch, claims.read("mechanisms-and-federation")))
def test_the_table_of_when_federation_pays_is_that_of_the_runs(row: str) -> None:
    table = claims.read("mechanisms-and-federation")
    publics = [int(row.split(maxsplit=1)[0])] if row[0].isdigit() else claims.PUBLIC
    for public in (public for public in publics if f"{public} public, alone" in table):
        baseline = {seed: table[f"{public} public, alone"][seed] for seed in (0, 1, 2)}
        for _, difference in claims.differences({row: table[row], "alone": baseline}, row, "alone"):
            assert difference.text.replace("+", "") in CLAIMS, (row, public)


def test_the_command_prints_a_line_for_each_score(capsys: pytest.CaptureFixture[str]) -> None:
    claims.main(["difference", "long-training", "FCL", "FedMoCo"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11
    assert all(
        re.fullmatch(r"(knn_\d+|linear) [+-]\d\.\d\d \[[+-]\d\.\d\d, [+-]\d\.\d\d\], 4 seeds", line) for line in lines
    )
    with pytest.raises(SystemExit):
        claims.main(["difference", "long-training", "FCL", "FedMoCO"])
    assert "has no row 'FedMoCO': choose from FedBYOL, " in capsys.readouterr().err


def test_the_benchmarks_table_is_read_with_and_without_deviations() -> None:
    two, dirichlet = claims.read_benchmark().values()
    assert two.keys() == dirichlet.keys() > {"FLESD", "Random encoder", "Centralized SimCLR"}
    assert two["FLESD"] == (111.24, MeanStd(52.40, 0.09, 3))


def test_the_figures_are_drawn(tmp_path: Path) -> None:
    (tmp_path / "benchmark-pictures").mkdir()
    claims.main(["figures", str(tmp_path)])
    drawn = [path.relative_to(tmp_path) for path in tmp_path.rglob("*.png")]
    assert len(drawn) == 4
    for name in drawn:
        with Image.open(tmp_path / name) as figure, Image.open(claims.DOCS / name) as published:
            assert figure.size == published.size
