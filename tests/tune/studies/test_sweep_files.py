"""Sweep files: what they may say, and what a user may change."""

import errno
from pathlib import Path

import pytest
import yaml

from rayfed_ssl.errors import BusyError, ConfigError
from rayfed_ssl.evaluation.protocols import Transfer
from rayfed_ssl.evaluation.registry import PROTOCOLS
from tune.studies.definition.files import load_study
from tune.studies.definition.trial_configs import config_of, settings_of
from tune.studies.execution.directory import StudyDirectory
from tune.studies.run import StudyRequest
from tune.studies.search.optuna_study import check_study

SMALL = {"recipe": "digits", "space": {"rounds": [1, 2]}}


SEARCHED = {"space": {"training.batch": {"integer": [16, 32]}}, "trials": 3}


def test_defaults_are_a_grid_of_the_linear_probe_on_validation_data():
    sweep = load_study(SMALL)
    assert (sweep.search.name, sweep.selects_on, sweep.seeds) == ("grid", "validation", (0,))
    assert [(goal.score, goal.direction) for goal in sweep.goals] == [("linear", "maximize")]


def test_settings_of_the_file_the_row_the_point_and_the_user_go_in_this_order():
    sweep = load_study(
        {
            "set": {"clients.number": 3, "training.epochs": 1, "training.batch": 16},
            "rows": {"A": {"recipe": "digits", "set": {"training.epochs": 2}}},
            "space": {"clients.fraction": [1.0]},
        },
        "training.batch=32",
    )
    config = config_of(sweep, {"row": "A", "clients.fraction": 1.0}, seed=4)
    assert (config.clients.number, config.training.epochs, config.clients.fraction) == (3, 2, 1.0)
    assert (config.training.batch, config.seed) == (32, 4)


def test_validation_data_are_held_out_unless_the_sweep_says_test_by_name():
    assert config_of(load_study(SMALL), {"rounds": 1}, 0).data.validation == 0.1
    assert config_of(load_study(SMALL, "data.validation=0.3"), {"rounds": 1}, 0).data.validation == 0.3
    assert config_of(load_study(SMALL | {"selection": "test"}), {"rounds": 1}, 0).data.validation is None
    assert (
        config_of(load_study(SMALL, "data.validation=0.3", "selection=test"), {"rounds": 1}, 0).data.validation is None
    )


def test_a_name_on_the_hub_is_no_path_unless_there_is_such_a_directory(tmp_path):
    dataset = "evaluation.settings.transfer-fedca.dataset=hub:owner/name"
    sweep = load_study(SMALL, "data={name: hub, path: owner/name}", "public=hub:owner/name:20", dataset)
    sweep = sweep.model_copy(update={"directory": tmp_path})

    def names() -> set[str]:
        tree = settings_of(sweep, {"rounds": 1}, 0)
        transfer = tree["evaluation"]["settings"]["transfer-fedca"]["dataset"]
        return {tree["data"]["path"], tree["public"][len("hub:") : -len(":20")], transfer[len("hub:") :]}

    assert names() == {"owner/name"}
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert names() == {str(tmp_path / "owner" / "name")}


def test_relative_paths_start_where_the_sweep_was_begun(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "{rounds: 1, method: fedavg, objective: simclr, data: digits, partition: iid, training: {epochs: 1}}"
    )
    sweep = load_study(SMALL | {"recipe": "mine.yaml"}, "data={name: folder, path: pictures}", "model.start=~/encoder")
    config = config_of(sweep.model_copy(update={"directory": tmp_path}), {"rounds": 1}, 0)
    assert config.data.path == tmp_path / "pictures"
    assert config.model.start == Path("~/encoder").expanduser()
    others = ("engine.checkpoints=states", "public=folder:others:20", "engine.shared=begun")
    others += ("evaluation.settings.transfer-fedca.dataset=folder:third", "evaluation.protocols=transfer-fedca")
    others += ("partition={name: file, path: split.json}", "data.train_limit=null")
    there = config_of(
        load_study(SMALL, *others, "selection=test").model_copy(update={"directory": tmp_path}), {"rounds": 1}, 0
    )
    assert (there.engine.checkpoints, there.public) == (str(tmp_path / "states"), f"folder:{tmp_path}/others:20")
    assert there.engine.shared == tmp_path / "begun"
    assert there.dump()["partition"]["path"] == str(tmp_path / "split.json")
    assert there.evaluation.settings["transfer-fedca"]["dataset"] == f"folder:{tmp_path}/third"
    away = load_study(SMALL, "engine.checkpoints=s3://bucket/states", "public=fraction:0.2")
    kept = config_of(away.model_copy(update={"directory": tmp_path}), {"rounds": 1}, 0)
    assert (kept.engine.checkpoints, kept.public) == ("s3://bucket/states", "fraction:0.2")


def test_what_decides_is_measured():
    stopped = load_study(SMALL | {"space": {"clients.number": [5]}, "stop": {"rule": "asha", "grace": 2}})
    assert config_of(stopped, {"clients.number": 5}, 0).evaluation.every == 2
    quiet = {"set": {"evaluation.diagnostics": 0}}
    diagnosed = load_study(SMALL | quiet | {"maximize": [], "minimize": "diag_alignment"})
    assert config_of(diagnosed, {"rounds": 2}, 0).evaluation.diagnostics == 2
    probed = load_study(SMALL | {"maximize": "linear-moco"})
    assert config_of(probed, {"rounds": 2}, 0).evaluation.protocols == ("linear-moco",)


@pytest.mark.parametrize("ending", ["", "_best"])
def test_another_datasets_test_set_chooses_nothing_either(ending):
    transfer = next(name for name, kind in PROTOCOLS.items() if isinstance(kind, Transfer))
    with pytest.raises(ConfigError, match="must not choose: set selection: test"):
        config_of(load_study(SMALL | {"maximize": transfer + ending}), {"rounds": 1}, 0)


@pytest.mark.parametrize(
    ("space", "override", "says"),
    [
        ({"partition.alpha": [100, 1]}, "partition=iid", "partition.alpha is varied and 100 here, but is not set"),
        ({"partition.alpha": [100, 1]}, "partition.name=iid", "partition.alpha is varied and 100 here, but is not set"),
        ({"method.mu": [0.1, 1]}, "method={name: fedprox, mu: 5}", "has come to 5"),
        (
            {"training.total_epochs": [4, 8]},
            "training.epochs=1",
            "training.total_epochs is varied and 4 here, but is not set",
        ),
        ({"method": ["fedavg", "fedprox"]}, "method=flesd", "what mine varies"),
    ],
)
def test_nothing_undoes_a_points_values_unseen(space, override, says):
    with pytest.raises(ConfigError, match=says):
        check_study(load_study(SMALL | {"space": space}, override, name="mine"))


def test_a_user_changes_the_sweep_itself_by_its_own_words():
    sweep = load_study(
        SMALL | {"space": {"rounds": {"integer": [1, 4]}}, "search": "random", "trials": 3}, "trials=5", "seeds=2"
    )
    assert (sweep.trials, sweep.seeds, sweep.overrides) == (5, (0, 1), ())


def test_rungs_end_before_the_last_round():
    stop = load_study(SMALL | {"stop": {"rule": "asha", "grace": 1, "reduction": 3}}).stop
    assert stop is not None
    assert stop.rungs(9) == [1, 3]
    assert stop.rungs(10) == [1, 3, 9]
    assert stop.rungs(1) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"spaces": {}}, "unknown key 'spaces': did you mean 'space'"),
        ({"selection": "train"}, "selection: input should be 'validation' or 'test', got 'train'"),
        ({"search": "tp"}, "search.name: input should be 'grid', 'random', 'tpe' or 'nsga2', got 'tp'"),
        ({"search": "tpe"}, "needs a number of trials"),
        ({"trials": 4}, "a grid has as many trials as points"),
        ({"search": "random", "trials": 0}, "trials: input should be greater than or equal to 1, got 0"),
        ({"seeds": [1, 1]}, "seeds must differ"),
        ({"seeds": 10**9}, "seeds: input should be a list"),
        ({"space": {"rounds": [*range(10_001)]}}, "space.rounds.values.values: tuple should have at most 10000 items"),
        ({"seeds": 0}, "seeds: input should be a list such as [a, b], got 0"),
        ({"seeds": [-1]}, "seeds.0: input should be greater than or equal to 0, got -1"),
        ({"seeds": []}, "seeds is empty: name one at least"),
        ({"minimize": "bytes", "stop": {}, "maximize": "knn"}, "stop needs one goal, got 2"),
        ({"stop": {"rule": "median"}}, "stop.rule: input should be 'asha', got 'median'"),
        ({"stop": {"every": 2}}, "unknown key 'stop.every': choose from grace, reduction, rule"),
        ({"stop": {"rule": "asha", "reduction": 1}}, "greater than or equal to 2, got 1"),
        ({"table": {"rows": "round"}}, "rows is no parameter: 'round'"),
        ({"figure": {"y": "rounds"}}, "unknown key 'figure.y': choose from draw, lines, panels, x"),
        ({"recipe": None}, "recipe is missing"),
        ({"begin": {"sweep": "other"}}, "begin.take is missing"),
        ({"space": {"seed": [1, 2]}}, "a seed is a repeat and no parameter: set seeds"),
        ({"set": {"seed": 9}}, "set seeds"),
        ({"take": "mena"}, "take: string should match pattern"),
        ({"stop": {"grace": True}}, "stop.grace: input should be a valid integer, got True"),
    ],
)
def test_what_does_not_fit_together_is_refused(change, says):
    with pytest.raises(ConfigError) as told:
        load_study(SMALL | change, name="mine")
    assert says in str(told.value)
    assert str(told.value).startswith("mine: ")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("rounds=3", "is what mine varies"),
        ("rounds", "looks like key=value"),
        ("seeds=x", "seeds: input should be a list"),
        ("trials=[", "trials cannot be read"),
        ("seed=7", "set seeds"),
    ],
)
def test_a_users_setting_that_does_not_fit_is_refused(override, says):
    with pytest.raises(ConfigError, match=says):
        load_study(SMALL, override, name="mine")


@pytest.mark.parametrize(
    ("change", "overrides", "says"),
    [
        ({"maximize": "linaer"}, (), "there is no score 'linaer': did you mean 'linear'"),
        ({"maximize": [], "minimize": "loss"}, (), "there is no score 'loss'"),
        ({"maximize": []}, (), "mine: there is no goal to choose by: name a score"),
        ({"space": {"engine.actors": [1, 2]}}, (), "engine.actors changes how a run is computed"),
        ({}, ("clients.numbr=3",), "mine: no trial can be run: unknown key 'clients.numbr'"),
        ({}, ("training=5",), "no trial can be run"),
        ({}, ("data={name: folder, path: /nowhere}",), "no trial can be run: data.path /nowhere does not exist"),
        (SEARCHED | {"search": {"name": "tpe", "bogus": 5}}, (), "tpe does not take these settings"),
        ({"space": {"training.batch": {"integer": [2, 8]}}, "search": "random", "trials": 2}, ("rounds=0",), "rounds"),
    ],
)
def test_a_sweep_of_which_no_trial_could_come_to_a_value_is_not_begun(change, overrides, says, tmp_path):
    file, out = tmp_path / "mine.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(SMALL | change))
    with pytest.raises(ConfigError) as told:
        StudyRequest(str(file), "sweep", overrides, out=out).run(print)
    assert says in str(told.value)
    assert not out.exists()


def test_a_full_disk_leaves_no_directory_that_is_neither_empty_nor_a_sweep(tmp_path, monkeypatch):
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    file, out = tmp_path / "mine.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(SMALL))
    with monkeypatch.context() as patch:
        patch.setattr("rayfed_ssl.storage.filesystem.write_atomically", full)
        with pytest.raises(OSError, match="No space left"):
            StudyRequest(str(file), "sweep", out=out).describe().create()
    StudyRequest(str(file), "sweep", out=out).describe().create()
    assert {path.name for path in out.iterdir()} == {"study.json", "runs", "lock"}


def test_of_two_starts_of_a_sweep_at_once_the_second_writes_nothing(tmp_path):
    file, out = tmp_path / "mine.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(SMALL))
    first = StudyDirectory.of(out, "mine", SMALL, (), "rayfed-ssl sweep mine.yaml")
    with first.locked(), pytest.raises(BusyError, match="another process is running"):
        StudyRequest(str(file), "sweep", ("seeds=5",), out=out).describe().create()
    assert [path.name for path in out.iterdir()] == ["lock"]


def test_a_sweep_that_is_not_there_is_told_with_its_neighbor():
    with pytest.raises(ConfigError, match="no sweep 'flesd-round'"):
        load_study("flesd-round")
