"""`rayfed-ssl export` on the command line."""

import json
import shutil
from pathlib import Path

from rayfed_ssl.storage.encoder_file import read_export
from tests.tune.conftest import Cli, Finished


def test_export_prints_what_is_written(cli: Cli, finished: Finished, tmp_path: Path):
    out = tmp_path / "encoder.safetensors"
    result = cli("export", finished["flesd"][0], out)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{out}: global, cnn, 1 x 8 x 8 pixels to 256 features, flesd after round 2\n"
    assert read_export(out).heads == {}


def test_a_client_s_encoder_is_written_with_its_heads_on_request(cli: Cli, finished: Finished, tmp_path: Path):
    out = tmp_path / "encoder.safetensors"
    assert cli("export", finished["local"][0], out, "--encoder", "client-2", "--with-heads").exit_code == 0
    export = read_export(out)
    assert export.info.encoder == "client-2"
    assert {name.partition(".")[0] for name in export.heads} == {"projector"}


def test_the_encoder_of_an_unfinished_run_and_a_new_place_for_a_report_are_said(
    cli: Cli, finished: Finished, tmp_path: Path
):
    run = Path(shutil.copytree(finished["flesd"][0], tmp_path / "run"))
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(manifest | {"finished": None, "num_rounds": 5}))
    result = cli("export", run, tmp_path / "e.safetensors")
    assert result.stderr == f"note: {run} is unfinished: this is its encoder after round 2 of 5\n"
    for expected in (f"note: {tmp_path / 'new'} was not there and has been made\n", ""):
        assert cli("report", run, "--out", tmp_path / "new/r.html").stderr == expected
