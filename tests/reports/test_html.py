"""The report on tiny runs: what is in it, that it is one file, and that it is the same each time."""

import json
import re
import shutil
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from urllib.parse import unquote

import pytest
from matplotlib.figure import Figure

from rayfed_ssl.engine.phase_timer import phases_text
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.formats import percent
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.html import write_report
from rayfed_ssl.reports.html.comparison import labeled_groups
from rayfed_ssl.reports.html.record_plots import accuracy_plots
from rayfed_ssl.reports.html.sources import open_sources
from rayfed_ssl.reports.seed_groups import differences
from rayfed_ssl.reports.style import figure_bytes
from rayfed_ssl.reports.summary import summarize


class Parsed(HTMLParser):
    """What a page holds: its tags with attributes, its words, its headings."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.cdata_elem is None:  # neither a script nor a style
            self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def single(sweep, tmp_path_factory):
    out = tmp_path_factory.mktemp("single") / "report.html"
    return write_report([sweep / "flesd-0"], out)


@pytest.fixture(scope="module")
def several(sweep, tmp_path_factory):
    return write_report([sweep / "flesd-0", sweep / "flesd-1"], tmp_path_factory.mktemp("several") / "all.html")


@pytest.fixture
def blank_figures(monkeypatch):
    """Write one empty picture for every figure: a test of words needs no others."""
    picture = figure_bytes(Figure(), "svg")
    monkeypatch.setattr("rayfed_ssl.reports.html.figure.figure_bytes", lambda figure, kind: picture)


def parsed(path: Path) -> Parsed:
    return Parsed(path.read_text())


def copied(sweep: Path, tmp_path: Path, name: str = "flesd-0", to: str = "copy") -> Path:
    return Path(shutil.copytree(sweep / name, tmp_path / to))


def test_the_page_needs_nothing_but_itself(single):
    page = parsed(single)
    for tag, attributes in page.tags:
        for key in ("src", "href", "xlink:href", "action", "srcset"):
            address = attributes.get(key)
            if address and not address.startswith(("#", "data:")):
                assert tag == "a", (tag, address)
                assert (single.parent / unquote(address)).is_file(), address
    assert not re.search(r"@import|url\((?!#)", single.read_text())
    (policy,) = [a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert single.stat().st_size < 1_500_000


def test_every_figure_has_a_caption_an_alternative_and_its_files(single):
    page = parsed(single)
    figures = page.all("figure")
    assert len(figures) == len(page.all("figcaption")) >= 8
    alternatives = [attributes for attributes in page.all("svg") if attributes.get("role") == "img"]
    assert len(alternatives) == len(figures)
    assert all(len(attributes["aria-label"]) > 20 for attributes in alternatives)
    files = sorted(path.name for path in (single.parent / "report-figures").iterdir())
    assert [name for name in files if name.endswith(".svg")] == [
        name.replace(".png", ".svg") for name in files if name.endswith(".png")
    ]
    assert len(files) == 2 * len(figures)
    assert all(path.stat().st_size > 1000 for path in (single.parent / "report-figures").iterdir())


def test_every_caption_names_the_command_and_the_run(single, sweep):
    digest = summarize(RunRecord.open(sweep / "flesd-0")).state_sha256
    origin = f"rayfed-ssl report {sweep / 'flesd-0'} · run flesd-0 (seed 0, round 2, state {digest[:12]})"
    assert parsed(single).text.count(origin) == len(parsed(single).all("figure"))


def test_scores_break_even_configuration_and_digest_are_those_of_the_record(single, sweep):
    summary, text = summarize(RunRecord.open(sweep / "flesd-0")), parsed(single).text
    scores = summary.scores["global"]
    assert f"linear probe, last epoch {percent(scores['linear'])}" in text
    assert f"best epoch, chosen on the test set: {percent(scores['linear_best'])}" in text
    assert f"kNN, round 2 {percent(scores['knn'])}" in text
    assert "2 rounds x 45 public samples x 24 dimensions = 2,160 numbers" in text
    assert "training.optimizer.lr" in text
    assert str(summary.state_sha256) in text
    assert "FLESD's queue holds 16 anchors instead of 32" in text


@pytest.mark.parametrize("report", ["single", "several"])
def test_headings_skip_no_level_and_addresses_are_unique(report, request):
    tags = parsed(request.getfixturevalue(report)).tags
    levels = [int(tag[1]) for tag, _ in tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    addresses = [attributes["id"] for _, attributes in tags if attributes.get("id")]
    assert len(addresses) == len(set(addresses)) > 20


def test_the_same_run_gives_the_same_bytes(sweep, single, tmp_path):
    again = write_report([sweep / "flesd-0"], tmp_path / "report.html")
    assert again.read_bytes() == single.read_bytes()
    for path in (single.parent / "report-figures").iterdir():
        assert (tmp_path / "report-figures" / path.name).read_bytes() == path.read_bytes(), path.name


def test_runs_that_differ_in_seed_alone_are_one_row_with_mean_spread_and_number(several, sweep):
    values = [summarize(RunRecord.open(sweep / f"flesd-{seed}")).scores["global"]["linear"] for seed in (0, 1)]
    score = f"{100 * fmean(values):.2f} ± {100 * stdev(values):.2f}% (n = 2)"
    text = parsed(several).text
    assert f"flesd 2 2 × 1 {score}" in text[text.index("Final scores and costs") :]


def test_a_sweep_is_its_runs_grouped_by_setting(sweep):
    groups = labeled_groups(open_sources([sweep]).runs)
    names = {group.label: [run.directory.name for run in group.runs] for group in groups}
    assert names == {"flesd": ["flesd-0", "flesd-1"], "local-0": ["local-0"]}
    keys = differences(groups, "")
    assert keys["method.name"] == ["flesd", "local"]
    assert "seed" not in keys


def edit_manifest(run, edit):
    manifest = json.loads((run / "run.json").read_text())
    edit(manifest)
    (run / "run.json").write_text(json.dumps(manifest))


def test_a_hostile_name_stays_text(sweep, tmp_path):
    name = '<img src=x onerror=alert(1)>"&$\\frac{'
    run = copied(sweep, tmp_path, to=name)
    edit_manifest(run, lambda manifest: manifest["notes"].append("</script><script>alert(2)</script>"))
    page = parsed(write_report([run], tmp_path / "a b<c>.html"))
    assert name in page.text
    assert "</script><script>alert(2)</script>" in page.text
    assert len(page.all("script")) == 1
    assert page.all("img") == []
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)


@pytest.mark.usefixtures("blank_figures")
def test_without_the_data_the_report_says_so_and_shows_the_rest(sweep, tmp_path):
    run = copied(sweep, tmp_path)
    edit_manifest(run, lambda manifest: manifest["data"].update(fingerprint="0" * 64))
    out = write_report([run], tmp_path / "report.html")
    text = parsed(out).text
    assert text.count("This needs the run's data, which cannot be read here: the data of digits changed") == 2
    drawn = {path.stem.removeprefix("copy-") for path in (tmp_path / "report-figures").glob("*.svg")}
    assert drawn == {"accuracy-over-rounds", "accuracy-over-bytes", "accuracy-over-time", "losses", "ledger", "timing"}
    assert re.search(r"Samples by client, from the run's record: client 0: \d+, client 1", text)
    assert f"Skew: {RunRecord.open(run).manifest.data.skew.text}." in text
    assert f"took {phases_text(RunRecord.open(run).manifest.seconds)} (seconds)." in text


def test_the_data_are_described(single, sweep):
    text = parsed(single).text
    data = RunRecord.open(sweep / "flesd-0").manifest.data
    facts = text[text.index("Dataset key value") :]
    assert f"classes 10: {', '.join(data.classes)}" in facts
    assert f"train {data.train} test {data.test} public {data.public}" in facts
    assert data.fingerprint in facts
    assert f"is hollow. Skew: {data.skew.text}." in text


def test_a_place_that_takes_no_files_is_refused_before_anything_is_drawn(sweep, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/report-figures cannot be made \(Not a directory\): name another file"):
        write_report([sweep / "flesd-0"], tmp_path / "file" / "report.html")


def test_the_random_start_is_a_line_in_the_curves_of_accuracy(sweep):
    groups = labeled_groups(open_sources([sweep]).runs)
    starts = [run.start("knn") for run in groups[0].runs]
    figure = accuracy_plots(groups[:1])[0].figure
    (line,) = [line for line in figure.axes[0].lines if line.get_label() == "random start"]
    assert list(line.get_ydata()) == pytest.approx([100 * fmean(starts)] * 2, abs=1e-4)


@pytest.mark.usefixtures("blank_figures")
def test_an_unfinished_run_is_reported_as_such(sweep, tmp_path):
    run = copied(sweep, tmp_path)
    record = RunRecord.open(run)
    record.truncate(1, ())
    (run / "checkpoints" / "round-000002.json").unlink()
    out = write_report([run], tmp_path / "report.html")
    assert "This run is unfinished: 1 of 2 rounds are on record." in parsed(out).text
    record.truncate(0, ())
    text = parsed(write_report([run], out)).text
    assert "0 of 2 rounds are on record" in text
    assert "No accuracy is on record yet" in text


def test_an_unknown_suffix_is_refused(sweep, tmp_path):
    with pytest.raises(ConfigError, match=r"name a file that ends in \.html"):
        write_report([sweep / "flesd-0"], tmp_path / "report.txt")
    assert list(tmp_path.iterdir()) == []


def notices(path):
    return re.findall(r'<p class="(notice|verdict)">(.*?)</p>', path.read_text())


@pytest.mark.usefixtures("blank_figures")
def test_a_run_below_its_start_opens_with_a_box_and_one_above_with_a_sentence(sweep, tmp_path):
    run = copied(sweep, tmp_path)
    edit_manifest(run, lambda manifest: manifest["starts"]["cnn"].update(knn=1.0, linear=1.0))
    (first, *_) = notices(write_report([run], tmp_path / "below.html"))
    assert first[0] == "notice"
    assert re.match(
        r"Warning: After 3 steps of a client this run is below its random start by .* Train longer", first[1]
    )
    (first, *_) = notices(write_report([run, sweep / "local-0"], tmp_path / "both.html"))
    assert re.match(r"Warning: [12] of 2 runs are below their start in kNN and linear: copy", first[1])
    edit_manifest(run, lambda manifest: manifest["starts"]["cnn"].update(knn=0.0, linear=0.0))
    (first, *_) = notices(write_report([run], tmp_path / "above.html"))
    assert first[0] == "verdict"
    assert first[1].startswith("After 3 steps of a client this run is above its random start by ")
