"""Notebooks in the JupyterLab that `make lab` starts: the page answers, every chart and formula is
drawn, nothing is cut, each widget changes what it shows, and links lead to files."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from browser import browser, needs_browser
from notebooks import ROOT, sources
from twotowers.theme import VEGA

needs_measurements = pytest.mark.skipif(
    not (ROOT / "_build/evidence").is_dir(), reason="measurements of mini-gpt2: make book"
)
NOTEBOOKS = sorted(path.stem for path in (ROOT / "book").glob("*.ipynb"))
# The others read the evidence of all chapters, and are for pages.
ON_EACH_PUSH = ("12-what-every-head-does", "playground")
OTHERS = [name for name in NOTEBOOKS if name[0].isdigit() and name not in ON_EACH_PUSH]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
WAIT = 300_000  # milliseconds for one step, on a machine that does other work
POLL = 250  # milliseconds; Playwright would look at every frame, and make the browser draw them

READY = """() => {
  const notebook = window.jupyterapp?.shell?.currentWidget;
  return notebook?.context?.sessionContext?.session?.kernel?.status === 'idle';
}"""
RUN = """() => {
  window.ended = false;
  jupyterapp.commands.execute('notebook:run-all-cells').finally(() => { window.ended = true; });
}"""
PLACE = "() => jupyterapp.shell.currentWidget.context.path"
SHUTDOWN = "() => jupyterapp.shell.currentWidget.context.sessionContext.shutdown()"
# The outputs of cells with their nodes, and whether a canvas has a mark.
PARTS = """
  const cells = jupyterapp.shell.currentWidget.content.widgets;
  const codes = cells.filter((cell) => cell.model.type === 'code');
  const outputs = codes.flatMap((cell) =>
    Array.from({ length: cell.model.outputs.length }, (_, i) => cell.model.outputs.get(i)));
  const charts = outputs.filter((output) => output.data?.[VEGA]).length;
  const isDrawn = (canvas) => canvas.width && canvas.height && canvas.getContext('2d')
    .getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value);
  const canvases = codes.flatMap((cell) => [...cell.node.querySelectorAll('canvas')]);
  const texts = cells.filter((cell) => cell.model.type === 'markdown');
""".replace("VEGA", json.dumps(VEGA))
DRAWN = f"""() => {{
  {PARTS}
  return canvases.filter(isDrawn).length === charts && texts.every((cell) =>
    !/\\$/.test(cell.model.sharedModel.getSource()) || cell.node.querySelector('mjx-container'));
}}"""
LOOK = f"""() => {{
  {PARTS}
  const faults = [];
  for (const output of outputs) {{
    const {{ output_type: kind, name, text, evalue }} = output.toJSON();
    if (kind === 'error') faults.push(`error: ${{evalue}}`);
    if (name === 'stderr' && /warning|error/i.test(text)) faults.push(`warning: ${{text}}`);
  }}
  for (const formula of document.querySelectorAll('mjx-merror, [data-mjx-error]'))
    faults.push(`formula: ${{formula.textContent}}`);
  for (const cell of texts) {{
    const copy = cell.node.querySelector('.jp-RenderedMarkdown').cloneNode(true);
    copy.querySelectorAll('mjx-container, code, pre').forEach((part) => part.remove());
    if (/\\$|^\\(\\w[\\w-]*\\)=/.test(copy.textContent)) faults.push(`raw: ${{copy.textContent}}`);
  }}
  for (const label of document.querySelectorAll('.widget-label, .widget-button'))
    if (label.scrollWidth > label.clientWidth) faults.push(`cut: ${{label.textContent}}`);
  for (const cell of codes) {{
    const area = cell.node.querySelector('.jp-Cell-outputArea')?.getBoundingClientRect();
    for (const part of cell.node.querySelectorAll('canvas, .widget-html img, .widget-dropdown'))
      if (part.getBoundingClientRect().right > area.right + 1)
        faults.push(`runs out of the page: ${{part.outerHTML.slice(0, 100)}}`);
  }}
  return faults;
}}"""
SHOWN = """() => [...document.querySelectorAll('.widget-html-content')]
  .map((part) => part.innerText + (part.querySelector('img')?.src ?? '')).join()"""
OTHER = f"(before) => ({SHOWN})() !== before"


def start(home):
    """The process of `make lab` on a copy of the notebooks, which JupyterLab saves, without a
    user's own settings, and its address."""
    files = [path for path in (ROOT / "book").iterdir() if path.suffix in (".ipynb", ".md")]
    (home / "book").mkdir()
    for path in files:
        shutil.copy(path, home / "book")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JUPYTER", "IPYTHON", "TWOTOWERS_EVIDENCE"))
    }
    (command,) = re.findall(r"-m (jupyter lab .*)", (ROOT / "Makefile").read_text("utf8"))
    options = "--allow-root --no-browser --IdentityProvider.token= "
    options += "--LabApp.expose_app_in_browser=True"
    process = subprocess.Popen(
        [sys.executable, "-m", *command.split(), *options.split()],
        cwd=home,
        env=environment | {"HOME": str(home), "JUPYTER_RUNTIME_DIR": str(home / "runtime")},
        stdout=(home / "log").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    about = ""
    while not about.rstrip().endswith("}"):  # until the server has written all of it
        assert process.poll() is None, (home / "log").read_text()
        time.sleep(0.1)
        about = "".join(path.read_text() for path in (home / "runtime").glob("jpserver-*.json"))
    return process, json.loads(about)["url"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab."""
    process, address = start(tmp_path_factory.mktemp("lab"))
    yield address
    os.killpg(process.pid, signal.SIGTERM)
    process.wait()


def wait(page, condition, **arg):
    page.wait_for_function(condition, timeout=WAIT, polling=POLL, **arg)


def try_dropdowns(page):
    """Each dropdown of a chapter's widget with several entries changes the numbers below it."""
    dropdowns = page.locator(".widget-dropdown select:has(option:nth-child(2))")
    for i in range(dropdowns.count()):
        before = page.evaluate(SHOWN)
        dropdown = dropdowns.nth(i)
        first = dropdown.input_value()
        dropdown.select_option(index=dropdown.locator("option").count() - 1)
        wait(page, OTHER, arg=before)
        dropdown.select_option(first)
        wait(page, f"(before) => !({OTHER})(before)", arg=before)
    return dropdowns.count()


def try_playground(page):
    """Every field and button of the playground changes the answer or the picture. The right label
    follows the query, so here it is set to the other one."""
    changes = {
        "query": "love",
        "right label": "foo",
        "heads": "3-1",
        "demonstrations": "like : bar\ntwo : foo",
    }
    for name, text in changes.items():
        wait(page, READY)
        before = page.evaluate(SHOWN)
        label = page.locator(".widget-label").get_by_text(name, exact=True)
        field = label.locator("xpath=..").locator("input, textarea")
        field.fill(text)
        field.press("Tab")
        wait(page, OTHER, arg=before)
    buttons = page.locator(".widget-button")
    for i in range(buttons.count()):
        wait(page, READY)
        before = page.evaluate(SHOWN)
        buttons.nth(i).click()
        wait(page, OTHER, arg=before)
    return buttons.count()


def visit(lab, *names):
    """Open notebooks one after another in one browser, whose cache then has JupyterLab's code."""
    addresses = [f"{lab}lab/workspaces/{name}/tree/{name}.ipynb?reset" for name in names]
    with browser(addresses[0], 1440, 900, home=lab) as page:
        for name, address in zip(names, addresses, strict=True):
            print(name, file=sys.stderr)  # the last one is where a failure is
            if address != addresses[0]:
                page.goto(address, timeout=WAIT)
            look(page, name)


def look(page, name):
    """Run a notebook and look at it, use its widgets, and follow a link."""
    wait(page, READY)
    page.evaluate(RUN)
    wait(page, "window.ended")
    wait(page, DRAWN)
    faults = page.evaluate(LOOK)
    assert not faults, faults
    if name == "playground":
        assert try_playground(page) == 6
    else:
        has_widget = "chapter.explore" in "".join(sources(name))
        assert bool(try_dropdowns(page)) == has_widget
    page.evaluate(SHUTDOWN)
    links = page.locator(".jp-RenderedMarkdown a[href*='.md']")
    if links.count():
        links.last.click()
        page.wait_for_function(f"(name) => ({PLACE})() !== name", arg=f"{name}.ipynb")


@needs_browser
@needs_measurements
@pytest.mark.parametrize(
    "names",
    [ON_EACH_PUSH, *(pytest.param([name], marks=pytest.mark.nightly) for name in OTHERS)],
    ids=", ".join,
)
def test_notebooks_run_in_jupyterlab(names, lab):
    """In a process of its own: Playwright waits for ever for a page that does not answer."""
    visited = subprocess.run(
        [sys.executable, __file__, lab, *names],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=3 * WAIT / 1000,
        capture_output=True,
        text=True,
    )
    assert visited.returncode == 0, visited.stderr


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_links_of_a_notebook_name_files_and_no_markup_is_for_sphinx_alone(name):
    """JupyterLab opens `02-project.ipynb`, and nothing at `02-project`."""
    text = "\n".join(sources(name, "markdown"))
    assert [link for link in LINK.findall(text) if not (ROOT / "book" / link).is_file()] == []
    assert re.findall(r"(?m)^\(\w[\w-]*\)=|\{[a-z]+\}`|^:::|^```\{", text) == []


if __name__ == "__main__":
    visit(*sys.argv[1:])
