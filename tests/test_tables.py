"""Saved tables and their provenance, the published numbers, and where the data lie."""

import errno
import math
import os
from pathlib import Path

import pandas as pd
import pytest
from twotowers import paths
from twotowers.errors import TwoTowersError
from twotowers.paper.published import published, published_value
from twotowers.stats import tables
from twotowers.stats.tables import load, provenance_of, save

ROOT = Path(__file__).parents[1]
TOLD = {"study": "03-mrr-heads", "model": "gpt2@0123"}
HEADS = pd.DataFrame(
    {"layer": [22, 3], "word": ["NA", "nan"], "increase": [0.1 + 0.2, -1e-17], "note": ["a,\n\"b'", "é"]}
)


@pytest.fixture(autouse=True)
def home(monkeypatch):
    monkeypatch.setenv(paths.HOME, str(ROOT))


def test_a_table_comes_back_exactly_with_its_provenance(tmp_path):
    path = save(HEADS, tmp_path / "new" / "runs", "heads", TOLD)
    assert path == tmp_path / "new" / "runs" / "heads.csv"
    back = load(path.parent, "heads")
    pd.testing.assert_frame_equal(back, HEADS, check_exact=True)
    assert back.attrs["provenance"].items() >= TOLD.items()
    assert back[["word"]].copy().attrs["provenance"] is back.attrs["provenance"], "not copied at each step"
    others = pd.read_csv(path, skiprows=1, keep_default_na=False)
    pd.testing.assert_frame_equal(others, HEADS)
    assert save(HEADS, tmp_path, "again", TOLD).read_bytes() == path.read_bytes(), "same table, same bytes"


def test_missing_numbers_stay_missing(tmp_path):
    save(pd.DataFrame({"increase": [1.5, math.nan, math.inf]}), tmp_path, "t", TOLD)
    back = load(tmp_path, "t")["increase"]
    assert back[0] == 1.5 and math.isnan(back[1]) and back[2] == math.inf


def test_an_empty_table_keeps_its_columns(tmp_path):
    save(HEADS.head(0), tmp_path, "none", TOLD)
    assert list(load(tmp_path, "none").columns) == list(HEADS.columns)
    save(pd.DataFrame(), tmp_path, "void", TOLD)
    assert load(tmp_path, "void").empty


@pytest.mark.parametrize("change", [
    lambda b: b[:-9], lambda b: b.replace(b"22", b"23"), lambda b: b + b"4,x,1,y\n", lambda b: b.split(b"\n")[0] + b"\n",
])  # fmt: skip
def test_a_table_that_was_cut_or_edited_is_named_and_not_used(tmp_path, change):
    path = save(HEADS, tmp_path, "heads", TOLD)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(TwoTowersError, match=r"heads.csv' is damaged or was edited: delete it"):
        load(tmp_path, "heads")


@pytest.mark.parametrize("content", [b"", b"layer,head\n1,2\n", b"# []\n", b"# {}\n1\n", b"\xff\xfe\n", b'# {"sha'])
def test_what_says_not_where_it_comes_from_is_refused(tmp_path, content):
    (tmp_path / "plain.csv").write_bytes(content)
    with pytest.raises(TwoTowersError, match="says not where it comes from"):
        load(tmp_path, "plain")


def test_a_table_that_is_not_there_is_named(tmp_path):
    with pytest.raises(TwoTowersError, match="there is no table"):
        provenance_of(tmp_path / "heads.csv")


def test_a_write_that_fails_leaves_the_old_table_and_no_litter(tmp_path, monkeypatch):
    save(HEADS, tmp_path, "heads", TOLD)
    before = (tmp_path / "heads.csv").read_bytes()

    def full(self, content):
        with open(self, "wb") as file:
            file.write(content[:7])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(TwoTowersError, match="No space left"):
        save(HEADS.head(1), tmp_path, "heads", TOLD)
    assert (tmp_path / "heads.csv").read_bytes() == before
    assert os.listdir(tmp_path) == ["heads.csv"]


def test_leftovers_of_killed_writers_are_cleared_and_of_living_ones_kept(tmp_path):
    (tmp_path / ".heads.csv.999999999.part").write_text("half")
    (tmp_path / f".heads.csv.{os.getppid()}.part").write_text("still writing")
    save(HEADS, tmp_path, "heads", TOLD)
    assert sorted(os.listdir(tmp_path)) == sorted([f".heads.csv.{os.getppid()}.part", "heads.csv"])


def test_folders_that_cannot_be_written_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(TwoTowersError, match=r"cannot write to .*give another folder"):
            tables.writable(folder)
    assert tables.writable(tmp_path / "fine").is_dir() and not os.listdir(tmp_path / "fine")


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a\\b"])
def test_names_with_folders_are_refused(name, tmp_path):
    with pytest.raises(TwoTowersError, match="plain file name"):
        save(HEADS, tmp_path, name, TOLD)


def test_published_numbers():
    everything = published()
    assert list(everything.columns) == ["source", "model", "where", "quantity", "value", "note"]
    table_2 = published("v1 table 2")
    assert len(table_2) == 8 and set(table_2["quantity"]) == {"accuracy"}
    assert published("IMBALANCED")["source"].tolist() == ["v1 section 5.1"]
    with pytest.raises(TwoTowersError, match="v1 table 2"):
        published("v1 table 99")


def test_one_published_value():
    assert published_value("v1 table 2", where="animal/country true=foo")["value"] == "1.00"
    assert published_value("EMNLP abstract", "majority label bias")["value"] == "0.22"
    assert published_value("v1 section 4.2")["value"] == "18-31"
    assert published_value("EMNLP table 4 (second-hand)", where="fooheads")["value"] == "0.26 to 0.32"
    with pytest.raises(TwoTowersError, match="8 published rows match source 'v1 table 2', quantity 'accuracy'"):
        published_value("v1 table 2", "accuracy")
    with pytest.raises(TwoTowersError, match="nothing published"):
        published_value("v1 table 2", "loss")


def test_data_lie_beside_an_editable_package(monkeypatch):
    monkeypatch.delenv(paths.HOME)
    beside = Path(paths.__file__).resolve().parents[2] == ROOT.resolve()
    if not beside:
        pytest.skip("the package under test is not this repository's")
    assert paths.data_folder() == ROOT.resolve() / "data"


def test_data_that_are_not_found(monkeypatch, tmp_path):
    monkeypatch.setenv(paths.HOME, str(tmp_path))
    for look in (paths.data_folder, paths.shipped_models):
        with pytest.raises(TwoTowersError, match=r"TWOTOWERS_HOME=.*root"):
            look()
    monkeypatch.delenv(paths.HOME)
    monkeypatch.setattr(paths, "__file__", str(tmp_path / "site-packages" / "twotowers" / "paths.py"))
    with pytest.raises(TwoTowersError, match="pip install -e"):
        paths.data_folder()
    assert paths.shipped_models() == {}


def test_shipped_models_are_folders_with_a_config(monkeypatch, tmp_path):
    for name in ("data/models/b", "data/models/a", "data/models/no-config"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("data/published.csv", "data/models/b/config.json", "data/models/a/config.json"):
        (tmp_path / name).write_text("")
    monkeypatch.setenv(paths.HOME, str(tmp_path))
    assert list(paths.shipped_models().items()) == [(n, tmp_path.resolve() / "data/models" / n) for n in "ab"]
