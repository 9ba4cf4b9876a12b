"""Sets of sentences: tiny files of every form, written here; and the published files where they are
at hand."""

import pytest
from towerlab.measure.pipeline import Pipeline
from towerlab.prompts import sentences
from twotowers.settings import Settings

FILES = {
    "sst2": (b"0\tDull .\n1\tA joy\n\nbroken\n", [("negative", "Dull ."), ("positive", "A joy")]),
    "trec": ("HUM:ind Who is Zoë ?\r\nXXX:a b\r\n".encode("latin-1"), [("human", "Who is Zoë ?")]),
    "agnews": (
        b'"2","Cup ""final""","It is on\\"\n9,a,b\n',
        [("sports", 'Cup "final" It is on\\')],
    ),
    "ethos": (
        b"comment;isHate\nyou; 0.5\nyou;0.5\nnice;0.49\nno;2\n",
        [("hate", "you"), ("acceptable", "nice")],
    ),
}


@pytest.mark.parametrize("name", sentences.SETS)
def test_every_form_of_file_is_read_and_other_lines_are_left_out(name):
    raw, expected = FILES[name]
    assert list(sentences.labelled_texts(name, raw)) == expected


def test_repeats_and_texts_of_two_classes_are_left_out():
    content = (
        b"0\tgood one\n1\tfine  film\n1\tFine film!\n"
        b"0\tboth ways\n1\tboth ways\n0\t...\nbroken\n1\t" + b"long " * 61
    )
    assert sentences.usable("sst2", content) == {
        "sst2 negative": ["good one"],
        "sst2 positive": ["fine film"],
    }


def test_own_sentences_are_drawn_without_a_download(monkeypatch):
    monkeypatch.setattr(sentences, "fetch", lambda name: pytest.fail("a file was fetched"))
    run = Pipeline(Settings(suite="sentences", k=4, separator="space"))
    texts = sentences.class_texts("sentences")
    prompts = run.design.blocks(4, 1)
    assert {p.dataset for p in prompts} == set(sentences.class_pairs("sentences"))
    assert all(
        p.query in texts[p.query_class] and all(d.text in texts[d.cls] for d in p.demonstrations)
        for p in prompts
    )
