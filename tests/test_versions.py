"""data/versions.csv says of every measurement what the code says, and what the code was when its version was pinned."""

import shutil

import pytest
from conftest import ROOT
from towerlab.measure import versions
from twotowers import store
from twotowers.paths import HOME
from twotowers.settings import Settings


def test_whoever_changes_what_measures_says_whether_numbers_change():
    assert versions.changed() == {}, (
        "this code is another than when versions were pinned: where numbers change, raise `version` beside the recipe (recorded "
        "files are then refused); then, in any case: twotowers versions --pin"
    )


@pytest.fixture
def lib(tmp_path, monkeypatch):
    """A copy of the sources, to change; and data/versions.csv to write."""
    shutil.copytree(ROOT / "lib", tmp_path / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("words", "sentences"):
        shutil.copytree(ROOT / "data" / name, tmp_path / "data" / name)
    for name in ("versions.csv", "published.csv"):
        shutil.copy(ROOT / "data" / name, tmp_path / "data")
    monkeypatch.setenv(HOME, str(tmp_path))
    monkeypatch.setattr(versions, "LIB", tmp_path / "lib")
    clear()
    yield tmp_path / "lib"
    monkeypatch.undo()
    clear()


def clear():
    for cache in (versions._imports, versions._code, store.catalogue):
        cache.cache_clear()


def change(path, old, new):
    text = path.read_text("utf8")
    assert old in text
    path.write_text(text.replace(old, new), "utf8")
    clear()


def test_comments_and_docstrings_do_not_count_but_code_does(lib):
    towers = lib / "towerlab/measure/towers.py"
    change(towers, '"""The two towers', '"""Both\n\ntowers')
    change(towers, "    check_labels_left(encoded)\n", "    check_labels_left(encoded)  # both kinds\n\n    # and now\n")
    assert versions.changed() == {}
    change(towers, "np.float32", "np.float64")
    assert versions.changed() == {"towers": "sources"}
    versions.pin()
    assert versions.changed() == {}


def test_what_a_measurement_rests_on_counts_and_what_only_loads_does_not(lib):
    change(lib / "towerlab/model/loading.py", "import ", "import antigravity, ")
    assert versions.changed() == {}
    change(lib / "towerlab/model/routes.py", "import torch\n", "import torch\nTWO = 2\n")
    assert versions.changed() == dict.fromkeys(("looks", "label_sources"), "sources")  # which import it
    change(lib / "towerlab/prompts/blocks.py", "rng.permuted(", "rng.permutation(")
    assert versions.changed() == dict.fromkeys(store.catalogue(), "sources")


def test_identity_is_model_settings_texts_and_versions(lib):
    def identity(**fields):
        return store.identity("heads", Settings.of({"model": "x"} | fields), fields.get("model", "x"))

    same = identity()
    assert same == identity(out="elsewhere", device="cuda", device_map="auto")
    others = [identity(model="y"), identity(blocks=51), identity(locate=41), identity(suite="sentences"), identity(dtype="float64")]
    assert len({same, *others}) == 6
    change(lib / "../data/words/words.csv", "cat,", "tomcat,")
    assert identity() != same
    before = identity()
    change(lib / "../data/versions.csv", "forms,1,", "forms,2,")  # which heads needs
    assert identity() != before
