"""The page in headless Chromium, from file://, without a network."""

import re
import shutil

import pytest
from golden_results import Run, four_models, perplexity_run, scores

from patheval.leaderboard import board as boards
from patheval.leaderboard.board import Board
from patheval.leaderboard.page import page_data, write_page
from patheval.leaderboard.plots import COLORS
from patheval.leaderboard.schema import Row
from patheval.leaderboard.tables import format_value

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
EVIL = "</script><script>document.title='broken'</script>"


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    four_models(folder)
    stand_in = {"path_phonebook_offline_1k": scores(10, 20)}
    Run("rope", stand_in, time="2026-05-03T10-00-00.1").write(folder)
    Run(EVIL, {"path_phonebook_1k": scores(5, 96)}, config={"num_prompts_truncated": 1}).write(
        folder
    )
    Run("path", {"path_ruler_vt_16k": [1.0]}, limit=1, originals={"path_ruler_vt_16k": 500},
        time="2026-05-04T10-00-00.1").write(folder)  # fmt: skip
    return boards.build([folder], name="Test & board", baseline="rope")


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("needs chromium (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, tmp_path):
    pages, written = [], []

    def load(board, **context):
        if (board.name, len(board.rows)) not in written:
            write_page(board, tmp_path / "index.html")
            written.append((board.name, len(board.rows)))
        page = browser.new_page(**context)
        page.faults = []
        page.on("console", lambda message: page.faults.append(message.text))
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on(
            "request",
            lambda request: (
                page.faults.append(request.url)
                if not request.url.startswith(("file:", "data:"))
                else None
            ),
        )
        page.goto((tmp_path / "index.html").as_uri())
        page.wait_for_selector("html[data-ready]")
        pages.append(page)
        return page

    yield load
    for page in pages:
        assert page.faults == []
        page.close()


def names(page):
    # Rows are rendered when a frame shows them; until then they have no inner text.
    return [text.strip() for text in page.locator("#board tbody th").all_text_contents()]


def test_the_page_asks_no_network_for_anything(board, tmp_path):
    write_page(board, tmp_path / "index.html")
    text = (tmp_path / "index.html").read_text()
    assert not re.search(r"""(src|href)=["']?(https?:)?//|url\(|@import|fetch\(|import\(""", text)
    assert "%%" not in text


def test_numbers_are_those_of_the_board(board, open_page):
    page = open_page(board)
    assert page.title() == "Test & board"
    assert page.locator("h1").inner_text() == "Test & board"
    page.check("#tasks")
    data = page_data(board)
    drawn = page.locator("#board tbody td[data-cell]")
    values = sum(cell is not None for line in data["cells"] for cell in line)
    assert drawn.count() == values
    for i, model in enumerate(board.models):
        for j, column in enumerate(board.columns[:8]):
            cell = board.cell(model, column)
            if cell and column.unit == "share":
                text = page.locator(f'td[data-cell="{i},{j}"]').text_content()
                assert text.startswith(format_value(cell.estimate.value, "share"))


def test_names_are_text_and_nothing_else(board, open_page):
    page = open_page(board)
    assert any(EVIL in name for name in names(page))


def test_sorting_by_a_column_and_back(board, open_page):
    page = open_page(board)
    button = page.locator("#board thead button", has_text="512").first
    button.click()
    assert names(page)[0] == "path-fox"
    header = page.locator("#board th[aria-sort=descending]")
    assert "512" in header.inner_text()
    page.locator("#board th[aria-sort=descending] button").click()
    assert names(page)[0].startswith("rope")
    assert page.locator("#board th[aria-sort=ascending]").count() == 1
    # Models without a value stay at the end, whichever way.
    assert EVIL in names(page)[-1]
    page.locator("#board thead button", has_text="models").click()
    assert names(page)[0].startswith("rope")


def test_filters_of_models_columns_and_benchmarks(board, open_page):
    page = open_page(board)
    page.fill("#filter", "FOX")
    assert names(page) == ["fox", "path-fox"]
    page.fill("#filter", "")
    page.fill("#column-filter", "PhoneBook 2k")
    assert page.locator("#board thead tr:last-child th").count() == 2
    page.fill("#column-filter", "")
    page.uncheck('#groups input[value="RULER"]')
    groups = page.locator("#board thead tr:first-child th").all_inner_texts()
    assert "RULER" not in groups
    assert page.locator("#sweep-plots figure").count() == 1


def test_best_second_noise_and_marks(board, open_page):
    page = open_page(board)
    columns = [c.name for c in board.columns]
    j = columns.index("PhoneBook 1k")
    best = page.locator(f'td[data-cell="{board.models.index("path-fox")},{j}"]')
    assert "best" in best.get_attribute("class")
    cut = page.locator(f'td[data-cell="{board.models.index(EVIL)},{j}"]')
    assert "uncompared" in cut.get_attribute("class")
    assert cut.locator("sup").count() == 1
    assert "truncated" in page.locator("#legend").inner_text()
    page.select_option("#view", "delta")
    noisy = [t for t in page.locator("#board td.noise").all_text_contents() if t.endswith(" n")]
    expected = sum(c.difference is not None and c.difference.is_noise for c in board.cells.values())
    assert len(noisy) <= expected
    # Waits, since the table is drawn anew.
    best.filter(has_text=re.compile(r"^\+")).wait_for()
    page.select_option("#view", "interval")
    best.filter(has_text=" \u2013 ").wait_for()


def test_details_by_keyboard_and_their_provenance(board, open_page):
    page = open_page(board)
    j = [c.name for c in board.columns].index("PhoneBook 512")
    cell = page.locator(f'td[data-cell="{board.models.index("fox")},{j}"]')
    first = page.locator("#board td[tabindex='0']")
    assert first.count() == 1
    first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.cellIndex") > 5
    cell.focus()
    page.keyboard.press("Enter")
    text = page.locator("dialog[open]").inner_text()
    for part in (
        "fox: PhoneBook 512",
        "lm_eval --model path --model_args pretrained=fox",
        "abc1234",
        "vllm 0.32.0",
        "data hash",
        "900 to 902",
        "mcnemar",
        "right",
        "answer",
    ):
        assert part in text
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    assert page.evaluate("document.activeElement.dataset.cell") == cell.get_attribute("data-cell")


def test_dark_and_light(board, open_page):
    background = "getComputedStyle(document.body).backgroundColor"
    page = open_page(board, color_scheme="light")
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    page.click("#theme")
    assert page.evaluate(background) == "rgb(21, 24, 28)"
    page.click("#theme")
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    dark = open_page(board, color_scheme="dark")
    assert dark.evaluate(background) == "rgb(21, 24, 28)"


def test_text_contrast_meets_wcag_in_both_themes(board, open_page):
    """4.5 to 1 for text on every background that it stands on."""
    script = """() => {
      const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
      const light = (css) => {
        const [r, g, b] = css.match(/[0-9.]+/g).map(Number);
        return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
      };
      const back = (e) => {
        for (; e; e = e.parentElement) {
          const own = getComputedStyle(e).backgroundColor;
          if (own !== "rgba(0, 0, 0, 0)") return own;
        }
        return "rgb(255, 255, 255)";
      };
      return [...document.querySelectorAll("p, th, td, small, sup, label, h1, h2, li, figcaption")]
        .filter((e) => e.textContent.trim() && e.offsetParent).map((e) => {
          const [a, b] = [light(getComputedStyle(e).color), light(back(e))].sort((x, y) => y - x);
          return [(a + 0.05) / (b + 0.05), e.tagName, e.className, e.textContent.slice(0, 30)];
        }).filter(([ratio]) => ratio < 4.5);
    }"""
    for scheme in ("light", "dark"):
        assert open_page(board, color_scheme=scheme).evaluate(script) == []


def test_plots_and_heat_map(board, open_page):
    page = open_page(board)
    assert page.locator("#sweep-plots figure").count() == 2
    label = page.locator("#sweep-plots svg[role=img]").first.get_attribute("aria-label")
    assert "rope, 512: " in label
    assert page.locator("#sweep-plots line.train title").first.text_content().endswith("2k")
    assert page.locator("#sweep-plots polygon").count() >= 8
    page.locator('#board input[data-draw="0"]').uncheck()
    label = page.locator("#sweep-plots svg[role=img]").first.get_attribute("aria-label")
    assert "rope, 512: " not in label
    heat = next(h for h in page_data(board)["heat"] if h["subtask"] == "vt")
    page.select_option("#heat-task", label="RULER vt")
    page.select_option("#heat-model", label="path")
    score, n = heat["models"][str(board.models.index("path"))]["512"][0]
    text = page.locator("#heat-map td").first.inner_text()
    assert text == f"{round(100 * score)} n={n}"


def line_colors(page):
    """Colours of the first plot's lines by model, as its key says them."""
    keys = page.locator("#sweep-plots .legend-line")
    return dict(
        zip(
            keys.all_inner_texts(),
            keys.locator("line").evaluate_all("own => own.map((e) => e.getAttribute('stroke'))"),
            strict=True,
        )
    )


def test_a_model_keeps_its_colour_whatever_else_is_drawn(board, open_page):
    page = open_page(board)
    before = line_colors(page)
    assert before == dict(zip(board.models, COLORS, strict=False))
    page.locator('#board input[data-draw="0"]').uncheck()
    del before[board.models[0]]
    assert line_colors(page) == before
    drawn = page.locator("#sweep-plots figure").first.locator("polyline")
    strokes = drawn.evaluate_all("own => own.map((e) => e.getAttribute('stroke'))")
    assert set(strokes) <= set(before.values())


def test_lines_of_more_models_than_styles_stay_apart(browser, tmp_path):
    rows = [
        Row(model=f"m{i:02d}", benchmark="phonebook", length=length, task=f"t{length}",
            metric="em", unit="share", value=0.5, n=10)
        for i in range(40)
        for length in (1024, 2048)
    ]  # fmt: skip
    write_page(Board("many", "", rows), tmp_path / "index.html")
    page = browser.new_page()
    page.goto((tmp_path / "index.html").as_uri())
    page.wait_for_selector("html[data-ready]")
    for i in range(1, 8):
        page.locator(f'#board input[data-draw="{i}"]').uncheck()
    for i in (8, 32, 33):
        page.locator(f'#board input[data-draw="{i}"]').check()
    styles = page.locator("#sweep-plots .legend-line line").evaluate_all(
        "own => own.map((e) => e.getAttribute('stroke') + e.getAttribute('stroke-dasharray'))"
    )
    assert len(set(styles)) == len(styles) == 4
    page.close()


def test_the_legend_says_what_columns_mean_and_how_many_samples(board, open_page):
    page = open_page(board)
    legend = page.locator("#legend").inner_text()
    for title in ("mean", "wAvg(inc)", "wAvg(dec)", "effective length"):
        assert f"\n{title}: " in legend
    assert "(4/13): the mean of 4 of RULER's 13 tasks" in legend
    assert "(2/8)" not in legend
    assert "Samples behind each value of a task: " in legend
    page.check("#tasks")
    page.locator("#legend", has_text="retrieval (2/8): the mean of 2").wait_for()


def test_no_length_is_called_none(tmp_path, open_page):
    for model, values in {"a": scores(5, 9), "b": scores(0, 9)}.items():
        tasks = {f"path_phonebook_{length}": values for length in ("1k", "2k")}
        Run(model, tasks).write(tmp_path / "runs")
    board = boards.build([tmp_path / "runs"], name="none")
    j = [c.title for c in board.columns].index("effective length")
    page = open_page(board)
    texts = [page.locator(f'td[data-cell="{i},{j}"]').text_content() for i in range(2)]
    assert texts == ["2k", "none"]


def test_perplexity_by_position_is_drawn_and_clipped(open_page, tmp_path):
    ends = (512, 1024, 2048, 4096)
    flat = {end: [3.0, 2.9, 3.1] for end in ends}
    for model in ("path", "fox", "path-fox"):
        perplexity_run(model, flat, "4k").write(tmp_path / "runs")
    exploding = {end: [3.0 if end <= 2048 else 9.0] * 3 for end in ends}
    perplexity_run("rope", exploding, "4k").write(tmp_path / "runs")
    board = boards.build([tmp_path / "runs"], name="ppl", baseline="rope", train_length=2048)
    page = open_page(board)
    (title,) = page.locator("#sweep-plots figcaption").all_inner_texts()
    assert title == "Perplexity pg19 by position, texts of 4k (lower is better)"
    assert page.locator("#sweep-plots circle").count() == 15
    (arrow,) = page.locator("#sweep-plots text title").all_text_contents()
    assert arrow.startswith("rope, 4k: 8103.1")
    assert page.locator("#sweep-plots line.train").count() == 1


def test_heat_map_counts_every_prompt_at_its_true_depth(board):
    heat = next(h for h in page_data(board)["heat"] if h["subtask"] == "niah_single_1")
    fields = heat["models"]["0"]["1k"]
    assert sum(n for _, n in fields) == 100
    depths = [(10 + (i * 37) % 880) / (900 + i % 3) for i in range(100)]
    assert [n for _, n in fields] == [
        sum(d / 10 <= x < (d + 1) / 10 for x in depths) for d in range(10)
    ]


def test_refused_values_are_listed(board, open_page):
    page = open_page(board)
    assert "1 of 500 samples were run" in page.locator("#hidden").inner_text()


def test_every_control_has_a_name(board, open_page):
    page = open_page(board)
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("input, select, button")].filter((e) =>
          !(e.labels && e.labels.length) && !e.ariaLabel && !e.textContent.trim()).length"""
    )
    assert unnamed == 0


def test_print_shows_the_whole_table_without_controls(board, open_page, tmp_path):
    page = open_page(board)
    page.check("#tasks")
    drawn = page.locator("#board tbody td[data-cell]").count()
    page.emulate_media(media="print")
    assert not page.locator("#controls").is_visible()
    assert not page.locator("#frame").is_visible()
    tables = page.locator("#print table")
    tables.first.wait_for(state="visible")  # It is drawn at the next frame.
    assert page.locator("#print tbody td:not(:empty)").count() == drawn
    # What does not fit on a sheet is lost: no table is wider than landscape A4.
    widths = page.evaluate(
        "[...document.querySelectorAll('#print table')].map((t) => t.getBoundingClientRect().width)"
    )
    assert max(widths) < 1040
    page.pdf(path=tmp_path / "page.pdf", landscape=True)
    assert (tmp_path / "page.pdf").stat().st_size > 10_000


def test_the_parts_of_an_average_are_a_click_away(board, open_page):
    page = open_page(board)
    page.locator("#board tbody tr").first.locator("td[data-cell]").first.click()
    assert page.locator("#details-title").inner_text() == "rope: RULER 512 (4/13)"
    parts = page.locator("#details-body button")
    assert parts.count() == 4
    assert parts.nth(2).inner_text().startswith("path_ruler_vt_512: ")
    parts.nth(2).click()
    assert page.locator("#details-title").inner_text() == "rope: RULER vt 512"
    body = page.locator("#details-body").inner_text()
    for part in ("data hash", "weights (SHA-256)", "lm_eval --model path", "Examples", "right"):
        assert part in body


def test_on_a_phone_values_are_seen_beside_the_names(board, open_page):
    page = open_page(board, viewport={"width": 390, "height": 844})
    name, value = (page.locator(f"#board tbody tr:first-child {x}").first for x in ("th", "td"))
    assert name.bounding_box()["width"] < 160
    assert value.bounding_box()["x"] + value.bounding_box()["width"] < 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    value.click()
    assert page.locator("#details").is_visible()


def large_board():
    rows = [
        Row(
            model=f"model-{i:03d}",
            benchmark="other",
            subtask=f"task {j:03d}",
            task=f"task_{j:03d}",
            metric="acc",
            unit="share",
            value=((i * 7 + j * 13) % 100) / 100,
            stderr=0.02,
            ci_low=0.0,
            ci_high=1.0,
            n=100,
            file=f"runs/{i}/results.json",
            model_args="{}",
        )
        for i in range(200)
        for j in range(100)
    ]
    return Board("large", "model-000", rows)


def busy_ms(page, session):
    """Main-thread time so far, not counting the time that other programs had the processor."""
    page.evaluate("new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))")
    metrics = session.send("Performance.getMetrics")["metrics"]
    return 1000 * next(m["value"] for m in metrics if m["name"] == "TaskDuration")


def test_two_hundred_models_by_a_hundred_columns_in_a_second(browser, tmp_path):
    write_page(large_board(), tmp_path / "index.html")
    page = browser.new_page()
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = busy_ms(page, session)
    page.goto((tmp_path / "index.html").as_uri())
    page.wait_for_selector("html[data-ready]")
    loaded = busy_ms(page, session)
    assert page.locator("#board td[data-cell]").count() == 20_000
    assert loaded - before < 1000
    before = busy_ms(page, session)
    page.locator("#board thead button").first.click()
    assert busy_ms(page, session) - before < 1000
    before = busy_ms(page, session)
    page.fill("#filter", "model-1")
    assert busy_ms(page, session) - before < 1000
    page.close()
