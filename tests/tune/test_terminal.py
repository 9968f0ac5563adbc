"""Output that names of files, runs and clients cannot change: they do not end lines or command the terminal."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import typer
from rich.console import Console

import tune
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.round_loop import Dropped
from rayfed_ssl.progress import RunProgress
from tests.test_errors import ESCAPED, HOSTILE
from tune.cli import app
from tune.cli.errors import fail, plain_errors
from tune.terminal import echo, plain_console, print_json, print_table


def test_lines_tables_and_json_show_names_escaped(capsys: pytest.CaptureFixture[str]):
    echo(HOSTILE)
    plain_console().print(HOSTILE, soft_wrap=True)
    print_table((HOSTILE, "n"), [[HOSTILE, "1"]])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0].strip() for line in lines] == [ESCAPED] * 4
    print_json({HOSTILE: "±"})
    text = capsys.readouterr().out
    assert text.isascii()
    assert json.loads(text) == {HOSTILE: "±"}


def test_columns_that_do_not_fit_follow_below_with_the_names_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tune.terminal.WIDTH", 30)
    print_table(("run", "method", "kNN", "up"), [["fedavg-s0-304a4a2e8a", "fedavg", "0.5", "1 MB"]])
    assert capsys.readouterr().out.splitlines() == [
        "run                   method",
        "fedavg-s0-304a4a2e8a  fedavg",
        "",
        "run                   kNN",
        "fedavg-s0-304a4a2e8a  0.5",
        "",
        "run                     up",
        "fedavg-s0-304a4a2e8a  1 MB",
    ]
    print_table(("name", "what it is"), [["cnn", "a small encoder of six layers"]], text=2)
    assert capsys.readouterr().out.count("\n") == 3  # texts fold


def test_errors_and_warnings_show_names_escaped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(typer.Exit):
        fail(["first", HOSTILE], 2)
    with pytest.raises(typer.Exit), plain_errors():
        raise FileNotFoundError(2, "No such file or directory", HOSTILE)
    with pytest.raises(typer.Exit), plain_errors():
        torch.empty(1 << 60)
    monkeypatch.setattr(warnings, "showwarning", app._show_warning)
    warnings.warn(HOSTILE, RuntimeWarning, stacklevel=1)
    lines = capsys.readouterr().err.splitlines()
    assert lines.pop(3).startswith("error: memory ran out (")
    assert lines == [
        "error: first",
        f"error: {ESCAPED}",
        f"error: No such file or directory: {ESCAPED}",
        f"warning: {ESCAPED}",
    ]


def test_progress_shows_names_escaped(capsys: pytest.CaptureFixture[str]):
    config = Config.load("digits")
    progress = RunProgress(config, console=Console(width=200))
    progress.on_warning(HOSTILE)
    progress.on_dropped(Dropped(0, HOSTILE))
    assert capsys.readouterr().out.splitlines() == [f"warning: {ESCAPED}", f"  left out: client 0: {ESCAPED}"]


def test_a_run_that_is_not_there_is_one_line_whatever_its_name(tmp_path: Path):
    command = [sys.executable, "-m", "tune.cli", "report", str(tmp_path / "a\nb\x1b[2J")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert r"a\nb\x1b[2J" in ended.stderr


def test_the_command_line_prints_through_the_functions_that_escape():
    modules = [path for path in Path(tune.__file__).parent.rglob("*.py") if path.name != "terminal.py"]
    assert not [str(path) for path in modules if "typer.echo(" in path.read_text()]
