"""The published runs: their differences stand in the documentation, and its figures are drawn from them."""

import re
from pathlib import Path

import pytest
from PIL import Image

from benchmarks import claims
from rayfed_ssl.formats import MeanStd


def test_a_difference_is_paired_over_the_seeds_that_both_rows_have() -> None:
    table = {"a": {0: {"knn": 0.3}, 1: {"knn": 0.5}, 7: {"knn": 0.9}}, "b": {1: {"knn": 0.4}, 0: {"knn": 0.4}}}
    ((score, difference),) = claims.differences(table, "a", "b")
    assert (score, difference.n, difference.mean) == ("knn", 2, pytest.approx(0.0))
    assert difference.high == pytest.approx(12.706 * 0.1, rel=1e-3)
    ((_, single),) = claims.differences(table, "a", "b", (1,))
    assert (single.n, single.mean) == (1, pytest.approx(0.1))
    assert list(claims.differences(table, "a", "b", (7,))) == []


def published() -> dict[str, list[str]]:
    """The table of when federation pays: label and score -> cells."""
    text = (claims.DOCS / "claims.md").read_text()
    lines = text[text.index("| | 100 public |") :].split("\n\n", 1)[0].splitlines()[2:]
    cells, label = {}, ""
    for line in lines:
        first, *others = [cell.strip() for cell in line.strip("|").split("|")]
        label, score = (label, "knn") if first == "kNN" else (first.rpartition(", linear")[0], "linear")
        cells[f"{label}, {score}"] = others
    return cells


def test_the_table_of_when_federation_pays_is_that_of_the_runs() -> None:
    table, cells = claims.read("mechanisms-and-federation"), published()
    alone = {public: table[f"{public} public, alone"] for public in claims.PUBLIC}
    shown = {"SimCLR on the public photographs alone": dict(alone)}
    for epochs in (10, 30, 100):
        rows = {public: table.get(f"{public} public, FLESD, {epochs} local epochs") for public in claims.PUBLIC}
        shown[f"FLESD, {epochs} local epochs"] = rows
    for label, rows in shown.items():
        for score in ("linear", "knn"):
            values = [row and [row[seed][score] for seed in claims.SEEDS] for row in rows.values()]
            texts = ["" if each is None else MeanStd.of(each).text(symbol=False) for each in values]
            assert cells.pop(f"{label}, {score}") == texts
    flesd = "FLESD", "FLESD, 30 local epochs,", "FLESD, 100 local epochs,"
    gains = dict(zip(flesd, list(shown.values())[1:], strict=True)) | {
        f"FedSimCLR, {epochs} local epochs,": dict.fromkeys(alone, table[f"FedSimCLR, {epochs} local epochs"])
        for epochs in (30, 100)
    }
    for label, rows in gains.items():
        columns: dict[str, list[str]] = {"linear": [], "knn": []}
        for public, row in rows.items():
            both = {"row": row or {}, "alone": alone[public]}
            found = dict(claims.differences(both, "row", "alone", claims.SEEDS))
            for score, column in columns.items():
                mean, _, interval = found[score].text.partition(" ") if row else ("", "", "")
                column.append(f"{mean} {interval.replace('+', '')}".strip())
        for score, column in columns.items():
            assert cells.pop(f"{label} minus alone, {score}") == column
    assert cells == {}


def test_the_command_prints_a_line_for_each_score(capsys: pytest.CaptureFixture[str]) -> None:
    claims.main(["difference", "long-training", "FCL", "FedMoCo"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11
    assert all(
        re.fullmatch(r"(knn_\d+|linear) [+-]\d\.\d\d \[[+-]\d\.\d\d, [+-]\d\.\d\d\], seeds: 4", line) for line in lines
    )
    flesd, simclr = (f"{system}, 2 classes a client" for system in ("FLESD", "FedSimCLR"))
    claims.main(["difference", "benchmark-cifar10", flesd, simclr, "--seeds", "0", "1", "2"])
    assert capsys.readouterr().out.splitlines() == [
        "linear +2.56 [+0.60, +4.51], seeds: 3",
        "knn +1.87 [+1.43, +2.30], seeds: 3",
    ]
    claims.main(["difference", "benchmark-cifar10", flesd, simclr, "--seeds", "2", "9"])
    assert all(line.endswith(", seeds: 1 of 2 that were asked for") for line in capsys.readouterr().out.splitlines())
    with pytest.raises(SystemExit):
        claims.main(["difference", "long-training", "FCL", "FedMoCO"])
    assert "has no row 'FedMoCO': choose from FedBYOL, " in capsys.readouterr().err


def test_the_benchmarks_table_is_read_with_and_without_deviations() -> None:
    two, dirichlet = claims.read_benchmark().values()
    assert two.keys() - {"FedBYOL, no warm-up", "FedEMA, no warm-up"} == dirichlet.keys()
    assert dirichlet.keys() > {"FLESD", "Random encoder", "Centralized SimCLR"}
    assert two["FLESD"] == (111.24, MeanStd(52.40, 0.09, 3))


def test_the_figures_are_drawn(tmp_path: Path) -> None:
    claims.main(["figures", str(tmp_path)])
    drawn = [path.relative_to(tmp_path) for path in tmp_path.rglob("*.png")]
    assert len(drawn) == 4
    for name in drawn:
        with Image.open(tmp_path / name) as figure, Image.open(claims.DOCS / name) as published:
            assert figure.size == published.size


def table_rows(page: str, head: str) -> list[list[str]]:
    """The cells of the table that begins with this head."""
    text = (claims.DOCS / page).read_text()
    lines = text[text.index(head) :].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def test_the_tables_of_attacks_are_those_of_the_file() -> None:
    rows = table_rows("privacy.md", "| system | linear (%) | MB | `class-dist")
    assert len(rows) > 20
    for system, _, _, *cells in rows:
        assert claims.attack_cells(system)[:4] == cells, system
    shown = {row[0]: row[1:5] for row in table_rows("privacy.md", "| representations of private samples | `matched")}
    systems = {
        "FedCA's dictionary": "FedCA",
        "FCL's features": "FCL",
        "FCL's without InstaHide": "FCL without InstaHide",
    }
    assert shown.keys() == systems.keys()
    for name, cells in shown.items():
        assert [cell.replace("0.00 (0.00 to 0.00)", "0") for cell in claims.attack_cells(systems[name])[4:]] == cells


def test_the_seeds_that_would_decide_follow_from_the_columns_shown() -> None:
    rows = [row for row in table_rows("claims.md", "| difference, in the benchmark") if " and " not in row[2]]
    assert len(rows) > 10
    for name, seen, deviation, seeds in rows:
        assert claims.seeds_needed(float(seen.split()[0]), float(deviation)) == int(seeds.replace(",", "")), name


SCORES = {
    "| | kNN after 30 epochs | kNN after 100": (
        "long-training",
        claims.SEEDS,
        {1: "knn_30", 2: "knn_100", 3: "linear"},
    ),
    "| | epochs of the shorter run": ("long-training-200", (0,), {4: "knn_200", 5: "linear_200"}),
}
"""Head of a table of docs/claims.md -> its file, its seeds, and the score in each column."""


@pytest.mark.parametrize("head", SCORES)
def test_the_tables_of_long_training_are_those_of_the_file(head: str) -> None:
    file, seeds, columns = SCORES[head]
    table = claims.read(file)
    for name, *cells in table_rows("claims.md", head):
        for column, score in columns.items():
            values = [table[name][seed][score] for seed in seeds]
            assert MeanStd.of(values).text(symbol=False) == cells[column - 1], (name, score)


def test_the_benchmarks_table_is_that_of_the_file_where_it_has_every_seed() -> None:
    table, split, compared = claims.read("benchmark-cifar10"), "", 0
    for named, system, linear, difference, knn, _, _ in table_rows("benchmark.md", "| split | system | linear |"):
        split = named or split
        row = table.get(f"{system}, {split}", {})
        for score, cell in (("linear", linear), ("knn", knn)):
            values = [row[seed][score] for seed in claims.SEEDS if score in row.get(seed, {})]
            if len(values) == len(claims.SEEDS):
                assert MeanStd.of(values).text(symbol=False) == cell, (split, system)
                compared += 1
        found = (
            dict(claims.differences(table, f"{system}, {split}", f"FedSimCLR, {split}", claims.SEEDS)) if row else {}
        )
        if difference and "linear" in found and found["linear"].n == len(claims.SEEDS):
            assert found["linear"].text == difference, (split, system)
            compared += 1
    assert compared > 25
