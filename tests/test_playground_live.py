"""The playground in a real JupyterLab, through a headless browser: a click, and its effect."""

import contextlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from conftest import ROOT, tiny
from test_explore import with_words

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Without these Chromium looks up hosts of its own; a container's root needs the first.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]

MISSING = [name for name in ("jupyterlab", "playwright") if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (apt install chromium)"),
    pytest.mark.skipif(bool(MISSING), reason=f"no {MISSING} here (pip install -e '.[lab,test]')"),
]


@pytest.fixture
def notebook(tmp_path):
    """The book's own notebook, opened with a tiny model whose answers do not matter here."""
    model = with_words(tiny("gpt2"))
    model.hf.save_pretrained(tmp_path / "tiny")
    model.tokenizer.save_pretrained(tmp_path / "tiny")
    source = json.loads((ROOT / "book/playground.ipynb").read_text())
    for cell in source["cells"]:
        if "parameters" in cell["metadata"].get("tags", []):
            text = "".join(cell["source"])
            text = text.replace('"mini-gpt2"', repr(str(tmp_path / "tiny"))).replace("_build", str(tmp_path / "_build"))
            assert str(tmp_path / "tiny") in text
            cell["source"] = text
    path = tmp_path / "playground.ipynb"
    path.write_text(json.dumps(source))
    return path


@contextlib.contextmanager
def lab(folder):
    """The address of the notebook in a JupyterLab that serves the folder, and nobody else."""
    token = secrets.token_hex(16)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = folder / "home"
    here = {"HOME": str(home), "JUPYTER_CONFIG_DIR": str(home / "config"), "JUPYTER_DATA_DIR": str(home / "data"),
            "JUPYTER_RUNTIME_DIR": str(home / "run"), "IPYTHONDIR": str(home / "ipython"), "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "lib"), os.environ.get("PYTHONPATH", "")]),
            "TWOTOWERS_HOME": str(ROOT), "OMP_NUM_THREADS": "1"}  # fmt: skip
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}", "--ip=127.0.0.1",
               "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}",
               f"--ServerApp.root_dir={folder}", "--LabApp.news_url=", "--LabApp.check_for_updates_class="
               "jupyterlab.handlers.announcements.NeverCheckForUpdate"]  # fmt: skip
    log = (folder / "lab.log").open("w")
    server = subprocess.Popen(command, cwd=folder, env=os.environ | here, stdout=log, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{address}/api/status?token={token}", timeout=5).close()
                break
            assert server.poll() is None, (folder / "lab.log").read_text()[-2000:]
            time.sleep(0.5)
        # The notebook's kernel starts before its page opens, or the page may start two and run cells in the lost one.
        session = {"path": "playground.ipynb", "type": "notebook", "name": "", "kernel": {"name": "python3"}}
        ask = urllib.request.Request(
            f"{address}/api/sessions", json.dumps(session).encode(), {"Authorization": f"token {token}"}
        )
        urllib.request.urlopen(ask, timeout=60).close()
        yield f"{address}/lab/tree/playground.ipynb?token={token}"
    finally:
        server.terminate()  # it shuts its kernels down with it
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
        log.close()


def test_a_click_on_a_head_changes_what_is_shown(notebook):
    from playwright.sync_api import sync_playwright

    seen = {}
    with lab(notebook.parent) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 1600})
        page.set_default_timeout(120_000)
        try:
            page.goto(address)
            page.locator(".jp-Notebook").wait_for()
            page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").first.wait_for(state="attached")
            page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
            page.get_by_role("menuitem", name="Run", exact=True).click()
            page.get_by_text("Run All Cells", exact=True).click()
            widget = page.locator(".twotowers-playground").first
            widget.get_by_text(re.compile("The model says")).wait_for()
            seen["before"] = widget.inner_text()
            widget.locator('button[title^="head 1-2:"]').click()
            widget.get_by_text(re.compile("1-2 zeroed")).wait_for()
            seen["after"] = widget.inner_text()
            query = widget.get_by_label("query")
            query.fill("")
            query.press("Enter")
            widget.get_by_role("alert").wait_for()
            seen["error"] = widget.get_by_role("alert").inner_text()
        except Exception:
            page.screenshot(path=str(notebook.parent / "failed.png"))
            raise
        finally:
            # Closed before anything is reported: pytest on Python 3.11 cannot report beside an open browser.
            browser.close()
    assert "Pick heads on the map" in seen["before"] and "heads 1-2" not in seen["before"]
    assert "attention on each label (heads 1-2)" in seen["after"] and "Pick heads" not in seen["after"]
    assert "is empty" in seen["error"] and "\n" not in seen["error"].strip()
