"""Names of runs in a reproduction: the same for settings that do not change results."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rayfed_ssl.config.schema import Config
from rayfed_ssl.config.sections import BITS, Engine
from rayfed_ssl.records.manifest import settings_sha256
from tune.studies.definition.trial_configs import run_name

Tiny = Callable[..., Config]


def test_held_out_samples_make_another_run(tiny: Tiny):
    plain, apart, more = tiny("fedca"), tiny("fedca", "data.validation=0.2"), tiny("fedca", "data.validation=0.3")
    assert len({run_name(config) for config in (plain, apart, more)}) == 3
    assert len({settings_sha256(config) for config in (plain, apart, more)}) == 3


def test_a_run_keeps_the_name_that_earlier_versions_gave_it(tiny: Tiny):
    files = "data={name: parquet, path: /pictures}"
    assert run_name(tiny("fedavg", files)) == "fedavg-s0-5abfac0fa2"
    assert run_name(tiny("fedavg", files, "data.label=class")) != "fedavg-s0-5abfac0fa2"


def test_other_indices_in_the_same_file_make_another_run(tiny: Tiny, tmp_path: Path):
    file = tmp_path / "split.json"
    names = []
    for indices in ("[[0, 1], [2, 3]]", "[[0, 2], [1, 3]]"):
        file.write_text(indices)
        config = tiny("fedavg", "data.train_limit=null", f"partition={{name: file, path: {file}}}")
        assert run_name(config) == run_name(config)
        names.append(run_name(config))
    file.unlink()
    assert len({*names, run_name(config)}) == 3


def test_other_code_of_a_partition_from_outside_makes_another_run(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(tmp_path)
    module, names = tmp_path / "outside_split.py", []
    for first in ("0", "1"):
        module.write_text(f"def halves(labels, seed, first: int = 0):\n    return [[{first}, 2], [3, 5]]\n")
        config = tiny("fedavg", "partition=outside_split:halves")
        assert run_name(config) == run_name(config)
        names += [run_name(config), run_name(tiny("fedavg", "partition={name: 'outside_split:halves', first: 1}"))]
    assert len(set(names)) == 4


def test_what_the_server_shares_makes_no_other_run(tiny: Tiny):
    plain, shared = tiny("fedca"), tiny("fedca", "engine.shared=/some/where")
    assert run_name(shared) == run_name(plain)
    assert settings_sha256(shared) == settings_sha256(plain)


@pytest.mark.parametrize("setting", ["mps=on", "mps=off", "actors=7"])
def test_how_actors_share_a_machine_makes_no_other_run(tiny: Tiny, setting: str):
    plain, shared = tiny("fedavg"), tiny("fedavg", f"engine.{setting}")
    assert run_name(shared) == run_name(plain)
    assert settings_sha256(shared) == settings_sha256(plain)


def test_what_changes_bits_is_part_of_the_engine():
    assert set(BITS) <= set(Engine.model_fields)
    assert "shared" not in BITS
