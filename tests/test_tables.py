"""Stamped tables, the published numbers, and where the data lie."""

import math
import os
from pathlib import Path

import pandas as pd
import pytest
from twotowers import paths
from twotowers.errors import TwoTowersError
from twotowers.stats import tables
from twotowers.stats.tables import load, published, published_value, save

ROOT = Path(__file__).parents[1]
HEADS = pd.DataFrame(
    {"layer": [22, 3], "word": ["NA", "nan"], "increase": [0.1 + 0.2, -1e-17], "note": ["a,\n\"b'", "é"]}
)


@pytest.fixture(autouse=True)
def home(monkeypatch):
    monkeypatch.setenv(paths.HOME, str(ROOT))


def test_a_table_comes_back_exactly_with_its_stamp_first(tmp_path):
    path = save(HEADS, tmp_path / "new" / "runs", "heads", fingerprint="012345678901")
    assert path == tmp_path / "new" / "runs" / "heads.csv"
    assert path.read_text(encoding="utf-8").startswith(
        "model_fingerprint,layer,word,increase,note\n012345678901,22,NA,"
    )
    back = load(path.parent, "heads", fingerprint="012345678901")
    pd.testing.assert_frame_equal(back.drop(columns="model_fingerprint"), HEADS, check_exact=True)
    assert set(back["model_fingerprint"]) == {"012345678901"}
    assert "model_fingerprint" not in HEADS


def test_missing_numbers_stay_missing(tmp_path):
    save(pd.DataFrame({"increase": [1.5, math.nan, math.inf]}), tmp_path, "t", fingerprint="m")
    back = load(tmp_path, "t")["increase"]
    assert back[0] == 1.5 and math.isnan(back[1]) and back[2] == math.inf


def test_another_models_table_is_refused(tmp_path):
    save(HEADS, tmp_path, "heads", fingerprint="gpt2@1")
    with pytest.raises(TwoTowersError, match="gpt2@1, not from gpt2@2: run it again"):
        load(tmp_path, "heads", fingerprint="gpt2@2")
    loaded = load(tmp_path, "heads")
    with pytest.raises(TwoTowersError, match="gpt2@1, not from gpt2@2"):
        save(loaded, tmp_path, "heads", fingerprint="gpt2@2")
    save(loaded, tmp_path, "again", fingerprint="gpt2@1")
    pd.testing.assert_frame_equal(load(tmp_path, "again"), loaded)


def test_an_empty_table_keeps_its_columns(tmp_path):
    save(HEADS.head(0), tmp_path, "none", fingerprint="m")
    assert list(load(tmp_path, "none", fingerprint="m").columns) == ["model_fingerprint", *HEADS.columns]


def test_a_write_that_fails_leaves_the_old_table_and_no_litter(tmp_path, monkeypatch):
    save(HEADS, tmp_path, "heads", fingerprint="m")
    before = (tmp_path / "heads.csv").read_bytes()

    def full(self, path, **how):
        Path(path).write_text("model_f")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    with pytest.raises(TwoTowersError, match="No space left"):
        save(HEADS.head(1), tmp_path, "heads", fingerprint="m")
    assert (tmp_path / "heads.csv").read_bytes() == before
    assert os.listdir(tmp_path) == ["heads.csv"]


def test_folders_that_cannot_be_written_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(TwoTowersError, match=r"cannot write to .*give another folder"):
            tables.writable(folder)
    assert tables.writable(tmp_path / "fine").is_dir() and not os.listdir(tmp_path / "fine")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(TwoTowersError, match="cannot write"):
        save(HEADS, tmp_path, "heads", fingerprint="m")


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a\\b"])
def test_names_with_folders_are_refused(name, tmp_path):
    with pytest.raises(TwoTowersError, match="plain file name"):
        save(HEADS, tmp_path, name, fingerprint="m")


def test_what_is_no_stamped_table_is_refused(tmp_path):
    with pytest.raises(TwoTowersError, match="there is no table"):
        load(tmp_path, "heads")
    (tmp_path / "plain.csv").write_text("layer,head\n1,2\n")
    with pytest.raises(TwoTowersError, match="says not which model"):
        load(tmp_path, "plain")
    (tmp_path / "void.csv").write_text("")
    with pytest.raises(TwoTowersError, match="not a CSV table"):
        load(tmp_path, "void")
    with pytest.raises(TwoTowersError, match="empty"):
        save(HEADS, tmp_path, "heads", fingerprint="")


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
