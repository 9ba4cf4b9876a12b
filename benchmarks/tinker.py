"""How long the playground in the page takes to answer a keystroke, in headless Chromium.

    python benchmarks/tinker.py [BOOK]      # BOOK: the built pages, by default _build/html

Each keystroke sets a field and is answered at once: encode, run the model, compute what every head adds, draw, lay out. Shown
are milliseconds over `KEYSTROKES` of them: what the page's thread computed for each (processor time, script and layout),
then least and median of the time that passed, which grows with what else the machine does.
"""

import shutil
import sys
from pathlib import Path
from statistics import median

from playwright.sync_api import sync_playwright

KEYSTROKES = 40
ROOT = Path(__file__).parents[1]
FIELDS = ("query", "text of example 1")  # the last words change, or all after the first
TYPE = """async ([field, n]) => {
  const input = document.querySelector(`[aria-label="${field}"]`), taken = [];
  for (let i = 0; i < n; i++) {
    await new Promise(requestAnimationFrame);
    input.value = ["one", "seven", "tiger", "xylophones", "a b"][i % 5];
    const start = performance.now();
    input.dispatchEvent(new Event("input"));
    document.body.getBoundingClientRect();  // layout
    taken.push(performance.now() - start);
  }
  return taken;
}"""


def computed(session) -> float:
    """Milliseconds of processor time that the page's thread has spent on tasks."""
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return 1000 * metrics["TaskDuration"]


def measure(page, session, what: str) -> None:
    for field in FIELDS:
        page.evaluate(TYPE, [field, 10])  # until the browser has compiled it
        before = computed(session)
        taken = page.evaluate(TYPE, [field, KEYSTROKES])
        spent = (computed(session) - before) / KEYSTROKES
        print(f"{what}, {field}: {spent:.0f} ms computed; {min(taken):.0f}, {median(taken):.0f} ms passed", flush=True)


def main(book: str = str(ROOT / "_build/html")) -> None:
    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(offline=True)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto((Path(book).resolve() / "book/tinker.html").as_uri())
        page.wait_for_selector("#tinker.ready")
        measure(page, session, "14 tokens")
        page.locator(".tinker-buttons").get_by_role("button", name="zero").click()
        measure(page, session, "14 tokens, heads zeroed")
        page.get_by_role("button", name="reset").click()
        for _ in range(12):
            page.get_by_role("button", name="add a row").click()
            page.locator(".tinker-prompt li:last-child input").first.fill("three")
        measure(page, session, "50 tokens")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
