"""The time in which the playground in the page answers a keystroke, in headless Chromium.

    python benchmarks/playground_page.py [BOOK]      # BOOK: the built pages, by default _build/html

Each keystroke sets a field. The page answers it at once: it encodes the prompt, runs the model,
computes the attribution of every head, draws, and computes the layout. The output has two
quantiles of KEYSTROKES, 50% and 95%, in milliseconds: of the processor time of the page's thread
(script and layout), and of the elapsed time, which also depends on other work of the machine.
"""

import shutil
import sys
from pathlib import Path
from statistics import quantiles

from playwright.sync_api import sync_playwright

KEYSTROKES = 40
ROOT = Path(__file__).parents[1]
FIELDS = ("query", "text of demonstration 1")  # only the last words change, or all others
TYPE = """async ([field, i]) => {
  const input = document.querySelector(`[aria-label="${field}"]`);
  await new Promise(requestAnimationFrame);
  input.value = ["one", "seven", "tiger", "xylophones", "a b"][i % 5];
  const start = performance.now();
  input.dispatchEvent(new Event("input"));
  document.body.getBoundingClientRect();  // layout
  return performance.now() - start;
}"""


def _task_milliseconds(session) -> float:
    """Return the milliseconds of processor time that the page's thread has spent on tasks.

    Args:
        session: Session of the Chrome DevTools Protocol.
    """
    metrics = {
        one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]
    }
    return 1000 * metrics["TaskDuration"]


def measure(page, session, what: str) -> None:
    """Print the times of KEYSTROKES keystrokes in each field.

    Args:
        page: Page of the playground.
        session: Session of the Chrome DevTools Protocol.
        what: Description of the page's state.
    """
    for field in FIELDS:
        cpu, wall = [], []
        for i in range(10 + KEYSTROKES):  # the first ten let the browser compile the script
            before = _task_milliseconds(session)
            wall.append(page.evaluate(TYPE, [field, i]))
            cpu.append(_task_milliseconds(session) - before)
        shares = [quantiles(values[10:], n=20) for values in (cpu, wall)]
        (half, most), (wall_half, wall_most) = ((q[9], q[18]) for q in shares)
        print(
            f"{what}, {field}: {half:.0f}, {most:.0f} ms computed; {wall_half:.0f}, "
            f"{wall_most:.0f} ms passed",
            flush=True,
        )


def main(book: str = str(ROOT / "_build/html")) -> None:
    """Time the playground with few rows, with ablated heads, and with many rows.

    Args:
        book: Folder of the built pages.
    """
    executable = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(offline=True)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto((Path(book).resolve() / "book/playground-page.html").as_uri())
        page.wait_for_selector("#playground-page.ready")
        measure(page, session, "4 rows")
        page.locator(".playground-buttons").get_by_role("button", name="zero").click()
        measure(page, session, "4 rows, heads zeroed")
        page.get_by_role("button", name="reset").click()
        for _ in range(16):
            page.get_by_role("button", name="add a row").click()
            page.locator(".playground-prompt li:last-child input").first.fill("three")
        measure(page, session, "20 rows")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
