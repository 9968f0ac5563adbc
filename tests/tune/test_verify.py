"""`rayfed-ssl verify`: what it prints, and the exit codes."""

import json
import shutil
from pathlib import Path

from tests.tune.conftest import Cli, Finished


def test_the_command_prints_the_verdict_and_exits_with_it(cli: Cli, finished: Finished, tmp_path: Path):
    original = finished["local"][0]
    equal = cli("verify", original, "--quiet")
    assert (equal.exit_code, equal.stdout.startswith("equal: 2 rounds, state_sha256 ")) == (0, True)
    copy = Path(shutil.copytree(original, tmp_path / "copy"))
    manifest = json.loads((copy / "run.json").read_text())
    manifest["rounds"][0]["state_sha256"] = "0" * 64
    (copy / "run.json").write_text(json.dumps(manifest))
    different = cli("verify", copy, "--quiet", "--out", tmp_path / "kept")
    assert different.exit_code == 1
    assert different.stdout.splitlines()[0].startswith("different: round 1 is the first that differs: ")
    assert different.stdout.splitlines()[1].startswith("reason: nothing on record explains it")
    assert (tmp_path / "kept" / "run.json").is_file()
    assert "there is no recipe 'nosuch'" in cli("verify", "nosuch").stderr
