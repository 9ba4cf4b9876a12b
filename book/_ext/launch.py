"""A Sphinx extension for buttons that open a notebook on Binder or Colab.

`BOOK_REPOSITORY`, or `GITHUB_REPOSITORY` in a workflow, names the repository as owner/name. Without
them, pages have no buttons and no links to these hosts.

Colab opens a copy of the notebook, whose first cell installs the book. The copies are in a branch
of their own, for which this file is also a script:

    python book/_ext/launch.py FOLDER
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

BINDER, COLAB = "https://mybinder.org", "https://colab.research.google.com"
HOME = Path(__file__).parents[2]
BRANCH = "main"  # the branch whose pages .github/workflows/book.yml publishes
COPIES = "colab"  # the branch of copies, which the same workflow pushes
INSTALL = """# @title Install the book
import os
import sys

get_ipython().system("git clone --depth=1 https://github.com/REPOSITORY /content/two-towers")
get_ipython().system("pip install --quiet --editable '/content/two-towers[measure]'")
os.chdir("/content/two-towers/book")
for folder in ("experiments", "lib"):  # this session does not see a new installation
    sys.path.insert(0, f"/content/two-towers/{folder}")"""
"""The first cell of a copy"""
MARK = re.compile(r"<!-- open (\S+) -->")
COPY = "cd two-towers     # your copy of this repository: the folder with the file Makefile"
"""The line that a command replaces which gets the repository, if its address is known"""


def repository() -> str:
    """Return the repository of the book on GitHub as owner/name, or "" if it is unknown.

    Raises:
        ValueError: If a variable has another form.
    """
    name = os.environ.get("BOOK_REPOSITORY") or os.environ.get("GITHUB_REPOSITORY", "")
    if name and not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ValueError(f"cannot use BOOK_REPOSITORY '{name}': expected owner/name")
    return name


def source(path: str, name: str) -> str:
    """Return the name of a file as Markdown, with a link to it if the repository is known.

    Args:
        path: Path of the file in the repository.
        name: Text of the link.
    """
    address = f"https://github.com/{repository()}/blob/{BRANCH}/{path}"
    return f"[`{name}`]({address})" if repository() else f"`{name}`"


def address_of(home: Path) -> str:
    """Return the public address of the repository that a folder was cloned from, or "".

    Args:
        home: Folder.
    """
    command = ["git", "-C", str(home), "remote", "get-url", "origin"]
    try:
        remote = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:  # git is not installed
        return ""
    public = re.fullmatch(r"(?:https://(?:.+@)?|(?:ssh://)?git@)([\w.-]+)[:/](.+)", remote)
    return f"https://{public[1]}/{public[2].removesuffix('.git')}" if public else ""


def links(text: str, home: Path = HOME) -> str:
    """Return Markdown with a link to each service in place of a mark such as this one.

    `Open it <!-- open book/04-attention-weights.ipynb -->in JupyterLab.`

    Args:
        text: Markdown. If the repository is unknown, marks are removed.
        home: Folder of the book.
    """
    name = repository()
    if address := f"https://github.com/{name}" if name else address_of(home):
        text = text.replace(COPY, f"git clone {address} two-towers && cd two-towers")
    binder = f"{BINDER}/v2/gh/{name}/{BRANCH}?urlpath=lab/tree"
    colab = f"{COLAB}/github/{name}/blob/{COPIES}"
    services = rf"on [Binder]({binder}/\1), on [Colab]({colab}/\1) or "
    return MARK.sub(services if name else "", text)


def reads_evidence(notebook: dict) -> bool:
    """Return whether a notebook needs the evidence of all chapters, so that it runs in no service.

    Args:
        notebook: Content of the notebook.
    """
    return bool(notebook["metadata"].get("twotowers", {}).get("evidence"))


def write_copies(book: Path, folder: Path) -> None:
    """Write the copies that Colab opens, with the cell that installs the book in front.

    Args:
        book: Folder of the notebooks.
        folder: Folder for the copies.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = INSTALL.replace("REPOSITORY", repository()).splitlines(keepends=True)
    for source in sorted(book.glob("*.ipynb")):
        notebook = json.loads(source.read_text("utf8"))
        if reads_evidence(notebook):
            continue
        cell = {"cell_type": "code", "execution_count": None, "id": "install", "outputs": []}
        cell |= {"metadata": {"cellView": "form"}, "source": lines}
        notebook["cells"].insert(0, cell)
        (folder / source.name).write_text(json.dumps(notebook, indent=1), "utf8")


def set_repository(app, config) -> None:
    """Tell the theme the repository, if it is known.

    Args:
        app: Application of Sphinx.
        config: Configuration of Sphinx.
    """
    if name := repository():
        config.html_theme_options |= {
            "repository_url": f"https://github.com/{name}",
            "repository_branch": BRANCH,
            "launch_buttons": {
                "binderhub_url": BINDER,
                "colab_url": COLAB,
                "notebook_interface": "jupyterlab",
            },
        }


def adapt_buttons(app, pagename, templatename, context, doctree) -> None:
    """Let the button of Colab open the copy, and remove the buttons of a page that needs evidence.

    The theme has one branch for all services.
    """
    source = Path(app.srcdir) / f"{pagename}.ipynb"
    if not source.is_file():
        return
    buttons = context["header_buttons"]
    if reads_evidence(json.loads(source.read_text("utf8"))):
        context["header_buttons"] = [b for b in buttons if b["label"] != "launch-buttons"]
        return
    for button in [b for group in buttons for b in group.get("buttons", [])]:
        if button.get("url", "").startswith(COLAB):
            button["url"] = button["url"].replace(f"/blob/{BRANCH}/", f"/blob/{COPIES}/")


def setup(app) -> dict:
    """Register the extension.

    Args:
        app: Application of Sphinx.
    """
    app.connect("config-inited", set_repository)
    app.connect("html-page-context", adapt_buttons, priority=900)  # after the theme
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    write_copies(Path(__file__).parents[1], Path(sys.argv[1]))
