"""The papers' tables and figures as data: settings and published numbers, and what ours are compared with."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayfed_ssl.config.schema import Config
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.evaluation.registry import is_score
from rayfed_ssl.training.optimizers import Adam
from tests.tune.studies.swept import result as swept_result
from tune.studies.definition.files import load_study, read_study_file
from tune.studies.definition.study import Cell, Study
from tune.studies.definition.trial_configs import config_of, run_of
from tune.studies.results.published import (
    agreement_of,
    describe,
    kendall,
    published_remarks,
    unlike,
    with_published,
)
from tune.studies.results.results import ScoreResult, TrialResult

NAMES = [
    *("flesd-table1", "flesd-figure2", "flesd-figure4", "flesd-figure5"),
    *("fedca-table1", "fedca-table2", "fedca-table3", "fedca-figure3", "fedca-figure4", "fedca-figure5"),
    *("fcl-table1", "fcl-table2", "fcl-table3", "fcl-figure5"),
    *("fedfoa-table1", "fedfoa-table2", "fedfoa-table3"),
    *("fedfoa-figure4", "fedfoa-figure5", "fedfoa-figure6", "fedfoa-figure7"),
    *("fedema-table1", "ssd-table1", "orchestra-table1"),
]
BOTH = [(name, size) for name in NAMES for size in ("cpu", "paper")]


@dataclass(frozen=True)
class Shown:
    """A cell with its study."""

    study: Study
    point: dict[str, str]

    @property
    def row(self) -> str:
        return self.point["row"]

    @property
    def column(self) -> str:
        return self.point["column"]

    @property
    def cell(self) -> Cell:
        return self.study.cell(self.point)

    def config(self, seed: int = 0, *overrides: str) -> Config:
        return config_of(self.study.model_copy(update={"overrides": overrides}), self.point, seed)


def cells(study: Study) -> Iterator[Shown]:
    return (Shown(study, point) for point in study.points())


def cell_of(study: Study, row: str, column: str) -> Shown:
    return next(shown for shown in cells(study) if (shown.row, shown.column) == (row, column))


@cache
def load(name: str, size: str) -> Study:
    return load_study(name, kind="reproduction", size=size)


def paper(name: str, row: str, column: str) -> Config:
    return cell_of(load(name, "paper"), row, column).config()


@pytest.mark.parametrize(("name", "size"), BOTH)
def test_every_cell_resolves_and_measures_its_score(name: str, size: str):
    study = load(name, size)
    assert len(study.points()) == len(study.axes["row"]) * len(study.axes["column"]) > 0
    for shown in cells(study):
        run = run_of(study, shown.point, 0)
        score = str(shown.cell.score).removesuffix("_best")
        if score.startswith("diag_"):
            assert run.config.evaluation.diagnostics == 1
        elif score not in ("knn", "linear", "supervised", "loss"):
            assert is_score(score)
            assert score in run.config.evaluation.protocols
        if score == "supervised":
            assert run.config.objective.needs_labels


def test_flesds_table_has_the_papers_settings():
    config = paper("flesd-table1", "FLESD", "CIFAR10 α=0.01")
    assert (config.rounds, config.epochs, config.rounds * config.epochs) == (2, 100, 200)
    assert (config.clients.number, config.public, config.partition.alpha) == (6, "client:0", 0.01)
    assert (config.training.batch, config.model.encoder, config.objective.temperature) == (1024, "resnet18", 0.4)
    assert config.training.optimizer == Adam(lr=1e-3, weight_decay=1e-6)
    method = config.method
    assert (method.temperature, method.queue_size, method.distil_epochs) == (0.1, 2048, 200)
    assert (method.distil_batch, method.distil_lr, method.momentum) == (128, 1e-3, 0.999)
    for row, rounds in (("FedAvg", 10), ("FedProx", 10), ("FLESD-cc", 1), ("Min-Local", 1), ("Non-FL", 1)):
        other = paper("flesd-table1", row, "CIFAR100 α=1")
        assert (other.rounds, other.rounds * other.epochs, other.data.name) == (rounds, 200, "cifar100")
    assert paper("flesd-table1", "FedAvg", "ImageNet-100 α=1").model.encoder == "resnet50"
    assert paper("flesd-table1", "FedAvg", "ImageNet-100 α=1").objective.temperature == 0.2
    assert paper("flesd-table1", "FedAvg", "ImageNet-100 α=1").training.batch == 128
    large = paper("flesd-table1", "FLESD", "ImageNet-100 α=0.01")
    assert (large.data.size, large.model.image_size) == (256, 224)
    assert paper("flesd-table1", "FedAvg", "Tiny-ImageNet α=1").training.batch == 256
    assert paper("flesd-table1", "FedAvg", "CIFAR10 α=1").method.weighting == "uniform"


def test_fcls_fine_tuning_starts_from_the_first_runs_encoder_with_its_labels():
    shown = cell_of(load("fcl-table3", "paper"), "Proposed (FCL)", "Non-1 CIFAR100 1%")
    run = run_of(shown.study, shown.point, 3)
    assert run.first is not None
    first, second = run.first.config, run.config
    assert (second.clients.labeled, second.seed) == (0.01, 3)
    assert run.placed(second, Path("/runs")).model.start == Path("/runs") / run.first.name
    assert (second.data, second.partition) == (first.data, first.partition)
    assert second.model.encoder == first.model.encoder == "resnet18"
    alone = cell_of(load("fcl-table3", "paper"), "FedAvg (Supervised)", "IID CIFAR10 10%")
    assert run_of(alone.study, alone.point, 0).first is None


def test_ssds_table_runs_on_the_splits_that_its_authors_publish(tmp_path: Path):
    overrides = [f"partition={{name: file, path: {tmp_path}/cifar10_dir_client10_alpha0.1.json}}"]
    config = cell_of(load("ssd-table1", "paper"), "SSD", "CIFAR10 silo").config(0, *overrides)
    assert config.partition.name == "file"


# Typed from the papers' text, apart from the files.
PUBLISHED = [
    ("flesd-table1", "FLESD", "CIFAR10 α=100", 75.8),
    ("flesd-table1", "Non-FL", "CIFAR10 α=100", None),
    ("flesd-figure2", "SimCLR, linear probe", "α=0.01", 66.7),
    ("flesd-figure2", "supervised, linear probe", "α=0.01", 38.6),
    ("fedca-table1", "FedPR", "IID CIFAR10 CNN", 55.75),
    ("fedca-table1", "FedAE", "IID MiniImageNet ResNet-50", 31.97),
    ("fedca-table2", "FedAvg (Supervised)", "1% IID CIFAR10 CNN", 31.84),
    ("fedca-table2", "FedCA", "1% Non-IID CIFAR10 ResNet-50", 28.50),
    ("fedca-table3", "Random init", "IID MiniImageNet to CIFAR100, ResNet-50", 70.52),
    ("fedca-table3", "FedPR", "IID MiniImageNet to CIFAR10, ResNet-50", 93.55),
    ("fedca-figure5", "with alignment", "IID", 69.5),
    ("fcl-table1", "Proposed (FCL)", "CIFAR10 Non-2", 78.31),
    ("fcl-table1", "FedSwAV", "CIFAR100 Non-2", 53.77),
    ("fcl-table2", "FedCA", "IID CIFAR100 1%", 8.13),
    ("fcl-table2", "Proposed (FCL)", "Non-1 CIFAR10 10%", 84.01),
    ("fcl-table3", "FedAvg (Supervised)", "IID CIFAR10 1%", 39.35),
    ("fcl-table3", "FedSimCLR", "Non-1 CIFAR100 1%", 11.19),
    ("fcl-figure5", "CL+FF", "(a) Non-1, linear", 78.64),
    ("fcl-figure5", "CL+FF+NM", "(b) Non-1, 1% labels", 67.87),
    ("fedfoa-table1", "FedDF", "AlexNet", 70.89),
    ("fedfoa-table1", "FedFoA", "Avg.", 77.35),
    ("fedfoa-table2", "FedMD", "AlexNet", 41.2),
    ("fedfoa-table2", "FedFoA", "VGG-9", 42.06),
    ("fedfoa-table3", "FedU+FedFoA", "CIFAR100 Best", 47.46),
    ("fedfoa-table3", "FedBYOL", "CIFAR10 Last", 73.76),
    ("fedfoa-figure5", "FedEMA+FedFoA", "λ=0.01", 49.84),
    ("fedema-table1", "FedEMA τ=0.7", "CIFAR10 Non-IID", 83.34),
    ("fedema-table1", "Standalone", "CIFAR10 IID", 82.42),
    ("ssd-table1", "SSD", "CIFAR100 device", 45.21),
    ("ssd-table1", "FedU2", "CIFAR100 silo", 57.40),
    ("orchestra-table1", "Orchestra", "CIFAR10", None),
]


@pytest.mark.parametrize(("name", "row", "column", "number"), PUBLISHED)
def test_published_numbers_are_the_papers(name: str, row: str, column: str, number: float | None):
    assert cell_of(load(name, "paper"), row, column).cell.published == number


@pytest.mark.parametrize("name", ["fedfoa-table1", "fedfoa-table2"])
def test_printed_averages_are_those_of_their_cells_but_for_one_row(name: str):
    for row, (*numbers, average) in read_study_file(name, "reproduction")["published"].items():
        consistent = abs(sum(numbers) / 4 - average) < 0.02  # cells have two decimals
        assert consistent == ((name, row) != ("fedfoa-table2", "FedFoA"))


def small(folder: Path, size: str = "cpu", **changes: Any) -> Study:
    tree: dict[str, Any] = {
        "title": "t",
        "score": "linear",
        "rows": {"a": {"recipe": "fedsimclr"}, "b": {"recipe": "fedae"}},
        "columns": {"x": {}, "y": {}},
        "published": {"a": [1, 2]},
        "sizes": {"cpu": None},
    }
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump(tree | changes))
    return load_study(str(file), kind="reproduction", size=size)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row": {}}, "unknown key 'row': did you mean 'rows'?"),
        ({"rows": {"a": {"recipe": "fedsimclr", "sett": {}}}}, "unknown key 'rows.a.sett': did you mean 'set'?"),
        ({"published": {"a": [1]}}, "row a has 1 published numbers for 2 columns"),
        ({"published": {"c": [1, 2]}}, "there is no row 'c'"),
        ({"sizes": {"cpu": {"rows": {"c": {}}}}}, "there is no row 'c'"),
        ({"columns": {"x": {"rows": {"c": {}}}, "y": {}}}, "there is no row 'c'"),
        ({"sizes": {"cpu": {"columns": ["z"]}}}, "there is no column 'z'"),
        ({"sizes": {"gpu": None}}, "has no size 'cpu'"),
        ({"figure": {"draw": "bar"}}, "figure.draw: input should be 'lines' or 'tsne'"),
        ({"rows": {"a": {"recipe": "fedsimclr", "runs": "third"}}}, "rows.a.runs: input should be 'first' or 'second'"),
        ({"rows": ["a"]}, "rows: input should be a valid dictionary, got ['a']"),
        ({"rows": {"a": {}}}, "recipe is missing"),
        ({"published": {"a": ["one", 2]}}, "published.a.0: input should be a valid number, got 'one'"),
        ({"sizes": {"cpu": {"columns": [1]}}}, "input should be a valid string, got 1"),
        ({"columns": {}, "published": {}}, "columns is missing: score shows"),
        ({"space": {"rounds": [1, 2]}}, "space is there beside score or baseline"),
        ({"score": None}, "sizes belong to a study with a score"),
        ({"maximize": "knn"}, "score shows a number in each cell and seeks nothing"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path: Path, changes: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as error:
        small(tmp_path, **changes)
    assert message in str(error.value)


def test_what_is_nearer_to_a_cell_goes_before_what_is_farther(tmp_path: Path):
    sizes = {
        "cpu": {
            "set": {"rounds": 2, "clients.number": 2, "training.batch": 2, "data.size": 8},
            "columns": {
                "x": {"set": {"training.batch": 5, "training.epochs": 5, "data.test_limit": 5}},
                "y": None,
            },
            "rows": {"a": {"set": {"data.size": 9}}},
        }
    }
    of_cell = {"clients.fraction": 0.2, "training.epochs": 2, "data.test_limit": 2}
    x = {"rounds": 3, "clients.number": 3, "training.batch": 3, "data.size": 7}
    columns = {"x": {"set": x, "rows": {"a": of_cell}}, "y": {}}
    of_row = {"clients.number": 4, "training.batch": 4, "data.size": 6, "clients.fraction": 0.4}
    rows = {"a": {"recipe": "fedsimclr", "set": of_row}, "b": {"recipe": "fedsimclr"}}
    study = small(tmp_path, sizes=sizes, rows=rows, columns=columns)
    config = cell_of(study, "a", "x").config(7, "model.encoder=cnn5")
    assert (config.rounds, config.clients.number, config.training.batch, config.data.size) == (3, 4, 5, 9)
    assert (config.seed, config.model.encoder) == (7, "cnn5")
    assert (config.clients.fraction, config.epochs, config.data.test_limit) == (0.2, 5, 5)
    assert [cell_of(study, row, column).config().clients.fraction for row, column in ("ay", "bx")] == [0.4, 1.0]
    assert cell_of(study, "a", "y").config().rounds == 2


def trial(study: Study, row: str, column: str, *ours: float, seeds: int = 1, reason: str = "") -> TrialResult:
    """Make a trial that has come to these scores, in percent."""
    made = swept_result(study, 0, {"row": row, "column": column}, {"linear": [0.0] * len(study.seeds)})
    values = {"linear": ScoreResult.of([value / 100 for value in ours])} if ours else {}
    return made.model_copy(update={"values": values, "seeds": list(range(seeds)), "reason": reason})


def test_a_cell_is_written_with_spread_and_difference(tmp_path: Path):
    study = small(tmp_path, published={"a": [75.6, None]})
    trials = [
        trial(study, "a", "x", 71.0, 72.0, seeds=2),
        trial(study, "a", "y", 71.25),
        trial(study, "a", "x", reason="broken"),
        trial(study, "b", "y", 71.0, seeds=2, reason="broken"),
    ]
    assert [describe(study, one) for one in with_published(study, trials)] == [
        "71.50 ± 0.71 [75.6; -4.1]",
        "71.25",
        "failed [75.6]",
        "71.00 (1 of 2 seeds)",
    ]


def test_kendall_counts_pairs_in_order():
    assert kendall([(1, 10), (2, 20), (3, 30)]) == 1
    assert kendall([(1, 30), (2, 20), (3, 10)]) == -1
    assert kendall([(1, 10), (2, 30), (3, 20), (4, 40)]) == pytest.approx(4 / 6, abs=1e-12)  # 5 pairs agree, 1 does not
    # Pairs 1-2 tie on the left; of the other five four agree and one does not: 3 / sqrt(5 * 6).
    assert kendall([(1, 1), (1, 2), (2, 4), (3, 3)]) == pytest.approx(3 / 30**0.5, abs=1e-12)
    assert kendall([(1, 5), (2, 5)]) is kendall([(1, 5)]) is kendall([]) is None


def test_agreement_is_of_cells_that_have_both_numbers(tmp_path: Path):
    study = small(tmp_path, published={"a": [10, 30], "b": [20, None]})
    trials = [trial(study, "a", "x", 1.0), trial(study, "b", "x", 2.0), trial(study, "a", "y", 0.5)]
    agreement = agreement_of(with_published(study, [*trials, trial(study, "b", "y", 9.0)]))
    assert agreement.cells == 3
    assert agreement.kendall == pytest.approx(-1 / 3, abs=1e-12)  # one pair of three agrees
    assert agreement.columns == {"x": 1.0, "y": None}


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("flesd-figure4", (), "cifar10 for cifar100"),
        ("fedfoa-figure4", (), "cifar10 for cifar100, knn for linear"),
        ("fedfoa-figure5", ("data.name=parquet", "data.path=/x"), "cifar10 for cifar100"),
        ("fedca-table1", ("data.name=parquet", "data.path=/x"), None),
        ("fedca-table1", ("data.name=digits",), "digits for cifar10"),
        ("flesd-figure4", ("data.name=cifar100",), None),
        ("flesd-figure4", ("data.name=digits",), "digits for cifar100"),
        ("fedfoa-figure5", ("data.name=cifar100",), None),
        ("fedca-table1", ("rounds=1",), None),
        ("fedca-table1", (), None),
    ],
)
def test_numbers_of_another_dataset_or_score_are_known(name: str, settings: tuple[str, ...], expected: str | None):
    assert unlike(load(name, "cpu").model_copy(update={"overrides": settings})) == expected


def test_what_is_unlike_has_no_difference_and_no_part_in_the_order():
    study = load("flesd-figure4", "cpu")
    (made,) = with_published(study, [trial(study, "FLESD", "E_total=200, T=1", 2.0)])
    assert (made.published, made.difference, made.unlike) == (42.1, None, "cifar10 for cifar100")
    assert describe(study, made) == "2.00 [42.1]"
    assert agreement_of([made]).cells == 0
    remarks = published_remarks(study, [made], agreement_of([made]))
    assert any(line.endswith("the published: cifar10 for cifar100.") for line in remarks)


def test_docs_name_every_reproduction():
    text = (Path(__file__).parents[3] / "docs" / "reproduce.md").read_text()
    assert [name for name in NAMES if f"`{name}`" not in text] == []
