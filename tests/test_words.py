"""The word lists: enough classes, enough words, and marks that mean what the card says."""

import csv
import hashlib
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROWS = list(csv.DictReader((Path(__file__).parents[1] / "data/words/words.csv").open(encoding="utf-8")))
CLASSES = defaultdict(list)
for row in ROWS:
    CLASSES[row["class"]].append(row)


def test_columns_and_counts():
    assert list(ROWS[0]) == ["word", "class", "heldout", "ambiguous"]
    assert len(CLASSES) >= 40
    assert {"sentiment", "number", "animal", "country"} <= set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_class(name):
    words = [row["word"] for row in CLASSES[name]]
    assert len(words) >= 30
    assert len(set(words)) == len(words), "a word stands twice in the class"
    assert all(re.fullmatch("[a-z]{2,}", word) for word in words)
    share = sum(row["heldout"] == "1" for row in CLASSES[name]) / len(words)
    assert 0.15 <= share <= 0.25


def test_ambiguous_marks_words_of_several_classes():
    count = Counter(row["word"] for row in ROWS)
    for row in ROWS:
        assert row["ambiguous"] == str(int(count[row["word"]] > 1)), row
        assert row["heldout"] in ("0", "1")
        assert not (row["heldout"] == "1" and row["ambiguous"] == "1"), row


@pytest.mark.parametrize("name", CLASSES)
def test_the_split_is_the_one_the_card_tells(name):
    plain = [row["word"] for row in CLASSES[name] if row["ambiguous"] == "0"]
    plain.sort(key=lambda word: hashlib.sha256(word.encode()).hexdigest())
    expected = set(plain[: round(len(CLASSES[name]) / 5)])
    assert {row["word"] for row in CLASSES[name] if row["heldout"] == "1"} == expected


def test_label_words_are_no_class_words():
    assert not {"foo", "bar"} & {row["word"] for row in ROWS}
