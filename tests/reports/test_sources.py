"""What a report is about: runs, sweeps and reproductions with their runs, and what is left out."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.reports.html import sources as html_sources
from rayfed_ssl.reports.html import write_report
from rayfed_ssl.reports.html.comparison import labeled_groups
from tests.reports.fabricated import DIAGNOSTICS, RESULTS, study_in, with_runs
from tune.studies.results.reported import read_study

open_sources = partial(html_sources.open_sources, read_table=read_study)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("metrics.parquet", "nothing", "restore it from a copy"),
        ("results.json", RESULTS | {"trials": [{"number": 0}]}, r"trials\.0\.label is missing"),
        ("results.json", "{", r"EOF while parsing .*\): make it anew$"),
        ("diagnostics.json", DIAGNOSTICS | {"matrices": {"cka": {}}}, r"matrices\.cka\.title is missing"),
    ],
)
def test_a_damaged_file_is_one_line_if_named_and_else_left_out(sweep, tmp_path, file, content, message):
    good, bad = (Path(shutil.copytree(sweep / "local-0", tmp_path / "sweep" / name)) for name in ("good", "bad"))
    if file == "results.json":
        (bad / "run.json").unlink()
        (bad / "study.json").write_text("{}")
    (bad / file).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ConfigError, match=rf"{file} is damaged \(.*{message}") as caught:
        open_sources([bad])
    assert "\n" not in str(caught.value)
    sources = open_sources([good.parent])
    assert ([run.name for run in sources.runs], sources.tables) == (["good"], [])
    assert sources.left_out == [str(caught.value)]


def test_a_sweep_that_is_the_current_directory_is_not_its_runs_by_name(sweep, tmp_path, monkeypatch):
    for name in ("good", "bad"):
        shutil.copytree(sweep / "local-0", tmp_path / name)
    (tmp_path / "bad" / "metrics.parquet").write_bytes(b"nothing")
    monkeypatch.chdir(tmp_path)
    sources = open_sources([Path(".")])
    assert ([run.name for run in sources.runs], len(sources.left_out)) == (["good"], 1)


def test_a_directory_without_runs_is_refused(tmp_path):
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match="holds no run and no study"):
            open_sources([directory])


def test_a_sweep_brings_its_runs_named_for_their_points(sweep, tmp_path):
    folder = with_runs(study_in(tmp_path / "mine"), sweep)
    sources = open_sources([folder])
    labels = ["system=FLESD", "system=Local"]
    assert [(run.name, run.label) for run in sources.runs] == list(zip(["flesd-0", "local-0"], labels, strict=True))
    assert [group.label for group in labeled_groups(sources.runs)] == labels
    assert open_sources([tmp_path]).tables[0].directory == folder


def test_a_run_of_several_trials_is_named_for_all_of_them(sweep, tmp_path):
    trials = [RESULTS["trials"][0], RESULTS["trials"][0] | {"number": 1, "label": "FLESD, best"}]
    folder = with_runs(study_in(tmp_path / "table", RESULTS | {"kind": "reproduction", "trials": trials}), sweep)
    assert [run.label for run in open_sources([folder]).runs] == ["system=FLESD; FLESD, best", ""]
    assert [run.label for run in open_sources([folder / "runs" / "flesd-0"]).runs] == [""]


def test_a_table_whose_runs_are_gone_is_shown_without_them(tmp_path):
    folder, seen = study_in(tmp_path / "mine"), []
    page = write_report([folder], tmp_path / "report.html", on_opened=seen.append, read_table=read_study).read_text()
    parts = ["A sweep by rayfed-ssl, without its runs.", "Sweep: A &lt;sweep&gt;", 'id="sweep-1"', "75.00 ± 1.00"]
    assert [part for part in (*parts, "data:image/svg+xml;base64,") if part not in page] == []
    assert seen[0].left_out == [
        f"2 of 2 runs of {folder}, which are missing (such as runs/flesd-0): its table is shown without them"
    ]


def test_a_sweep_without_results_shows_its_runs_and_says_so(sweep, tmp_path):
    folder = with_runs(study_in(tmp_path / "mine"), sweep)
    (folder / "results.json").unlink()
    sources = open_sources([folder])
    assert (len(sources.runs), sources.tables) == (2, [])
    assert sources.left_out == [f"the table of {folder}: it is written at the end"]
    shutil.rmtree(folder / "runs")
    with pytest.raises(ConfigError, match="is a study of which no run has begun: see `rayfed-ssl sweep --status"):
        open_sources([folder])
