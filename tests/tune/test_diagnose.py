"""`rayfed-ssl diagnose` on the command line."""

import json

import pytest

from rayfed_ssl.analysis.diagnosis import FILE
from tests.tune.conftest import Cli, Finished
from tune.cli.diagnose import print_diagnosis


def test_tables_are_printed_and_the_file_is_named(cli: Cli, finished: Finished):
    directory, _ = finished["local"]
    result = cli("diagnose", directory)
    assert result.exit_code == 0, result.output
    content = json.loads((directory / FILE).read_text())
    lines = [line.split() for line in result.stdout.splitlines()]
    assert result.stdout.startswith("round 2, 60 test images without labels")
    for name, numbers in content["encoders"].items():
        assert [name, "cnn", str(numbers["width"]), f"{numbers['feature_std']:.4g}"] in [line[:4] for line in lines]
        for matrix in content["matrices"].values():
            row = matrix["values"][matrix["encoders"].index(name)]
            assert [name, *(f"{value:.4g}" for value in row)] in lines
    assert "median angle between features (degrees)" in result.stdout
    ratios = [content["false_negatives"][key][0] for key in ("local", "fused", "remote")]
    assert ["0", *(f"{100 * ratio:.2f}%" for ratio in ratios)] in lines
    assert f"file: {directory / FILE}" in result.stdout


def test_json_is_the_file_and_a_note_is_a_line(cli: Cli, finished: Finished):
    directory, _ = finished["flesd"]
    result = cli("diagnose", directory, "--json", "--round", "1")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == json.loads((directory / FILE).read_text())
    assert json.loads(result.stdout)["round"] == 1
    (note,) = [line for line in cli("diagnose", directory).stdout.splitlines() if line.startswith("note:")]
    assert "holds no clients' models to compare" in note


def test_a_large_matrix_is_summed_up(capsys: pytest.CaptureFixture[str]):
    names = [f"client-{i}" for i in range(13)]
    values = [[float(i != j) * (i + j) for j in range(13)] for i in range(13)]
    matrix = {"title": "distance", "unit": "", "encoders": names, "clients": list(range(13)), "values": values}
    empty = {"round": 1, "samples": 2, "split": "test", "encoders": {}, "false_negatives": None, "notes": []}
    print_diagnosis(empty | {"matrices": {"distance": matrix}})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["13", "encoders", "1", "12", "23"] in lines  # 0 + 1, the mean of i + j over pairs, 11 + 12
    assert not any(name in line for name in names for line in lines)
