"""Downloads of pinned files, against a server of our own."""

import hashlib
import threading
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler

import pandas as pd
import pytest
from conftest import refused
from towerlab.prompts import sentences

CONTENT = b"two lines\nof a set\n"
FILE = "mine/some file.txt"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        self.server.paths.append(self.path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of fetched files, empty."""
    monkeypatch.setenv(sentences.DATA, str(tmp_path / "files"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "files"


@pytest.fixture
def server(folder, monkeypatch):
    """A server of one pinned file."""
    remote = folder.parent / FILE
    remote.parent.mkdir()
    remote.write_bytes(CONTENT)
    with HTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder.parent)) as http:
        url = f"http://127.0.0.1:{http.server_port}/mine/some%20file.txt"
        pin = {"file": FILE, "url": url, "sha256": hashlib.sha256(CONTENT).hexdigest()}
        monkeypatch.setattr(sentences, "pins", lambda: pd.DataFrame([pin], index=["mine"]))
        http.paths, http.remote = [], remote
        threading.Thread(target=http.serve_forever).start()
        yield http
        http.shutdown()


def test_a_file_is_downloaded_once_and_another_in_its_place_is_replaced(server, folder):
    assert sentences.fetch("mine") == sentences.fetch("mine") == CONTENT
    assert server.paths == ["/mine/some%20file.txt"]
    (folder / FILE).write_bytes(CONTENT.replace(b"\n", b"\r\n"))
    assert sentences.fetch("mine") == (folder / FILE).read_bytes() == CONTENT


def test_what_cannot_be_downloaded_names_the_folder_to_set(server, folder):
    server.remote.write_bytes(CONTENT + b"and more")
    refused(f"ValueError.*set TWOTOWERS_DATA to a folder with {FILE}", sentences.fetch, "mine")
    server.remote.unlink()
    refused(f"HTTPError.*TWOTOWERS_DATA.*{FILE}", sentences.fetch, "mine")
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_every_set_is_pinned():
    assert [*sentences.pins().index] == [*sentences.SETS]
