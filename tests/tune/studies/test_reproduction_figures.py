"""Figures of reproductions are drawn from runs: what stands in them is what the records hold."""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.embedding import embed
from rayfed_ssl.runs import run
from tune.studies.definition.table_cells import Reproduction, load_reproduction
from tune.studies.results.reproduction_figures import draw_reproduction, mean_by_round
from tune.studies.results.reproduction_results import CellResult, ReproductionResults, measured

TREE: dict[str, Any] = {
    "title": "A figure in small",
    "source": {"paper": "None", "item": "Figure 0", "arxiv": "0000.00000"},
    "kind": "figure",
    "score": "knn",
    "rows": {
        "FedSimCLR": {"recipe": "fedsimclr"},
        "FedFoA": {"recipe": "fedfoa", "take": "mean"},
        "FLESD": {"recipe": "flesd"},
    },
    "columns": {"few": {"x": 0}, "many": {"x": 10}},
    "published": {"FedSimCLR": [30, 40]},
    "sizes": {
        "cpu": {
            "set": {
                "data": {"name": "digits", "train_limit": 60, "test_limit": 30},
                "clients.number": 2,
                "rounds": 2,
                "training": {"epochs": 2, "batch": 16},
                "evaluation": {"every": 1, "linear": {"epochs": 1}, "diagnostics": 1},
                "engine": {"executor": "local", "device": "cpu", "precision": "fp32"},
            },
            "rows": {
                "FLESD": {
                    "set": {
                        "method.queue_size": 8,
                        "method.distil_batch": 4,
                        "method.distil_epochs": 1,
                        "public": "fraction:0.5",
                    }
                },
                "FedFoA": {"set": {"method.warm_up": 1}},
            },
        }
    },
}


def shown(folder: Path, draw: str, **changes: Any) -> Reproduction:
    file = folder / f"{draw}.yaml"
    file.write_text(yaml.safe_dump(TREE | {"draw": draw} | changes, sort_keys=False))
    return load_reproduction(str(file), "cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run of each row."""
    folder = tmp_path_factory.mktemp("figures")
    for cell in shown(folder, "bars").cells:
        if cell.column == "few":
            run(cell.config(0), folder / cell.row)
    return folder


def results(folder: Path, draw: str, rows: tuple[str, ...], **changes: Any) -> tuple[Reproduction, ReproductionResults]:
    """Both columns show the runs of their row."""
    reproduction = shown(folder, draw, **changes).only(rows, None)
    cells = [
        CellResult.of(cell, [cell.row], [measured(cell, folder / cell.row, "percent")]) for cell in reproduction.cells
    ]
    return reproduction, ReproductionResults.of(reproduction, cells)


@pytest.mark.parametrize(
    ("draw", "rows", "changes", "words"),
    [
        ("bars", ("FedSimCLR", "FedFoA"), {}, {"few", "many", "FedSimCLR", "accuracy (%)"}),
        ("lines", ("FedSimCLR", "FLESD"), {}, {"FLESD", "10"}),
        ("rounds", ("FedSimCLR", "FLESD"), {}, {"round", "many"}),
        ("losses", ("FedSimCLR", "FLESD"), {"score": "loss"}, {"FLESD, server", "FedSimCLR, clients", "local epochs"}),
        ("boxplots", ("FedSimCLR",), {"score": "diag_angle", "unit": "degrees"}, {"FedSimCLR", "degrees", "1", "2"}),
        ("heatmaps", ("FedFoA",), {"score": "diag_relation_distance"}, {"few", "many", "client", "0.0"}),
        ("tsne", ("FedSimCLR",), {}, {"FedSimCLR", "9"}),
    ],
)
def test_every_kind_of_figure_is_drawn(runs: Path, draw: str, rows: tuple[str, ...], changes: Any, words: set[str]):
    names = draw_reproduction(*results(runs, draw, rows, **changes), runs)
    assert names == [f"{draw}.png", f"{draw}.svg"]
    text = (runs / f"{draw}.svg").read_text()
    ET.fromstring(text)
    for word in words | {"None, Figure 0 (cpu size)"}:
        assert f"<!-- {word} -->" in text
    assert (runs / f"{draw}.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_is_drawn_of_cells_without_numbers(runs: Path):
    result = results(runs, "bars", ("FedSimCLR",), score="transfer-fedca")
    assert draw_reproduction(*result, runs / "nowhere") == []


def test_a_metric_by_round_is_the_mean_over_those_who_have_it(runs: Path):
    record = RunRecord.open(runs / "FedSimCLR")
    means = mean_by_round(record, "loss")
    own = [row["value"] for row in record.metrics if row["name"] == "loss" and row["round"] == 2]
    assert list(means) == [1, 2]
    assert len(own) == 2
    assert means[2] == pytest.approx(sum(own) / 2, rel=1e-12)  # one addition, in another order at most


def test_a_local_models_picture_knows_its_clients_classes_and_differs_from_the_global_one(runs: Path):
    local, own = embed(runs / "FedSimCLR", local=True), embed(runs / "FedSimCLR", local=False)
    assert local.points.shape == (30, 2)
    assert local.held is not None
    assert own.held is None
    assert local.held <= set(range(10))
    assert (local.labels == own.labels).all()
    assert not (local.points == own.points).all()
