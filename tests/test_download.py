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
COMMIT = "abc123de" * 5


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        self.server.paths.append(self.path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of files, empty; one file is pinned, and nothing listens where the server is."""
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    pin = {"file": FILE, "repository": "someone/repo", "path": "data/some file.txt",
           "commit": COMMIT, "sha256": sha256}  # fmt: skip
    monkeypatch.setattr(sentences, "pins", lambda: pd.DataFrame([pin], index=["mine"]))
    monkeypatch.setattr(sentences, "SERVER", "http://127.0.0.1:9")
    monkeypatch.setenv(sentences.DATA, str(tmp_path / "files"))
    for proxy in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.upper(), raising=False)
    return tmp_path / "files"


@pytest.fixture
def server(folder, monkeypatch):
    remote = folder.parent / "remote" / "someone/repo" / COMMIT / "data" / "some file.txt"
    remote.parent.mkdir(parents=True)
    remote.write_bytes(CONTENT)
    with HTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder.parent / "remote")) as http:
        http.paths, http.remote = [], remote
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        monkeypatch.setattr(sentences, "SERVER", f"http://127.0.0.1:{http.server_port}")
        yield http
        http.shutdown()
        thread.join()


def not_fetched(words):
    refused(words, sentences.fetch, "mine")


def test_a_file_is_downloaded_once(server, folder):
    assert sentences.fetch("mine") == sentences.fetch("mine") == CONTENT
    assert server.paths == [f"/someone/repo/{COMMIT}/data/some%20file.txt"]
    assert (folder / FILE).read_bytes() == CONTENT


def test_a_file_of_ones_own_needs_no_server_and_another_file_is_refused_and_stays(folder):
    (folder / "mine").mkdir(parents=True)
    (folder / FILE).write_bytes(CONTENT)
    assert sentences.fetch("mine") == CONTENT
    (folder / FILE).write_bytes(CONTENT.replace(b"\n", b"\r\n"))
    not_fetched("is not the pinned file")
    assert (folder / FILE).is_file()


def test_a_download_that_is_another_file_is_thrown_away(server, folder):
    server.remote.write_bytes(CONTENT + b"and more")
    not_fetched("ValueError.*set TWOTOWERS_DATA to a folder that has mine/some file.txt")
    assert not [p for p in folder.rglob("*") if p.is_file()]


def test_what_cannot_be_downloaded_names_the_folder_to_set(folder, server, monkeypatch):
    server.remote.unlink()
    not_fetched("HTTPError.*TWOTOWERS_DATA.*mine/some file.txt")
    monkeypatch.setattr(sentences, "SERVER", "http://127.0.0.1:9")
    not_fetched("cannot download .*ConnectionError.*set TWOTOWERS_DATA")
    folder.parent.joinpath("afile").write_text("")
    monkeypatch.setenv(sentences.DATA, str(folder.parent / "afile"))
    not_fetched("Error.*TWOTOWERS_DATA")


def test_every_set_is_pinned():
    assert set(sentences.pins().index) >= set(sentences.SETS)
