"""Pinned files: the user's folder, the cache, the download; all against a server of our own."""

import hashlib
import threading
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler

import pytest
from conftest import refused
from towerlab import cache
from towerlab.prompts import sentences

CONTENT = b"two lines\nof a set\n"
FILE = "mine/some file.txt"
COMMIT = "abc123de" * 5


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        self.server.paths.append(self.path)


@pytest.fixture
def pinned(tmp_path, monkeypatch):
    """One pinned file, an empty cache, no folder of the user's."""
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    pin = sentences.Pin(set="mine", file=FILE, repository="someone/repo", path="data/some file.txt",
                        commit=COMMIT, sha256=sha256, bytes="18")  # fmt: skip
    monkeypatch.setattr(sentences, "pins", lambda: {"mine": pin})
    monkeypatch.delenv(sentences.DATA, raising=False)
    monkeypatch.setenv(cache.CACHE, str(tmp_path / "cache"))
    for proxy in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.upper(), raising=False)
    return tmp_path


@pytest.fixture
def server(pinned, monkeypatch):
    remote = pinned / "remote" / "someone/repo" / COMMIT / "data" / "some file.txt"
    remote.parent.mkdir(parents=True)
    remote.write_bytes(CONTENT)
    with HTTPServer(("127.0.0.1", 0), partial(Quiet, directory=pinned / "remote")) as http:
        http.paths, http.remote = [], remote
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        monkeypatch.setattr(sentences, "SERVER", f"http://127.0.0.1:{http.server_port}")
        yield http
        http.shutdown()
        thread.join()


def not_fetched(words):
    refused(words, sentences.fetch, "mine")


def test_a_file_is_downloaded_once(server, pinned, monkeypatch):
    monkeypatch.setenv(sentences.DATA, "")  # an empty name of a folder is none
    assert sentences.fetch("mine") == sentences.fetch("mine") == CONTENT
    assert server.paths == [f"/someone/repo/{COMMIT}/data/some%20file.txt"]
    assert (pinned / "cache" / FILE).read_bytes() == CONTENT


def test_a_changed_cache_is_fetched_again(server, pinned):
    (pinned / "cache" / "mine").mkdir(parents=True)
    (pinned / "cache" / FILE).write_bytes(b"half a fi")
    assert sentences.fetch("mine") == CONTENT and len(server.paths) == 1


def test_a_download_that_is_another_file_is_thrown_away(server, pinned):
    server.remote.write_bytes(CONTENT + b"and more")
    not_fetched("another SHA-256.*set TWOTOWERS_DATA to a folder that holds mine/some file.txt")
    assert [p for p in (pinned / "cache").rglob("*") if p.is_file()] == []


def test_a_missing_file_on_the_server_is_refused(server):
    server.remote.unlink()
    not_fetched("HTTPError.*TWOTOWERS_DATA.*mine/some file.txt")


def test_offline_names_the_folder_to_set(pinned, monkeypatch):
    monkeypatch.setattr(
        sentences, "SERVER", "http://127.0.0.1:9"
    )  # nothing listens on the discard port
    not_fetched(
        "cannot be fetched.*ConnectionError.*set TWOTOWERS_DATA to .* holds mine/some file.txt"
    )


def test_a_cache_that_cannot_be_written_is_refused(server, pinned, monkeypatch):
    (pinned / "afile").write_text("")
    monkeypatch.setenv(cache.CACHE, str(pinned / "afile"))
    not_fetched("TWOTOWERS_")


def test_the_users_folder_goes_first_and_is_proved_too(server, pinned, monkeypatch):
    monkeypatch.setenv(sentences.DATA, str(pinned / "own"))
    not_fetched("own' lacks mine/some file.txt: put it there")
    (pinned / "own" / "mine").mkdir(parents=True)
    (pinned / "own" / FILE).write_bytes(CONTENT.replace(b"\n", b"\r\n"))
    not_fetched("not the pinned file")
    (pinned / "own" / FILE).write_bytes(CONTENT)
    assert sentences.fetch("mine") == CONTENT
    assert server.paths == []


def test_every_set_is_pinned():
    assert list(sentences.pins.__wrapped__()) == list(sentences.SETS)
