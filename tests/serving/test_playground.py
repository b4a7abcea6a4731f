"""The playground in a real browser: what is typed, streamed, coloured, stopped, compared, and what goes wrong."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from live_server import Live
from playground_server import KEY, MODEL, Double, serving
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
STORY = "Once upon a timeé <img src=x> end"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next((path for path in CHROMIUM if Path(path).exists()), None)
    if found is None:
        pytest.skip(f"no Chromium at any of {', '.join(CHROMIUM)}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[Double, str]]:
    double = Double()
    with serving(double.app) as address:
        yield double, address


@pytest.fixture
def double(site) -> Iterator[Double]:
    double, _ = site
    double.bodies.clear()
    double.left.clear()
    yield double
    double.key = None


@pytest.fixture
def page(browser: Browser, site, double: Double) -> Iterator[Page]:
    """The playground, freshly opened. Nothing may be blocked, missing or thrown in it."""
    page = browser.new_page()
    page.set_default_timeout(5000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda line: wrong.append(line.text) if "Content Security Policy" in line.text else None)
    page.on("request", lambda request: wrong.append(request.url) if not request.url.startswith(site[1]) else None)
    page.goto(f"{site[1]}/playground")
    yield page
    page.close()
    assert wrong == []


def ask(page: Page, prompt: str, state: str = "done") -> None:
    """Send a prompt and wait for the state in which the page ends up."""
    page.get_by_label("Prompt").fill(prompt)
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("status")).to_have_text(state)


def coloured(page: Page, column: int = 0) -> list[tuple[str, str]]:
    """Pieces of a text with the drafter that their titles name."""
    spans = page.locator(".written").nth(column).locator(".token")
    return spans.evaluate_all("all => all.map(one => [one.textContent, one.title])")


def test_files_have_types_tags_and_a_strict_policy(site):
    _, address = site
    for path, kind in {
        "": "text/html; charset=utf-8",
        "/playground.js": "text/javascript; charset=utf-8",
        "/playground.css": "text/css; charset=utf-8",
        "/icon.svg": "image/svg+xml",
    }.items():
        reply = httpx.get(f"{address}/playground{path}")
        assert (reply.status_code, reply.headers["content-type"]) == (200, kind)
        assert reply.headers["content-security-policy"].startswith("default-src 'self';")
        assert "unsafe" not in reply.headers["content-security-policy"]
        assert reply.headers["cache-control"] == "no-cache"
        again = httpx.get(reply.url, headers={"If-None-Match": reply.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert httpx.get(reply.url, headers={"If-None-Match": '"another"'}).content == reply.content


def test_a_prompt_streams_and_each_token_has_its_drafter(page: Page, double: Double):
    ask(page, "story")
    own, suffix, ngram = "the target's own", "drafted by suffix", "drafted by ngram"
    assert coloured(page) == [
        ["Once", own],
        [" upon", suffix],
        [" a", suffix],
        [" time", own],
        ["é <img src=x>", ngram],  # two tokens make one letter: what does not join has the first one's colour
        [" end", own],
    ]
    colours = page.locator(".written .token").evaluate_all(
        "all => all.map(one => getComputedStyle(one).backgroundColor)"
    )
    assert colours[0] == colours[3] == colours[5] == "rgba(0, 0, 0, 0)"
    assert colours[1] == colours[2] and len({colours[0], colours[1], colours[4]}) == 3
    assert page.locator("img").count() == 0
    assert double.bodies == [
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "story"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_drafts": True,
            "return_statistics": True,
            "temperature": 0,
            "max_tokens": 200,
        }
    ]


def test_figures_legend_and_the_servers_statistics(page: Page):
    ask(page, "story")
    assert page.locator("#tau").text_content() == "1.60"
    assert page.locator("#count").text_content() == "8 / 5"
    assert float(page.locator("#rate").text_content()) > 0
    assert page.locator("#wait").text_content().endswith("ms")
    legend = page.locator("#legend tbody tr").evaluate_all("all => all.map(row => row.innerText.split('\\t'))")
    assert legend == [["suffix", "2", "50 %"], ["ngram", "2", "67 %"], ["the target's own", "4", ""]]
    report = page.locator("#statistics tr").evaluate_all("all => all.map(row => row.innerText.split('\\t'))")
    assert ["drafts accepted", "4 of 7 (57 %)"] in report
    assert ["policy chose", "75 % suffix 4\n25 % none"] in report
    assert ["speed-up, est.", "1.40 ×"] in report
    assert ["prompt tokens", "9"] in report
    heights = page.locator(".bar").evaluate_all("all => all.map(bar => bar.offsetHeight / bar.parentNode.offsetHeight)")
    assert heights == [0.75, 0.5]
    assert page.get_by_role("img").get_attribute("aria-label") == "position 1: 75 %, position 2: 50 %"


def test_rejected_drafts_show_on_demand_where_they_were_dropped(page: Page):
    ask(page, "story")
    written = page.locator(".written")
    assert written.inner_text() == STORY
    page.get_by_label("rejected drafts").click()
    assert written.inner_text() == "Once upon a time midnighté <img src=x>↵ dreary end"
    assert page.locator("del").first.get_attribute("title").startswith("suffix guessed this 1 ahead")
    page.get_by_label("rejected drafts").click()
    assert written.inner_text() == STORY


def test_the_controls_reach_the_server(page: Page, double: Double):
    page.get_by_label("speculation", exact=True).click()
    page.get_by_text("text", exact=True).click()
    for label, value in {"temperature": "0.5", "max tokens": "7", "seed": "11"}.items():
        page.get_by_label(label).fill(value)
    ask(page, "story")
    body = double.bodies[0]
    assert (body["prompt"], body["temperature"], body["max_tokens"], body["seed"]) == ("story", 0.5, 7, 11)
    assert body["speculation"] == {"enabled": False} and "messages" not in body
    assert page.locator("#tau").text_content() == "1.00"


def test_a_conversation_is_kept_until_it_is_cleared(page: Page, double: Double):
    ask(page, "first")
    page.get_by_label("Prompt").fill("second")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".foot").nth(1)).to_contain_text("stop")
    assert double.bodies[1]["messages"] == [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": STORY},
        {"role": "user", "content": "second"},
    ]
    page.get_by_role("button", name="Clear").click()
    assert page.locator("article").count() == 0 and page.locator("#tau").text_content() == "–"
    ask(page, "third")
    assert double.bodies[2]["messages"] == [{"role": "user", "content": "third"}]


def test_stop_ends_the_request_and_keeps_what_was_written(page: Page, double: Double):
    page.get_by_label("Prompt").fill("slow")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".written")).to_contain_text("tick tick tick")
    assert float(page.locator("#tau").text_content()) == 1.0  # figures are live
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_have_text("stopped")
    assert double.left.wait(5)
    written = page.locator(".written").inner_text()
    assert page.locator(".foot").inner_text().endswith("stopped")
    ask(page, "story")
    assert double.bodies[1]["messages"][1] == {"role": "assistant", "content": written}


@pytest.mark.parametrize(
    ("prompt", "line"),
    [
        ("refuse", "temperature is 3; it must be at most 2"),
        ("crowd", "the queue is full. Try again in 7 s."),
        ("break", "the engine has stopped"),
        ("cut", "The server closed the stream before the text was finished."),
    ],
)
def test_an_error_is_one_line_and_the_prompt_comes_back(page: Page, double: Double, prompt: str, line: str):
    ask(page, prompt, state="failed")
    assert page.get_by_role("alert").text_content() == line
    assert page.get_by_label("Prompt").input_value() == prompt
    ask(page, "story")
    assert double.bodies[1]["messages"] == [{"role": "user", "content": "story"}]
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_server_that_is_gone_is_said_in_one_line(page: Page):
    page.route("**/v1/chat/completions", lambda route: route.abort("connectionrefused"))
    ask(page, "story", state="failed")
    assert "cannot be reached" in page.get_by_role("alert").text_content()


def test_nothing_is_sent_while_a_control_holds_no_sense(page: Page, double: Double):
    page.get_by_label("temperature").fill("3")
    page.get_by_label("Prompt").fill("story")
    page.get_by_role("button", name="Send").click()
    assert page.locator("article").count() == 0 and double.bodies == []


def test_side_by_side_says_whether_the_texts_are_the_same(page: Page, double: Double):
    page.get_by_label("side by side").click()
    expect(page.get_by_label("speculation", exact=True)).to_be_disabled()
    ask(page, "story")
    plain, drafted = double.bodies
    assert plain.pop("speculation") == {"enabled": False} and plain == drafted and plain["seed"] >= 0
    verdict = page.locator(".verdict").text_content()
    assert verdict.startswith(f"Identical: all {len(STORY)} characters are the same.") and ", ratio " in verdict
    assert page.locator(".column h3").all_text_contents() == ["without speculation", "with speculation"]
    assert {title for _, title in coloured(page, 0)} == {"the target's own"}
    ask(page, "differ")
    assert page.locator(".verdict").nth(1).text_content().startswith("Not identical from character 1 on.")


def test_a_key_is_asked_for_and_kept_in_the_tab_alone(page: Page, double: Double):
    double.key = KEY
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("asks for an API key")
    page.get_by_label("API key").fill("guess")
    page.get_by_label("API key").press("Tab")
    expect(page.get_by_role("alert")).to_contain_text("does not accept the API key")
    page.get_by_label("API key").fill(KEY)
    ask(page, "story")
    assert page.locator("#model").text_content() == MODEL
    page.reload()
    ask(page, "story")
    assert page.evaluate("[localStorage.length, document.cookie, Object.keys(sessionStorage).length]") == [0, "", 1]


def test_a_real_server_writes_both_ways(browser: Browser, tiny: Live, tmp_path: Path):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(f"{tiny.url}/playground")
    page.get_by_role("button", name="JSON").click()
    page.get_by_label("side by side").click()
    page.get_by_label("max tokens").fill("60")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("status")).to_have_text("done", timeout=30_000)
    assert page.locator(".verdict").text_content().startswith("Identical: all")
    drafted = coloured(page, 1)
    assert {title for _, title in drafted} == {"the target's own", "drafted by suffix"}
    assert "".join(text for text, _ in drafted) == "".join(text for text, _ in coloured(page, 0))
    tau = page.locator("#tau").text_content()
    report = page.locator("#statistics tr").evaluate_all("all => all.map(row => row.innerText.split('\\t'))")
    assert ["tau", tau] in report and float(tau) > 1
    page.get_by_label("rejected drafts").click()
    expect(page.locator("del").first).to_be_visible()
    page.screenshot(path=tmp_path / "playground.png")
    page.close()


def test_the_page_fits_a_phone(page: Page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_label("side by side").click()
    ask(page, "story")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.locator("#tau").is_visible() and page.get_by_role("button", name="Send").is_visible()
