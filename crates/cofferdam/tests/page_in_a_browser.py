"""The page at `/` in a real browser, light, dark and on a phone, with what it does asserted.

Arguments: URL, key (`-` if the server asks for none), directory for pictures. Needs the package
`playwright` and a Chromium, whose path may be given as CHROMIUM. `./soak` runs it where both are.
"""

import os
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

url, key, pictures = sys.argv[1].rstrip("/") + "/", sys.argv[2], Path(sys.argv[3])
LOOKS = [
    ("light", "light", (1000, 900)),
    ("dark", "dark", (1000, 900)),
    ("phone", "light", (360, 740)),
    ("phone-dark", "dark", (360, 740)),
]


def until(page, what, holds):
    """Waits for what must come; the bound turns a hanging page into a failing one."""
    for _ in range(1200):
        if holds():
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"{what} never came")


def visit(page, name):
    problems, asked = [], []
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    text = page.inner_text
    page.goto(url)
    until(page, "the state", lambda: text("#state") == "ready")
    if key != "-":
        until(page, "the question for a key", lambda: page.is_visible("#access"))
        assert not page.is_visible("#talk"), "what needs a key is not shown without"
        page.screenshot(path=pictures / f"{name}-locked.png", full_page=True)
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        until(page, "a refusal", lambda: "key" in text("#access-note"))
        page.fill("#key", key)
        page.keyboard.press("Enter")
    until(page, "the model", lambda: page.is_visible("#talk"))
    assert key == "-" or key not in page.content(), "the key is not shown"
    assert text("#curl").startswith(f"curl {url}v1/chat/completions"), text("#curl")
    page.fill("#words", "<b>What</b> is the capital of Japan?")
    page.keyboard.press("Enter")
    until(page, "the end of the answer", lambda: page.is_enabled("#send"))
    asks, answers = text("#said li.user"), text("#said li.assistant")
    assert asks.startswith("<b>What</b>") and page.locator("#said b").count() == 0, asks
    assert len(answers) > 1, answers
    page.screenshot(path=pictures / f"{name}.png", full_page=True)
    wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not page.evaluate(wide), "it is wider than the screen"
    kept = page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length")
    assert kept == 0, "something is kept"
    assert all(it.startswith(url) for it in asked), asked
    refusals = [it for it in problems if "401" not in it]
    assert not refusals, refusals
    print(f"{name}: {asks!r} {answers!r}")


pictures.mkdir(parents=True, exist_ok=True)
with sync_playwright() as play:
    chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
    for name, scheme, (width, height) in LOOKS:
        viewport = {"width": width, "height": height}
        context = browser.new_context(color_scheme=scheme, viewport=viewport)
        visit(context.new_page(), name)
        context.close()
    browser.close()
print("all good")
