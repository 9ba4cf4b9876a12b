"""Lists of one's own: equal however they were saved. What is wrong in them: test_tables.py."""

import csv
import unicodedata

import pytest
from conftest import ROOT, make_home, refused, replace_in
from towerlab.measure.pipeline import Pipeline
from towerlab.prompts import blocks, sentences
from twotowers import evidence, files, identity, settings
from twotowers.paths import HOME, evidence_folder
from twotowers.settings import Settings, Template

READERS = (
    blocks.class_pairs,
    blocks.words,
    blocks.class_words,
    settings.read_label_pairs,
    sentences.class_pairs,
    sentences.class_texts,
)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A copy of the lists, to change."""
    make_home(tmp_path, "words", "sentences")
    monkeypatch.setenv(HOME, str(tmp_path))
    forget()
    yield tmp_path
    monkeypatch.undo()
    forget()


def forget():
    for reader in READERS:
        reader.cache_clear()


def change(home, file, old, new):
    replace_in(home / "data" / file, old, new)
    forget()


def test_a_list_saved_in_another_way_is_the_same_list(home):
    change(home, "words/words.csv", "coffee,", "café,")
    before = identity.text_digest("words")
    path = home / "data/words/words.csv"
    path.write_bytes(path.read_text("utf8").replace("\n", "\r\n").encode("utf-8-sig"))
    assert identity.text_digest("words") == before
    path.write_bytes(path.read_text("utf-8-sig").encode("utf8"))
    change(home, "words/words.csv", "café", unicodedata.normalize("NFD", "café"))
    assert identity.text_digest("words") == before and "café" in set(blocks.words()["word"])
    change(home, "words/words.csv", "love,", "loves,")
    assert identity.text_digest("words") != before


def test_precomputed_measurements_stay_and_new_ones_are_drawn_from_other_lists(home):
    """One more label pair, class pair, class or stop word, or another word."""
    precomputed = "data/measurements/smollm2-135m"
    (home / precomputed).symlink_to(ROOT / precomputed)
    before = identity.identity_of("heads", Settings(), "m@0")
    for file, more in (
        ("labels.csv", "blick,fnord,nonsense"),
        ("words.csv", "eins,zahl,0,0\nzwei,farbe,0,0"),
        ("pairs.csv", "zahl,farbe"),
        ("stop_words.txt", "fnord"),
    ):
        path = home / "data/words" / file
        path.write_text(f"{path.read_text('utf8')}{more}\n", "utf8")
        forget()
        assert files.open_precomputed("smollm2-135m", "words", "heads") is not None
        # What is measured now is drawn from more.
        assert identity.identity_of("heads", Settings(), "m@0") != before
        before = identity.identity_of("heads", Settings(), "m@0")


def test_a_class_of_two_class_pairs_is_refused(home):
    change(home, "words/pairs.csv", "fruit,tool", "fruit,animal")
    refused(r"pairs\.csv.*class 'animal' twice", blocks.class_pairs)


def test_a_word_of_two_classes_is_drawn_for_neither(home):
    assert "happy" in blocks.class_words()["sentiment"] and "two" in blocks.class_words()["number"]
    change(home, "words/words.csv", "happy,sentiment", "two,sentiment")
    assert "two" not in {word for words in blocks.class_words().values() for word in words}


def test_words_classes_and_labels_that_look_missing_are_words(home):
    change(home, "words/words.csv", "happy,", "null,")
    change(home, "words/words.csv", ",sentiment,", ",NA,")
    change(home, "words/pairs.csv", "sentiment,", "NA,")
    change(home, "words/labels.csv", "foo,bar", "None,nan")
    assert "null" in blocks.class_words()["NA"] and blocks.class_pairs()[0] == "NA/number"
    (prompt, *_) = blocks.draw_blocks(
        1, Template(1, "space"), seed=0, label_pairs=settings.read_label_pairs()[:1]
    )
    assert prompt.dataset == "NA/number" and prompt.labels == ("None", "nan")


def test_a_run_on_sentences_names_what_is_missing(home):
    (home / "data/sentences/own.csv").unlink()
    refused(
        r"sentences/own\.csv",
        getattr,
        Pipeline(Settings.from_values({"suite": "sentences"})).design,
        "class_pairs",
    )


def test_own_sentences_are_drawn_without_a_download(monkeypatch):
    monkeypatch.setattr(sentences, "fetch", lambda name: pytest.fail("a file was fetched"))
    run = Pipeline(Settings(suite="sentences", k=4, separator="space"))
    texts = sentences.class_texts("sentences")
    prompts = run.design.blocks(4, 1)
    assert {p.dataset for p in prompts} == {*sentences.class_pairs("sentences")}
    for p in prompts:
        assert p.query in texts[p.query_class]
        assert all(d.text in texts[d.cls] for d in p.demonstrations)


def own_sentences(home, classes):
    with (home / "data/sentences/own.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("class", "sentence"))
        table.writerows(
            (cls, f"This is sentence {i} of {cls}") for cls in classes for i in range(12)
        )
    forget()


def test_classes_of_own_sentences_are_paired_in_their_order(home):
    own_sentences(home, ("spam", "ham", "news", "art"))
    run = Pipeline(Settings.from_values({"suite": "sentences", "k": 2, "separator": "space"}))
    assert run.design.class_pairs == ("ham/spam", "art/news")
    assert {prompt.dataset for prompt in run.design.blocks(4, 1)} == {*run.design.class_pairs}
    own_sentences(home, ("spam", "ham", "news"))
    refused("even number of classes, got 3 .spam, ham, news", sentences.class_pairs, "sentences")


def test_a_page_without_evidence_says_how_to_make_it(home, monkeypatch):
    monkeypatch.delenv("TWOTOWERS_EVIDENCE", raising=False)
    refused(
        "missing evidence in '.*_build/evidence': run `make book`", evidence.read, evidence_folder()
    )
