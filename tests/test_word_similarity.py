"""Similarities of words: the committed files against definitions that need no package, and the
script's functions by hand."""

import itertools

import pandas as pd
import pytest
import torch
from conftest import ROOT
from tolerances import near
from twotowers.tables import read_csv

from training import word_similarity
from training.word_similarity import WordNet

WORDS = read_csv(ROOT / "data/words/words.csv").query("ambiguous == 0")
TABLE = read_csv(ROOT / "data/words/similarity.csv", {"class": str, "first": str, "second": str})
SHARES = ["sentence_embedding", "wordnet", "letters"]


def test_every_pair_of_a_class_has_one_line_in_the_order_of_the_words():
    pairs = [(name, *pair) for name, words in WORDS.groupby("class", sort=False)["word"]
             for pair in itertools.combinations(words, 2)]  # fmt: skip
    assert [*TABLE[["class", "first", "second"]].itertuples(index=False, name=None)] == pairs
    counts = read_csv(ROOT / "data/words/counts.csv")
    assert counts["word"].tolist() == WORDS["word"].tolist() and counts["count"].min() >= 0
    absent = float((counts["count"] == 0).mean())
    assert f"{absent:.0%} of the words" in (ROOT / "data/words/README.md").read_text("utf8")


def test_similarities_are_in_range_and_letters_and_numbers_follow_their_definitions():
    assert TABLE[SHARES].min().min() >= -1 and TABLE[SHARES].max().max() <= 1
    assert (TABLE[["wordnet", "letters"]].min() >= 0).all()
    for row in TABLE.itertuples():
        a, b = ({word[i : i + 2] for i in range(len(word) - 1)} for word in (row.first, row.second))
        near(row.letters, 2 * len(a & b) / (len(a) + len(b)), atol=0.0051)
    numbers = TABLE[TABLE["class"] == "number"]
    assert numbers["log_distance"].notna().all()
    assert TABLE["log_distance"].notna().sum() == len(numbers)
    distances = numbers.set_index(["first", "second"])["log_distance"]
    order = [word for word in WORDS.loc[WORDS["class"] == "number", "word"] if word != "dozen"]
    for first, middle, last in itertools.combinations(order, 3):  # 0 first
        whole = distances[first, middle] + distances[middle, last]
        near(distances[first, last], whole, atol=0.016)
    near(distances["nine", "thousand"], 2, atol=0.0051)
    near(distances["ten", "dozen"], 0.07, atol=0.0051)


def test_known_neighbours_are_near():
    """A shifted column would pass every test of ranges."""
    pairs = TABLE.set_index(["first", "second"])
    for column in ("sentence_embedding", "wordnet"):
        assert pairs.loc[("horse", "cow"), column] > pairs.loc[("horse", "hamster"), column]
        assert pairs.loc[("love", "hate"), column] > pairs.loc[("love", "good"), column]
    assert pairs.loc[("horse", "cow"), "sentence_embedding"] == 0.56
    assert pairs["wordnet"].isna().groupby(TABLE["class"].values).mean().idxmax() == "sentiment"


def test_wordnet_reads_the_format_of_its_tables():
    tables = {
        "index.noun": ["dog n 1 1 @ 1 1 00000002", "cat n 2 1 @ 2 1 00000003 00000005"],
        "index.verb": ["dog v 1 1 @ 1 1 00000007", "run v 1 1 ~ 1 1 00000008"],
        "data.noun": [
            "00000001 03 n 01 animal 0 001 ~ 00000002 n 0000 | an animal",
            "00000002 05 n 02 dog 0 hound 0 002 @ 00000001 n 0000 ~ 00000004 n 0000 | a dog; @",
            "00000003 05 n 01 cat 0 001 @i 00000001 n 0000 | a cat",
            "00000005 18 n 01 cat 1 000 | another",
        ],
        "data.verb": [
            "00000007 38 v 01 dog 0 001 @ 00000008 v 0000 01 + 08 00 | go after",
            "00000008 38 v 01 run 0 000 01 + 08 00 | move fast",
        ],
        "index.sense": ["dog%1:05:00:: 00000002 1 42", "dog%2:38:00:: 00000007 1 2"],
    }
    wordnet = WordNet(tables)
    assert wordnet.meanings["dog"] == ["n00000002", "v00000007"]
    assert wordnet.taxonomy.parents["n00000003"] == ["n00000001"]
    assert wordnet.taxonomy.parents["v00000008"] == ["verbs"]
    assert wordnet.similarity("dog", "cat") == 0.5
    assert wordnet.similarity("dog", "run") == 2 * 2 / (2 * 2 + 1)
    assert wordnet.similarity("dog", "blue") is None
    assert (wordnet.counts["dog"], wordnet.counts["cat"]) == (44, 0)


def test_the_table_of_similarities_is_that_of_its_parts():
    words = pd.DataFrame({"word": ["two", "ten", "one"], "class": ["number", "number", "other"]})
    vectors = torch.eye(3)
    embeddings = {"two": vectors[0], "ten": (vectors[0] + vectors[1]) / 2**0.5, "one": vectors[2]}
    empty = dict.fromkeys(("index.noun", "index.verb", "data.noun", "data.verb", "index.sense"), ())
    (row,) = word_similarity.similarities(words, embeddings, WordNet(empty)).to_dict("records")
    assert (row["class"], row["first"], row["second"]) == ("number", "two", "ten")
    assert row["sentence_embedding"] == pytest.approx(0.5**0.5)
    assert row["wordnet"] is None and row["letters"] == 0
    assert row["log_distance"] == pytest.approx(word_similarity.log_distance("ten", "two"))


def test_another_package_is_refused(tmp_path):
    file = tmp_path / "other.whl"
    file.write_bytes(b"other")
    with pytest.raises(word_similarity.TwoTowersError, match="SHA-256 040bc6629224"):
        word_similarity._package(str(file), word_similarity.SENTENCE_MODEL)


def test_words_of_both_classes_of_a_pair_are_compared():
    words = pd.DataFrame({"word": ["two", "ten", "owl"], "class": ["number", "number", "bird"]})
    embeddings = dict(zip(words["word"], torch.eye(3), strict=True))
    embeddings["owl"] = embeddings["ten"]
    table = word_similarity.pair_similarities(words, ["number/bird"], embeddings)
    assert table.values.tolist() == [
        ["number/bird", "two", "owl", 0.0, 0.0],
        ["number/bird", "ten", "owl", 1.0, 0.0],
    ]
