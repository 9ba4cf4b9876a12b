"""What is known of a model without torch: its fingerprint over every byte, its description; the digests behind it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from twotowers.model import catalog, files, store
from twotowers.paths import shipped_models

MINI = shipped_models()["mini-gpt2"]


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of a miniature, under its own name."""
    monkeypatch.setenv("TWOTOWERS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "mini-gpt2"
    folder.mkdir()
    for file in MINI.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_a_fingerprint_follows_every_byte_that_defines_the_model(copy):
    whole = files.fingerprint(str(copy))
    assert whole == files.fingerprint("mini-gpt2")
    assert whole.startswith("mini-gpt2@") and len(whole.split("@")[1]) == 12
    weights = (copy / "model.safetensors").read_bytes()
    end = weights.rindex(b"}", 0, 20_000) + 1
    for at in (end + 8, len(weights) // 2, len(weights) - 1):
        (copy / "model.safetensors").write_bytes(weights[:at] + bytes([weights[at] ^ 1]) + weights[at + 1 :])
        assert files.fingerprint(str(copy)) != whole
    (copy / "model.safetensors").write_bytes(weights)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        text = (copy / name).read_text()
        (copy / name).write_text(text + " ")
        assert files.fingerprint(str(copy)) != whole, name
        (copy / name).write_text(text)
    (copy / "README.md").write_text("another card")
    assert files.fingerprint(str(copy)) == whole
    (copy / "chat_template.jinja").write_text("{{ messages }}")
    assert files.fingerprint(str(copy)) != whole


def test_a_description_says_what_a_banner_needs():
    about = {"model_type": "gpt2", "n_layers": 4, "n_heads": 8, "vocabulary": 2004, "quantisation": "", "chat": False}
    assert files.describe("mini-gpt2") == about


def test_a_description_takes_the_defaults_of_the_class(copy):
    (copy / "config.json").write_text('{"model_type": "gpt2", "vocab_size": 2004}')
    assert files.describe(str(copy))["n_layers"] == 12


def test_neither_loads_torch_nor_fetches_a_catalogued_model():
    code = (
        "import sys; from twotowers.model import files, catalog; from twotowers import cli;"
        "print(files.fingerprint('mini-gpt2'), files.fingerprint('smollm2-135m'), files.describe('smollm2-135m'));"
        "files.check('mini-gpt2'); cli.main(['models']);"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'slow imports'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    known = catalog.models()["smollm2-135m"]
    assert f"smollm2-135m@{known.sha256[:12]}" in done.stdout and "'Q4_1, dequantised'" in done.stdout


def settle(path: Path, seconds: int = 100) -> None:
    """As if the file had been written a while ago."""
    os.utime(path, (time.time() - seconds, time.time() - seconds))


def test_a_digest_is_remembered_until_the_file_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("TWOTOWERS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "SETTLED", -(10**12))
    path = tmp_path / "large"
    path.write_bytes(bytes(store.SMALL))
    settle(path)
    first = store.digest(path)
    (memory,) = (tmp_path / "cache" / "digests").iterdir()
    memory.write_text(memory.read_text().replace(first, "0" * 64))
    assert store.digest(path) == "0" * 64  # it was not read again
    memory.write_text(memory.read_text()[:-1])  # as a full disk would leave it
    assert store.digest(path) == first
    path.write_bytes(bytes(store.SMALL - 1) + b"1")
    settle(path)  # same size, same time of change of its content
    assert store.digest(path) != first


def test_a_file_that_changed_just_now_is_not_remembered(tmp_path, monkeypatch):
    monkeypatch.setenv("TWOTOWERS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "large"
    path.write_bytes(bytes(store.SMALL))
    os.utime(path, (time.time() + 1000, time.time() + 1000))  # the clock was set back
    store.digest(path)
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path, monkeypatch):
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("TWOTOWERS_CACHE", str(tmp_path / "a-file"))
    monkeypatch.setattr(store, "SETTLED", -(10**12))
    path = tmp_path / "large"
    path.write_bytes(bytes(store.SMALL))
    assert store.digest(path) == store.digest(path)


def test_a_folder_is_made_once_and_whole(tmp_path):
    target = tmp_path / "kept"

    def good(folder):
        return (folder / "done").is_file()

    def fails(folder):
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.kept(target, fails, good)
    assert not target.exists() and not list(tmp_path.glob(".*.part"))
    assert store.kept(target, lambda folder: (folder / "done").write_text("1"), good) == target
    store.kept(target, lambda _: pytest.fail("made again"), good)


KILLED = """
import os, sys
from pathlib import Path
from twotowers.model import store
def make(folder):
    (folder / "half").write_text("")
    print("half", flush=True)
    input()
store.kept(Path(sys.argv[1]), make, lambda folder: False)
"""


def test_kill_9_leaves_nothing_broken_and_the_next_call_clears_it(tmp_path):
    target = tmp_path / "kept"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(target)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "half\n"
    (part,) = tmp_path.glob(".*.part")
    other = tmp_path / "other"
    store.kept(other, lambda folder: (folder / "done").write_text(""), lambda folder: (folder / "done").is_file())
    assert part.exists()  # whoever works on it still holds its lock
    process.kill()
    process.communicate()
    assert not target.exists()
    store.kept(target, lambda folder: (folder / "done").write_text(""), lambda folder: (folder / "done").is_file())
    assert [file.name for file in target.iterdir()] == ["done"] and not list(tmp_path.glob(".*.part"))
