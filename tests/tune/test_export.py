"""`rayfed-ssl export`: what it says, and that a mistake is one line."""

from pathlib import Path

import pytest
from click.testing import Result

from rayfed_ssl.export.encoder_file import read_export
from tests.tune.conftest import Cli

Finished = dict[str, tuple[Path, Result]]


def test_export_says_what_it_has_written(cli: Cli, finished: Finished, tmp_path: Path):
    out = tmp_path / "encoder.safetensors"
    result = cli("export", finished["flesd"][0], out)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{out}: cnn, 1 x 8 x 8 pixels to 256 features, flesd after round 2\n"
    assert read_export(out).heads == {}


def test_a_client_s_encoder_goes_with_its_heads_if_asked_for(cli: Cli, finished: Finished, tmp_path: Path):
    out = tmp_path / "encoder.safetensors"
    assert cli("export", finished["local"][0], out, "--encoder", "client-2", "--with-heads").exit_code == 0
    export = read_export(out)
    assert export.info.encoder == "client-2"
    assert {name.partition(".")[0] for name in export.heads} == {"projector"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{run}", "e.safetensors", "--encoder", "client-3"], "has no encoder 'client-3': choose from global"),
        (["{run}", "e.pt"], "an exported encoder's name ends in .safetensors, got e.pt"),
        (["/nowhere", "e.safetensors"], "/nowhere holds no run"),
    ],
)
def test_a_mistake_is_one_line(
    cli: Cli,
    finished: Finished,
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    result = cli("export", *(word.format(run=finished["flesd"][0]) for word in words))
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []
