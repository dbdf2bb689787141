"""The operators' page in a real browser, over fleets that are made up: what it says, what it lets
somebody press with nothing but a keyboard, what a checker of accessibility finds, what it asks for, and
how long a refresh takes.

Arguments: the example `desk` (target/debug/examples/desk), directory for pictures, and `quickly` to leave
most of these out. Needs the packages
`playwright` and `axe-playwright-python` and a Chromium, whose path may be given as CHROMIUM. `./soak`
runs it where they are.
"""

import os
import statistics
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import axe_playwright_python
from playwright.sync_api import sync_playwright

binary, pictures = sys.argv[1], Path(sys.argv[2])
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
# What a refresh may take, laid out, in a fleet of 200 nodes.
REFRESH_MS = 100
LOOKS = [  # picture, fleet, colours, size, what stands on top, and in which words
    ("quiet", "healthy", "light", (1280, 900), "All quiet", "Nothing is suspect"),
    ("quiet-dark", "healthy", "dark", (1280, 900), "All quiet", "Nothing is suspect"),
    ("incident", "incident", "light", (1280, 900), "Contained", "Pair prefill-0 → decode-1 is suspect"),
    ("incident-dark", "incident", "dark", (1280, 900), "Contained", "it is private"),
    ("phone", "incident", "light", (360, 740), "Contained", "decode-1 still serves 1 other pair"),
    ("phone-dark", "incident", "dark", (360, 740), "Contained", "Pair prefill-0 → decode-1 is suspect"),
    ("phone-200", "large-incident", "light", (360, 740), "Contained", "is suspect"),
    ("tablet", "incident", "light", (800, 1100), "Contained", "is suspect"),
    ("200-nodes", "large", "light", (1280, 900), "Needs a look", "Engine decode-7-1 takes nothing"),
    ("200-nodes-incident", "large-incident", "dark", (1280, 900), "Contained", "is suspect"),
    ("bare", "bare", "light", (1280, 900), "Needs a look", "there is no journal"),
]


@contextmanager
def served(fleet):
    process = subprocess.Popen([binary, fleet], stdout=subprocess.PIPE, text=True)
    try:
        words = process.stdout.readline().split()
        yield process, words[1] + "/", words[-1]
    finally:
        process.kill()
        process.wait()


def until(page, what, holds, tries=600):
    """Waits for what must come; the bound turns a hanging page into a failing one."""
    for _ in range(tries):
        if holds():
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"{what} never came")


def accessible(page, where):
    page.evaluate("document.querySelector('.bar').scrollIntoView()")
    found = page.evaluate(AXE + "; axe.run(document, {resultTypes: ['violations']})")
    found = [(it["id"], [node["html"][:160] for node in it["nodes"][:3]]) for it in found["violations"]]
    assert not found, (where, found)


def fits(page, where):
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide == 0, f"{where}: {wide} px wider than the screen"


def refreshes(page):
    return page.evaluate("performance.getEntriesByName('refresh').map((it) => it.duration)")


def open_everything(page):
    """Folds may have folds in them."""
    closed = page.locator("details:not([open]) > summary")
    for _ in range(80):
        if closed.count() == 0:
            return
        closed.first.click()
        page.wait_for_timeout(20)
    raise AssertionError("a fold that does not open")


def watched(page):
    """What a page must not do, noted."""
    problems, asked = [], []
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.add_init_script(
        "window.refused = []; addEventListener('securitypolicyviolation', (it) => refused.push(it.violatedDirective))"
    )
    return problems, asked


def nothing(page):
    parts = ["headline", "incidents", "fleet", "model", "canaries", "ttft", "pools", "running", "journal"]
    return not page.is_visible("#desk") and all(page.text_content("#" + it).strip() == "" for it in parts)


def sign_in(page, url, key):
    page.goto(url)
    assert page.evaluate("document.activeElement.id") == "key", "the key can be typed at once"
    assert not page.is_visible("#desk")
    accessible(page, "signing in")
    page.keyboard.type("not-a-key-that-is-known")
    page.keyboard.press("Enter")
    until(page, "a refusal", lambda: "not known here" in page.inner_text("#access-note"))
    assert nothing(page), "nothing is shown without a key"
    page.keyboard.type(key)
    page.keyboard.press("Enter")
    until(page, "the state", lambda: page.locator("#level").count() == 1)


def look(page, name, fleet, url, key, level, words):
    problems, asked = watched(page)
    sign_in(page, url, key)
    assert page.inner_text("#level") == level, page.inner_text("#level")
    sentence = page.inner_text(".sentence")
    assert words in sentence, sentence
    said = page.text_content("#said") + page.text_content("#said-now")
    assert said.startswith(level) and words in said, f"said aloud: {said}"
    fits(page, name)
    accessible(page, name)
    page.screenshot(path=pictures / f"{name}.png", full_page=True)
    if fleet in ("incident", "healthy"):
        open_everything(page)
        fits(page, f"{name}, all open")
        accessible(page, f"{name}, all open")
    if "incident" in fleet:
        told = page.locator("#incidents ol.next")
        assert "`" not in told.inner_text(), told.inner_text()
        assert told.locator("code").all_inner_texts() == ["cofferdam incident show"], "what is typed looks so"
    print(f"{name}: {sentence}")
    assert page.locator("#incidents b").count() == 0, "what the server says is text"
    assert key not in page.content(), "the key is not shown"
    kept = page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length")
    assert kept == 0, "something is kept"
    done(page, problems, asked, url)


def done(page, problems, asked, url, allowed=("401",)):
    assert page.evaluate("refused") == []
    assert all(it.startswith(url) for it in asked), asked
    problems = [it for it in problems if not any(word in it for word in allowed)]
    assert not problems, problems


def swift(page, fleet, url, key):
    """How long the script and the layout of one refresh take; the first one makes everything."""
    sign_in(page, url, key)
    counters = page.context.new_cdp_session(page)
    # Time of the processor, not of the clock: a machine that others use as well says the same.
    counters.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent():
        found = counters.send("Performance.getMetrics")["metrics"]
        return next(it["value"] for it in found if it["name"] == "TaskDuration") * 1000

    before, begin = len(refreshes(page)), spent()
    until(page, "ten refreshes", lambda: len(refreshes(page)) >= before + 10)
    each = (spent() - begin) / (len(refreshes(page)) - before)
    clock = statistics.median(refreshes(page)[before:])
    print(f"{fleet}: a refresh takes {each:.1f} ms of the processor, all told ({clock:.1f} ms of the clock, median)")
    assert each < REFRESH_MS


def focused(page):
    return page.evaluate("(document.activeElement.ariaLabel || document.activeElement.textContent || document.activeElement.id).trim()")


def tab(page, times=1):
    for _ in range(times):
        page.keyboard.press("Tab")
    return focused(page)


def by_keyboard(page, url, key):
    problems, asked = watched(page)
    sign_in(page, url, key)
    assert page.evaluate("document.activeElement.id") == "main", "reading begins with what is wrong"
    press = "Make private: engine decode-1"
    assert [tab(page) for _ in range(4)] == [
        press,
        "Note with incident inc-20261201-0312-7f3a",
        "Note or close incident inc-20261201-0312-7f3a",
        "1 closed incident",
    ]
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Shift+Tab")
    page.locator(".skip").focus()
    assert [tab(page), tab(page)] == ["Lock", press]

    # Escape closes, and the focus is back.
    page.keyboard.press("Enter")
    assert page.is_visible("#act") and page.evaluate("document.activeElement.id") == "reason"
    assert page.inner_text("#act-title") == "Act on engine decode-1"
    accessible(page, "the dialog")
    page.screenshot(path=pictures / "dialog.png")
    page.keyboard.type("never mind")
    page.keyboard.press("Escape")
    assert not page.is_visible("#act") and focused(page) == press

    # No reason, no action.
    page.keyboard.press("Enter")
    assert [tab(page), tab(page)] == ["Cancel", "Make private"]
    page.keyboard.press("Enter")
    assert page.is_visible("#act"), "an action without a reason is not sent"
    assert not any(it.endswith("/actions") for it in asked)
    page.keyboard.type("decode-1 serves others too")
    assert [tab(page), tab(page)] == ["Cancel", "Make private"]
    page.keyboard.press("Enter")
    until(page, "the end", lambda: not page.is_visible("#act"))
    said = "Done and written down: make private: engine decode-1, by anna"
    assert page.inner_text("#toast") == said and page.text_content("#said") == said
    row = page.locator("tr", has=page.get_by_role("button", name="Act on engine decode-1"))
    until(page, "the change", lambda: "private" in row.inner_text())
    assert "decode-1 serves others too" in row.inner_text()
    until(page, "the next to press", lambda: "engine prefill-0" in page.inner_text("#headline button >> nth=0"))
    assert focused(page) == "Make private: engine prefill-0", focused(page)

    # What is refused is said in the dialog; the choice is made with arrows.
    page.get_by_role("button", name="Act on engine decode-1").focus()
    page.keyboard.press("Enter")
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    assert page.inner_text("#act-go") == "Restore"
    tab(page)
    page.keyboard.type("it is late")
    tab(page, 2)
    page.keyboard.press("Enter")
    until(page, "the refusal", lambda: "two proofs" in page.inner_text("#act-fault"))
    accessible(page, "the dialog, refused")
    page.screenshot(path=pictures / "dialog-refused.png")
    page.keyboard.press("Escape")
    assert focused(page) == "Act on engine decode-1"

    # A refresh takes nothing from under somebody's fingers.
    before = len(refreshes(page))
    until(page, "two refreshes", lambda: len(refreshes(page)) >= before + 2)
    assert focused(page) == "Act on engine decode-1"
    fold = page.locator("summary", has_text="1 closed incident")
    fold.focus()
    page.keyboard.press("Enter")
    before = len(refreshes(page))
    until(page, "two refreshes", lambda: len(refreshes(page)) >= before + 2)
    assert "context above its pool after a restart" in page.inner_text("#incidents")

    page.locator("#lock").focus()
    page.keyboard.press("Enter")
    assert page.is_visible("#access") and nothing(page), "nothing is left on a locked page"
    done(page, problems, asked, url, ("401", "409"))
    print("keyboard: pressed, recorded, refused, locked")


def filtered(page, url, key):
    """200 nodes: what is not well stands first, and one of them is found."""
    sign_in(page, url, key)
    heads = page.locator(".group > summary h3").all_inner_texts()
    assert len(heads) == 20 and heads[:2] == ["Group 6", "Group 7"], heads
    assert page.locator("details.group[open]").count() == 1, "the others are folded"
    page.fill("#filter", "decode-12-3")
    until(page, "what was looked for", lambda: page.locator(".group > summary h3").all_inner_texts() == ["Group 12"])
    assert page.get_by_role("button", name="Act on engine decode-12-3").is_visible()
    page.fill("#filter", "nothing like it")
    until(page, "the answer", lambda: "Nothing has that" in page.inner_text("#fleet"))
    print("filter: found, and said that there is none")


def cut_off(page, process, url, key):
    """What was so is not shown as what is so."""
    sign_in(page, url, key)
    assert page.inner_text("#live") == "live"
    moves = "getComputedStyle(document.querySelector('#live'), '::before').animationName"
    assert page.evaluate(moves) == "none", "reduced motion is heeded"
    process.kill()
    until(page, "the truth", lambda: "not live" in page.inner_text("#live"))
    assert page.inner_text("#level").startswith("Not live"), page.inner_text("#level")
    assert "not live" in page.text_content("#said-now")
    accessible(page, "not live")
    page.screenshot(path=pictures / "not-live.png")
    print("cut off: said so")


pictures.mkdir(parents=True, exist_ok=True)
with sync_playwright() as play:
    chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])

    def page(colours="light", size=(1280, 900), **more):
        viewport = {"width": size[0], "height": size[1]}
        return browser.new_context(color_scheme=colours, viewport=viewport, **more).new_page()

    looks = [] if sys.argv[3:] == ["quickly"] else LOOKS
    for name, fleet, colours, size, level, words in looks:
        with served(fleet) as (_, url, key):
            look(page(colours, size), name, fleet, url, key, level, words)
    for fleet in ("incident", "large-incident"):
        with served(fleet) as (_, url, key):
            swift(page(), fleet, url, key)
    with served("incident") as (_, url, key):
        by_keyboard(page(), url, key)
    with served("large-incident") as (_, url, key):
        filtered(page(), url, key)
    with served("incident") as (process, url, key):
        cut_off(page(reduced_motion="reduce"), process, url, key)
    browser.close()
print("all good")
