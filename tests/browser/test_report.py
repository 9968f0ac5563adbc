"""The report in headless Chromium: opens in silence, sorts, fits a phone, follows the color scheme, is accessible."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

import pytest
from PIL import Image

pytestmark = pytest.mark.slow

PHONE = {"width": 360, "height": 800}
DESK = {"width": 1280, "height": 900}


@contextmanager
def opened(chromium, report, *, size=DESK, scheme="light", script=True) -> Iterator:
    """Open the report; whatever the page complains of or asks the network for is kept in lists."""
    context = chromium.new_context(viewport=size, color_scheme=scheme, java_script_enabled=script)
    page = context.new_page()
    page.complaints, page.requests = [], []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda request: page.requests.append(request.url))
    page.goto(report.as_uri())
    yield page
    context.close()


def column(page, caption, index):
    """Read a column of the table with this caption."""
    rows = page.locator("table", has=page.locator("caption", has_text=caption)).first.locator("tbody tr")
    return [row.locator("th, td").nth(index).inner_text().split("\n")[0] for row in rows.all()]


def test_it_opens_without_complaints_and_asks_for_nothing(chromium, report):
    with opened(chromium, report) as page:
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert page.complaints == []
        assert [url for url in page.requests if not url.startswith("data:")] == [report.as_uri()]
        assert page.title() == "table – rayfed-ssl report"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_every_figure_can_be_seen(chromium, report, size, scheme):
    with opened(chromium, report, size=size, scheme=scheme) as page:
        drawn = page.locator("figure svg[role=img], figure img.paper")
        assert drawn.count() == page.locator("figure").count() > 15
        for figure in drawn.all():
            box = figure.bounding_box()
            name = figure.get_attribute("aria-label") or figure.get_attribute("alt")
            assert box["width"] > 200, name
            assert box["height"] > 60, name


@pytest.mark.parametrize(("size", "rows"), [(DESK, 2), (PHONE, 5)], ids=["desk", "phone"])
def test_parts_of_one_figure_stand_beside_each_other_where_there_is_room(chromium, report, size, rows):
    with opened(chromium, report, size=size) as page:
        parts = [page.locator(f"#run-1-{key}") for key in ("partition", "losses", "features", "communication", "time")]
        tops = [part.bounding_box()["y"] for part in parts]
        assert len(set(tops)) == rows
        assert page.locator("#run-1-accuracy").bounding_box()["y"] < min(tops)


def test_a_phone_scrolls_down_and_not_sideways(chromium, report):
    with opened(chromium, report, size=PHONE) as page:
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        wide = page.locator(".scroll").evaluate_all("boxes => boxes.filter(b => b.scrollWidth > b.clientWidth).length")
        assert wide > 0  # tables that do not fit scroll within their box
        assert page.locator(".overflows").count() == wide  # and say so


def test_no_row_is_tall_no_key_breaks_and_captions_stand_below(chromium, report):
    with opened(chromium, report, size=PHONE) as page:
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        heights = page.locator("tbody tr").evaluate_all("rows => rows.map(row => row.offsetHeight)")
        assert max(heights) < 240  # ten lines: what is long wraps instead of being scrolled to
        keys = page.locator("tbody th", has_text="evaluation.linear.weight_decay")
        assert keys.count() == 2
        assert all(key.evaluate("e => e.offsetHeight") < 40 for key in keys.all())  # one line
        facts = page.locator(".scroll", has=page.locator("caption", has_text="Dataset"))
        assert facts.evaluate_all("boxes => boxes.map(box => box.scrollWidth - box.clientWidth)") == [0, 0]
    with opened(chromium, report) as page:
        for figure in page.locator("figure").all():
            plot, caption = figure.locator(".plot").bounding_box(), figure.locator("figcaption").bounding_box()
            assert caption["y"] >= plot["y"] + plot["height"]
            assert figure.locator(".plot > *").first.bounding_box()["width"] > 0.98 * plot["width"]


def test_tables_sort_by_click_and_by_key_both_ways(chromium, report):
    with opened(chromium, report) as page:
        table = page.locator("table", has=page.locator("caption", has_text="Ours, the paper")).first
        head = table.locator("thead th").first
        first, second = column(page, "Ours, the paper", 1)
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "ascending"
        head.locator("button").focus()
        page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == "descending"
        assert column(page, "Ours, the paper", 1) == [second, first]
        page.keyboard.press("Space")
        assert column(page, "Ours, the paper", 1) == [first, second]


def test_numbers_sort_as_numbers_and_one_column_at_a_time(chromium, report):
    with opened(chromium, report) as page:
        table = page.locator("table", has=page.locator("caption", has_text="Final scores and costs")).first
        heads = table.locator("thead th")
        names = [head.inner_text() for head in heads.all()]
        index = next(i for i, name in enumerate(names) if name.startswith("up, all"))
        for _ in range(2):
            heads.nth(index).locator("button").click()
        values = table.locator("tbody tr").evaluate_all(
            "(rows, i) => rows.map(r => Number(r.cells[i].dataset.v))", index
        )
        assert values == sorted(values, reverse=True)
        assert len(set(values)) == 2
        heads.first.locator("button").click()
        assert [head.get_attribute("aria-sort") for head in heads.all()].count(None) == heads.count() - 1


def test_tables_are_there_without_scripts(chromium, report):
    with opened(chromium, report, script=False) as page:
        assert page.locator("table.sortable").count() > 10
        assert page.locator("th button").count() == 0
        assert page.locator("thead th").first.inner_text() == "row"


def test_a_dark_screen_gets_dark_paper_and_light_ink_in_figures_too(chromium, report):
    ink = {}
    for scheme in ("light", "dark"):
        with opened(chromium, report, scheme=scheme) as page:
            ink[scheme] = [
                page.locator("body").evaluate("e => getComputedStyle(e).backgroundColor"),
                page.locator("figure svg text").first.evaluate("e => getComputedStyle(e).fill"),
                page.locator("figure svg path[style*='var(--blue)']").first.evaluate("e => getComputedStyle(e).stroke"),
            ]
    assert brightness(ink["light"][0]) > 0.9 > 0.3 > brightness(ink["light"][1])
    assert brightness(ink["dark"][0]) < 0.1 < 0.8 < brightness(ink["dark"][1])
    assert ink["light"][2] != ink["dark"][2]


def test_a_picture_of_a_study_is_dark_on_a_dark_screen(chromium, report):
    corner = {}
    for scheme in ("light", "dark"):
        with opened(chromium, report, scheme=scheme) as page:
            image = Image.open(BytesIO(page.locator("figure img.paper").first.screenshot())).convert("RGB")
            corner[scheme] = sum(image.getpixel((5, 5))) / 3 / 255
            card = brightness(page.locator("figure").first.evaluate("e => getComputedStyle(e).backgroundColor"))
            assert corner[scheme] == pytest.approx(card, abs=0.01)  # a rounding of the blend
    assert corner["dark"] < 0.2 < 0.9 < corner["light"]


def brightness(color):
    """Mean of red, green and blue in "rgb(1, 2, 3)", in [0, 1]."""
    values = [float(part) for part in color.removeprefix("rgb(").removesuffix(")").split(",")]
    return sum(values) / 3 / 255


def test_on_paper_it_is_dark_on_light_and_fits(chromium, report, tmp_path):
    with opened(chromium, report, scheme="dark") as page:
        page.emulate_media(media="print")
        assert brightness(page.locator("figure svg text").first.evaluate("e => getComputedStyle(e).fill")) < 0.3
        assert page.locator("nav").is_hidden()
        page.pdf(path=tmp_path / "report.pdf", format="A4")
        assert (tmp_path / "report.pdf").stat().st_size > 20_000


@pytest.mark.parametrize(("size", "scheme"), [(DESK, "dark"), (PHONE, "light")], ids=["desk-dark", "phone-light"])
def test_axe_finds_nothing(chromium, report, size, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    with opened(chromium, report, size=size, scheme=scheme) as page:
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        rules = axe.Axe().run(page).response
        assert [(rule["id"], rule["nodes"][0]["html"][:200]) for rule in rules["violations"]] == []
        assert {"color-contrast", "svg-img-alt", "heading-order"} <= {rule["id"] for rule in rules["passes"]}
