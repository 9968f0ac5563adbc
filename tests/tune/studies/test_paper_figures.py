"""Figures of reproductions are drawn from runs: what stands in them is what the records hold."""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayfed_ssl.analysis.embedding import embed
from rayfed_ssl.runs import run
from tests.tune.studies.swept import row
from tune.studies.definition.files import load_study
from tune.studies.definition.study import Study
from tune.studies.definition.trial_configs import config_of
from tune.studies.execution.scores import read_progress
from tune.studies.execution.trial_table import NO_ROUNDS
from tune.studies.results.figures import draw_study
from tune.studies.results.published import published_table, with_published
from tune.studies.results.results import StudyResults
from tune.studies.results.trial_results import results_of

TREE: dict[str, Any] = {
    "title": "A figure in small",
    "source": "None, Figure 0",
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
                "evaluation": {"every": 1, "linear": {"epochs": 1}},
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


def shown(folder: Path, draw: str, **changes: Any) -> Study:
    file = folder / f"{draw}.yaml"
    file.write_text(yaml.safe_dump(TREE | {"figure": {"draw": draw}} | changes, sort_keys=False))
    return load_study(str(file), kind="reproduction", size="cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run of each row."""
    folder = tmp_path_factory.mktemp("figures")
    study = shown(folder, "lines")
    for point in study.points():
        if point["column"] == "few":
            run(config_of(study, point, 0), folder / point["row"])
    return folder


def drawn(folder: Path, draw: str, rows: tuple[str, ...], **changes: Any) -> tuple[list[str], list[str]]:
    """Draw a figure of which both columns show the runs of their row."""
    study = shown(folder, draw, **changes).only(rows, None)
    table = []
    for number, point in enumerate(study.points()):
        cell, name = study.cell(point), point["row"]
        progress = NO_ROUNDS | read_progress(folder / name, cell.take, [cell.score])
        table.append(row(study, number, point, run=name, **{**progress, "rounds": progress["round"]}))
    trials = with_published(study, results_of(study, table))
    tables = [published_table(study, trials, [])]
    results = StudyResults(kind="reproduction", name=study.name, title="", trials=trials, tables=tables)
    return draw_study(study, results, folder)


@pytest.mark.parametrize(
    ("draw", "rows", "changes", "words"),
    [
        ("lines", ("FedSimCLR", "FedFoA"), {"columns": {"few": {}, "many": {}}}, {"few", "many", "accuracy (%)"}),
        ("lines", ("FedSimCLR", "FLESD"), {}, {"FLESD", "10"}),
        ("tsne", ("FedSimCLR",), {}, {"FedSimCLR", "9"}),
    ],
)
def test_every_kind_of_figure_is_drawn(runs: Path, draw: str, rows: tuple[str, ...], changes: Any, words: set[str]):
    assert drawn(runs, draw, rows, **changes) == ([f"figures/{draw}.png", f"figures/{draw}.svg"], [])
    texts = set(ET.fromstring((runs / "figures" / f"{draw}.svg").read_text()).itertext())
    assert words | {"None, Figure 0 (cpu size)"} <= texts
    assert (runs / "figures" / f"{draw}.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_is_drawn_of_cells_without_numbers(runs: Path):
    assert drawn(runs, "lines", ("FedSimCLR",), score="transfer-fedca") == ([], [])


def test_a_local_models_picture_knows_its_clients_classes_and_differs_from_the_global_one(runs: Path):
    local, own = embed(runs / "FedSimCLR", local=True), embed(runs / "FedSimCLR", local=False)
    assert local.points.shape == (30, 2)
    assert local.held is not None
    assert own.held is None
    assert local.held <= set(range(10))
    assert (local.labels == own.labels).all()
    assert not (local.points == own.points).all()
