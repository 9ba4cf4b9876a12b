"""Models of a Hub of our own, met by the real client in a process of its own.

Exactly the files that transformers reads are fetched, the Hub is asked once, and each refusal has
the reason of the Hub."""

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from test_loading import in_odd_shards

COMMIT = "0" * 39 + "1"
MODEL = "owner/model"
INDEX = "model.safetensors.index.json"
USED = {"config.json", "tokenizer.json", "tokenizer_config.json", INDEX}
SHARDS = {f"model.safetensors-0000{i}-of-00002.safetensors" for i in range(2)}
REFUSALS = {
    401: ("GatedRepo", "Access to model owner/model is restricted. Please log in."),
    403: ("GatedRepo", "Access to model owner/model is restricted. You are not in the list."),
    404: ("RepoNotFound", "Repository not found"),
    429: ("", "You have sent too many requests"),
    503: ("", "Service is under maintenance"),
}


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub's interface as a download uses."""

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        server, path = self.server, self.path.partition("?")[0]
        if (status := re.search(r"owner/(\d+)", path)) or server.status != 200:
            number = int(status[1]) if status else server.status
            code, message = REFUSALS[number]
            return self.answer(number, b"{}", {"X-Error-Code": code, "X-Error-Message": message})
        if MODEL not in path:  # what else the client asks
            return self.answer(404, b"")
        server.asked.append(path)
        if path.startswith(f"/api/models/{MODEL}/tree/"):
            files = server.folder.iterdir()
            sizes = [{"path": file.name, "size": file.stat().st_size} for file in files]
            listed = [{"type": "file", "oid": "0" * 40} | size for size in sizes]
            return self.answer(200, json.dumps(listed).encode())
        if path.startswith("/api/models/"):
            return self.answer(200, json.dumps({"id": MODEL, "sha": COMMIT}).encode())
        content = (server.folder / path.rpartition("/")[2]).read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        return self.answer(200, content, {"X-Repo-Commit": COMMIT, "ETag": etag})

    def answer(self, status, content, headers=None):
        self.send_response(status)
        for name, value in ({"Content-Length": len(content)} | (headers or {})).items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(save):
    """A Hub of one model in two shards, whose names only the index knows."""
    folder = in_odd_shards(save("gpt2"))
    for unused in ("pytorch_model.bin", "model-00001-of-00009.safetensors", "README.md"):
        (folder / unused).write_bytes(b"never read")
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as http:
        http.folder, http.asked, http.status = folder, [], 200
        http.url = f"http://127.0.0.1:{http.server_port}"
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield http
        http.shutdown()


@pytest.fixture
def ask(tmp_path, server):
    """Runs code in a process whose Hub is the server, with a cache of its own."""

    def run(code: str, **environment: str) -> subprocess.CompletedProcess:
        plain = {name: x for name, x in os.environ.items() if "proxy" not in name.lower()}
        plain.pop("HF_HUB_OFFLINE", None)  # as in continuous integration
        cache = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": server.url, "NO_COLOR": "1"}
        return subprocess.run(
            [sys.executable, "-c", f"from towerlab.model import checkpoint, hub, loading; {code}"],
            env=plain | cache | environment, capture_output=True, text=True, timeout=200,
        )  # fmt: skip

    return run


LOAD = f"print(loading.load({MODEL!r}).fingerprint, checkpoint.fingerprint({MODEL!r}))"
CHECK = """
from twotowers.errors import TwoTowersError
hub.PATIENCE = 2
for model in {models}:
    try:
        loading.check(model)
        print(checkpoint.fingerprint(model))
    except TwoTowersError as error:
        print(error)
"""
CHECK_MODEL = CHECK.format(models=[MODEL])


def test_exactly_the_files_that_the_index_names_are_fetched_and_the_hub_is_asked_once(ask, server):
    first = ask(LOAD)
    assert first.returncode == 0, first.stderr
    loaded, computed = first.stdout.split()
    assert loaded == computed and loaded.startswith(f"{MODEL}@")
    fetched = {path.rpartition("/")[2] for path in server.asked if "/resolve/" in path}
    assert fetched == USED | SHARDS
    server.asked.clear()
    assert ask(CHECK_MODEL).stdout.split() == [loaded]
    assert {*server.asked} == {f"/api/models/{MODEL}"}  # for the current commit


def test_a_refusal_has_the_reason_of_the_hub(ask):
    lines = ask(CHECK.format(models=[f"owner/{status}" for status in REFUSALS])).stdout.splitlines()
    reasons = (
        "GatedRepoError: 401 .*Please log in",
        "GatedRepoError: 403 .*You are not in the list",
        "RepositoryNotFoundError: 404",
        "HfHubHTTPError: .*429 .*You have sent too many requests",
        "HfHubHTTPError: .*503 .*under maintenance",
    )
    for line, status, reason in zip(lines, REFUSALS, reasons, strict=True):
        pattern = f"cannot fetch .*'owner/{status}': expected .*mini-gpt2.*got {reason}.*; check .*"
        assert re.fullmatch(pattern, line), line


NETWORKS = [
    ("HF_ENDPOINT", "http://127.0.0.1:1", "ConnectError: .*refused"),
    ("ALL_PROXY", "http://127.0.0.1:1", "ConnectError: .*refused"),
    ("ALL_PROXY", "socks://127.0.0.1:1", "Unknown scheme for proxy"),
    ("ALL_PROXY", "socks5://127.0.0.1:1", "'socksio' package is not "),
    ("SSL_CERT_FILE", "/no/such/file", "No such file"),
    ("HF_HUB_OFFLINE", "1", "offline mode is enabled.*HF_HUB_OFFLINE"),
]


@pytest.mark.parametrize(
    "name, value, words",
    [NETWORKS[0], *(pytest.param(*case, marks=pytest.mark.nightly) for case in NETWORKS[1:])],
)
def test_a_network_without_the_hub_is_named(ask, name, value, words):
    process = ask(CHECK_MODEL, **{name: value})
    pattern = f"cannot fetch the model .*{words}.*; check .*_PROXY and SSL_CERT_FILE.*\n"
    assert re.fullmatch(pattern, process.stdout), process.stdout


def test_a_model_in_the_cache_is_used_when_the_hub_does_not_answer(ask, server):
    whole = ask(CHECK_MODEL).stdout
    assert whole.startswith(f"{MODEL}@")
    server.status = 503
    process = ask(CHECK_MODEL)
    assert process.stdout == whole
    assert "the copy in the cache is used, as the Hub gives none: " in process.stderr
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = ask(CHECK_MODEL, HF_ENDPOINT=address)
    assert process.stdout == whole
    assert "the copy in the cache is used, as the Hub gives none: ReadTimeout" in process.stderr
