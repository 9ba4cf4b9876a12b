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
def pins(monkeypatch):
    """One pinned file; nothing listens where it is."""
    pin = {
        "file": FILE,
        "url": "http://127.0.0.1:9/a",
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
    }
    pins = pd.DataFrame([pin], index=["mine"])
    monkeypatch.setattr(sentences, "pins", lambda: pins)
    return pins


@pytest.fixture
def folder(tmp_path, pins, monkeypatch):
    """The folder of files, empty."""
    monkeypatch.setenv(sentences.DATA, str(tmp_path / "files"))
    for proxy in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.upper(), raising=False)
    return tmp_path / "files"


@pytest.fixture
def server(folder, pins):
    remote = folder.parent / "remote"
    remote.mkdir()
    (remote / "some file.txt").write_bytes(CONTENT)
    with HTTPServer(("127.0.0.1", 0), partial(Quiet, directory=remote)) as http:
        http.paths, http.remote = [], remote / "some file.txt"
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        pins.loc["mine", "url"] = f"http://127.0.0.1:{http.server_port}/some%20file.txt"
        yield http
        http.shutdown()
        thread.join()


def not_fetched(words):
    refused(words, sentences.fetch, "mine")


def test_a_file_is_downloaded_once(server, folder):
    assert sentences.fetch("mine") == sentences.fetch("mine") == CONTENT
    assert server.paths == ["/some%20file.txt"]
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


def test_what_cannot_be_downloaded_names_the_folder_to_set(folder, server, pins, monkeypatch):
    folder.parent.joinpath("afile").write_text("")
    server.remote.unlink()
    not_fetched("HTTPError.*TWOTOWERS_DATA.*mine/some file.txt")
    pins.loc["mine", "url"] = "http://127.0.0.1:9/a"
    not_fetched("cannot download .*ConnectionError.*set TWOTOWERS_DATA")
    monkeypatch.setenv(sentences.DATA, str(folder.parent / "afile"))
    not_fetched("Error.*TWOTOWERS_DATA")


def test_every_set_is_pinned():
    assert [*sentences.pins().index] == [*sentences.SETS]
