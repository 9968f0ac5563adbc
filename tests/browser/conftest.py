"""A report, and a Chromium to open it with; without one these tests are skipped."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayfed_ssl.analysis.diagnosis import diagnose
from rayfed_ssl.analysis.rescoring import append, measure_encoders
from rayfed_ssl.reports.html import write_report
from rayfed_ssl.runs import run
from tests.conftest import TinyConfig
from tests.reports.fabricated import RESULTS, study_in
from tune.studies.results.reported import read_study

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def report(tiny: TinyConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on two methods, one of them with diagnostics, and on a paper's table made of them."""
    folder = tmp_path_factory.mktemp("browser")
    table = folder / "table"
    run(tiny("flesd", "evaluation.every=1"), table / "cells" / "flesd")
    run(tiny("local", "evaluation.every=1"), table / "cells" / "local")
    diagnose(table / "cells" / "local").write(table / "cells" / "local")
    flesd = table / "cells" / "flesd"
    append(flesd, measure_encoders(flesd, ["linear-flesd"], ["epochs=2", "milestones=[1]"]))
    cells = [{"text": "40.00 [75.8; -35.8]", "mean": 40.0}, {"text": "41.00 [75.8; -34.8]", "mean": 41.0}]
    lines = [[{"text": name}, cell] for name, cell in zip(("flesd", "local"), cells, strict=True)]
    shown = {"title": "Ours, the paper's, and the difference (%)", "head": ["", "alpha 1"], "lines": lines}
    trials = [
        trial | {"runs": [f"cells/{name}"], "label": f"{name}, alpha 1"}
        for trial, name in zip(RESULTS["trials"], ("flesd", "local"), strict=True)
    ]
    study_in(table, RESULTS | {"kind": "reproduction", "title": "A table", "tables": [shown], "trials": trials})
    return write_report([table], folder / "report.html", read_table=read_study)


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    """A headless Chromium: that of $CHROMIUM, or the system's."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    executable = os.environ.get("CHROMIUM") or next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if executable is None:
        pytest.skip("no Chromium: install it (apt-get install chromium), or set CHROMIUM to its path")
    sandbox = [] if os.geteuid() else ["--no-sandbox"]  # Chromium's sandbox refuses to run as root
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=sandbox)
        yield browser
        browser.close()
