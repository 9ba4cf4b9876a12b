"""Sets of sentences: tiny files of every form, written here; and the real files where they are at hand."""

import re
import runpy
from collections import Counter

import pandas as pd
import pytest
from conftest import ROOT, shared
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer
from twotowers.errors import TwoTowersError
from twotowers.prompts import corpora, datasets, download, sentences
from twotowers.prompts.datasets import draw, imbalanced, orders, reordered, swapped_labels
from twotowers.prompts.prompt import Demonstration, Prompt, encode_all

TINY = {
    "sst2": b"1\ta warm and funny film\n0\tdull from start to end\nno label here\n2\tno such label\n",
    "trec": "LOC:city Where is Lund ?\r\nHUM:ind Who wrote the Edda\xf0s ?\r\nXXX:y What ?\r\nNUM\r\n".encode(
        "latin-1"
    ),
    "agnews": b'"4","It #39;s out"," quot;New quot; <TXN.N> phone at \\$9\\now &lt;b&gt;soon&lt;/b&gt;"\n'
    b'"2","Goal, ""late""","Two\nlines"\n"5","no","class"\n"1","two fields"\n',
    "ethos": 'comment;isHate\n"a; b";0.5\nthey aren’t bad;0.49\nbad;1.0\nno share;x\n'
    "√¢¬Ä¬ôtis;0.0\ntwo;0.1;3\nbig;1.5\ndonâ\x80\x99t x\x99y;0.0".encode(),
    "financial": "Sales of J+ñrvi @ home rose .@positive\nA+B -5 -á6 .@neutral\nodd@line\n@negative".encode("latin-1"),
    "amazon": b"__label__1 Bad: it broke\n__label__2 Good: it: works\n__label__3 Odd: x\nno label\n",
}
READ = {
    "sst2": [("positive", "a warm and funny film"), ("negative", "dull from start to end")],
    "trec": [("location", "Where is Lund ?"), ("human", "Who wrote the Eddaðs ?")],
    "agnews": [("technology", 'It\'s out "New" <TXN.N> phone at $9 now  soon '), ("sports", 'Goal, "late" Two\nlines')],
    "ethos": [("hate", "a; b"), ("acceptable", "they aren’t bad"), ("hate", "bad"), ("acceptable", "’tis"),
              ("acceptable", "don’t x\x99y")],
    "financial": [("positive", "Sales of Järvi @ home rose ."), ("neutral", "A+B -5 \xa06 ."), ("negative", "")],
    "amazon": [("negative", "Bad: it broke"), ("positive", "Good: it: works")],
}  # fmt: skip


@pytest.mark.parametrize("name", corpora.SETS)
def test_every_form_is_read_and_odd_rows_stay_visible(name):
    one = corpora.SETS[name]
    found = list(one.read(TINY[name]))
    assert [(row.cls, one.mend(row.text)) for row in found if row.cls] == READ[name]
    odd = {"sst2": 2, "trec": 2, "agnews": 2, "ethos": 3, "financial": 1, "amazon": 2}
    assert sum(not row.cls for row in found) == odd[name]
    assert [row.text for row in found if row.undecided] == (["a; b"] if name == "ethos" else [])


@pytest.mark.parametrize(
    ("mend", "text"),
    [
        (corpora.mend_agnews, "AT&T #5 up; <EM.N> <A.N> a < b"),
        (corpora.mend_ethos, "naïve, they’re “here” in Ñuñoa 😀"),
        (corpora.mend_financial, "A+B, +5 -3 -- 'ñ' é"),
    ],
)
def test_what_is_whole_is_left_alone(mend, text):
    assert mend(text) == text


@given(st.text(st.characters(min_codepoint=0xA0, max_codepoint=0xFF), min_size=1, max_size=8))
def test_broken_letters_come_back(letters):
    twice = letters.encode().decode("latin-1").encode().decode("mac_roman")
    assert corpora.mend_ethos(twice) == letters
    broken = "".join("-+"[ord(c) >= 0xC0] + bytes([0x80 + ord(c) % 64]).decode("cp850") for c in letters)
    mended = corpora.mend_financial(broken.replace("-┤", "-¦"))
    assert mended == letters.replace("´", "'")


def test_rows_are_kept_or_counted():
    raw = b"1\tA fine\tfilm\n1\ta FINE film!\n0\tso so\n1\tso, so\n1\tso so.\n1\t?!\n"
    raw += b"0\tbad\xc2\xa0 \x07 one\nodd\n1\tone more\n"
    test = b"0\tone more\n1\tanother thing\n"
    table, counts = sentences.prepare("sst2", {"train": raw, "test": test})
    assert list(table.itertuples(index=False, name=None)) == [
        ("A fine film", "positive", "pool", "train", 0),
        ("bad one", "negative", "pool", "train", 6),
        ("one more", "negative", "input", "test", 0),
        ("another thing", "positive", "input", "test", 1),
    ]
    train = counts[counts["file"] == "train"].set_index("what")["rows"]
    whole = {sentences.UNREADABLE: 1, sentences.WORDLESS: 1, sentences.REPEATED: 1, sentences.CONTRADICTED: 3}
    assert {what: train[what] for what in whole} == whole
    assert (train[sentences.NEAR], train[sentences.CONTROL], train["rows in the file"]) == (1, 1, 9)
    assert train["rows in the file"] == train[list(sentences.LEFT_OUT)].sum() + train["pool"].sum()
    assert sentences.UNDECIDED not in train


def test_one_file_is_split_by_every_fourth_row_of_a_class():
    lines = [f"__label__{1 + i % 2} text number {i} {'abcdefghijkl'[i]}".encode() for i in range(12)]
    table, counts = sentences.prepare("amazon", {"all": b"\n".join(lines)})
    assert table.loc[table["part"] == "pool", "line"].tolist() == [0, 1, 8, 9]
    assert counts[counts["what"] == "input"].set_index("class")["rows"].to_dict() == {"negative": 4, "positive": 4}


TEXTS = st.lists(st.text("ab c", max_size=12), max_size=6)


@given(TEXTS, TEXTS)
def test_near_texts_against_comparing_all_pairs(pool, inputs):
    def pieces(text):
        found = text.split()
        return {tuple(found[i : i + 3]) for i in range(len(found) - 2)} or {tuple(found)}

    def is_near(a, b):
        return len(pieces(a) & pieces(b)) / len(pieces(a) | pieces(b)) >= 0.5

    slow = [i for i, text in enumerate(pool) if any(is_near(text, other) for other in inputs)]
    assert sentences.near(pool, inputs) == slow


def made(pool=4, inputs=3, classes=("location", "human", "number")):
    made = [(f"{part} {cls} {i}", cls, part) for cls in classes for part, n in (("pool", pool), ("input", inputs))
            for i in range(n)]  # fmt: skip
    return pd.DataFrame(made, columns=["text", "class", "part"])


def test_prompts_of_a_pair():
    prompts = draw("trec:location/human", 7, table=made())
    for p in prompts:
        assert [d.label for d in p.demonstrations] == ["bar", "bar", "foo", "foo"]
        assert [d.cls for d in p.demonstrations] == ["location", "location", "human", "human"]
        assert all(d.text.startswith(f"pool {d.cls}") for d in p.demonstrations) and p.query.startswith("input human")
        assert len({d.text for d in p.demonstrations}) == 4
        assert (p.cls, p.true_label, p.dataset) == ("human", "foo", "trec:location/human")
    assert sorted(Counter(p.query for p in prompts).values()) == [2, 2, 3]
    assert len({p.query for p in prompts[:3]}) == len({p.query for p in prompts[3:6]}) == 3
    assert prompts == draw("trec:location/human", 7, table=made())
    assert prompts != draw("trec:location/human", 7, seed=1, table=made())
    swapped = draw("trec:location/human", 7, true_label="bar", table=made())
    assert swapped == [swapped_labels(p) for p in prompts]
    assert len(draw("trec:location/human", 2, k=4, table=made())[0].demonstrations) == 8


def test_every_prompt_of_a_pair_there_is_once():
    # 3 inputs, 4 * 3 ways for the false demonstrations and as many for the true ones
    prompts = draw("trec:location/human", 3 * 12 * 12, table=made())
    assert len({p.text for p in prompts}) == 432
    with pytest.raises(TwoTowersError, match="there are 432: ask for 432 or fewer"):
        draw("trec:location/human", 433, table=made())


def test_a_bare_name_asks_about_every_class_against_every_other():
    table = made(classes=corpora.SETS["trec"].classes)
    table = table[(table["class"] != "abbreviation") | (table["text"] != "input abbreviation 2")]
    prompts = draw("trec", 17 * 5, table=table)
    assert len({p.query for p in prompts[:17]}) == 17
    per_query = {}
    for p in prompts:
        assert [d.cls for d in p.demonstrations[2:]] == [p.cls, p.cls]
        per_query.setdefault(p.query, set()).add(p.demonstrations[0].cls)
        assert p.demonstrations[0].cls == p.demonstrations[1].cls != p.cls
    assert all(len(others) == 5 for others in per_query.values())


def test_every_demonstration_has_its_share():
    prompts = [p for seed in range(60) for p in draw("trec:location/human", 9, seed=seed, table=made())]
    first = Counter(p.demonstrations[0].text for p in prompts)  # 540 draws of 4
    assert len(first) == 4 and all(abs(n - 135) < 50 for n in first.values())  # five standard deviations


def test_variants_work_on_sentences():
    prompt = draw("trec:location/human", 1, table=made())[0]
    assert len(imbalanced(prompt).demonstrations) == 3 and len(orders(prompt)) == 6
    assert reordered(prompt).is_true == (True, True, False, False)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: draw("trec:location/people", 1), "unknown pair 'location/people' of trec.*abbreviation.*number"),
        (lambda: draw("trec:human/human", 1), "unknown pair"),
        (lambda: draw("trec:", 1), "unknown pair ''"),
        (lambda: draw("sst3", 1), "unknown dataset 'sst3'.*sst2, trec, agnews"),
        (lambda: draw("animal:cat/dog", 1), "unknown dataset"),
        (lambda: sentences.rows("sst3"), "unknown set of sentences 'sst3'.*sst2"),
        (lambda: draw("trec:location/human", 1, k=5, table=made()), "k=5 needs 5 demonstrations.*location.*has 4"),
        (lambda: draw("trec", 1, table=made()), "demonstrations of the class abbreviation and trec has 0"),
        (lambda: draw("trec:location/human", 1, table=made(inputs=0)), "there are 0"),
        (lambda: draw("trec:location/human", 1, words="heldout", table=made()), "words='heldout'"),
        (lambda: sentences.fit([], None, 5, "cut"), "long='cut'"),
    ],
)
def test_refusals_name_the_remedy(call, words):
    with pytest.raises(TwoTowersError, match=words) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module", params=["gpt2", "llama2"])
def tokenizer(request):
    return AutoTokenizer.from_pretrained(shared(f"tokenizers/{request.param}"))


def test_long_prompts_are_dropped_or_truncated_and_counted(tokenizer):
    def prompt(*texts):
        labels = ("bar", "foo")
        shown = tuple(Demonstration(t, label) for t, label in zip(texts, labels, strict=False))
        return Prompt(shown, texts[-1], "foo", ("foo", "bar"))

    short, long = prompt("a b c", "d e", "f"), prompt("a b c", "word " * 99 + "word", "unlikely — naïve " * 20 + "end")
    hopeless, special = prompt("x", "y", "z"), prompt("a", f"b {tokenizer.eos_token} c", "d")
    most = len(encode_all([short], tokenizer)[0].ids)
    kept, counts = sentences.fit([short, long, special], tokenizer, most)
    assert kept == [short] and counts["prompts"].tolist() == [1, 1, 1, 0]
    kept, counts = sentences.fit([short, long, special], tokenizer, 40, "truncate")
    assert counts["prompts"].tolist() == [1, 1, 0, 1] and kept[0] == short
    cut = kept[1]
    assert cut.demonstrations[0] == long.demonstrations[0]  # the short text is whole
    assert long.query.startswith(cut.query) and long.demonstrations[1].text.startswith(cut.demonstrations[1].text)
    size = len(encode_all([cut], tokenizer, 40)[0].ids)
    assert 40 - size <= 4  # two texts shrink together, a token or two at a time
    assert sentences.fit([hopeless], tokenizer, 3, "truncate")[1]["prompts"].tolist() == [0, 0, 1, 0]
    assert sentences.fit([], tokenizer, 3)[0] == []


@pytest.fixture
def real(monkeypatch):
    monkeypatch.setenv(download.DATA, str(shared("datasets")))


@pytest.mark.parametrize("name", corpora.SETS)
def test_the_real_sets_are_whole(name, real):
    classes = corpora.SETS[name].classes
    table, counts = sentences.rows(name), sentences.report(name)
    assert set(table["class"]) == set(classes)
    assert (counts["rows"] >= 0).all() and counts[counts["what"] == sentences.UNREADABLE]["rows"].sum() == 0
    total = counts.groupby("what")["rows"].sum()
    assert total["rows in the file"] == total[list(sentences.LEFT_OUT)].sum() + len(table)
    assert all(text == " ".join(text.split()) for text in table["text"])
    assert not table["text"].str.contains(r"[\x00-\x1f\x7f-\x9f]|#39;|√¢|\+ñ").any()
    keys = {part: {sentences.words(t) for t in group["text"]} for part, group in table.groupby("part")}
    assert not keys["pool"] & keys["input"]


@pytest.mark.parametrize("name", corpora.SETS)
def test_the_real_sets_give_a_thousand_prompts(name, real):
    table = sentences.rows(name)
    part = {text: (p, c) for text, p, c in zip(table["text"], table["part"], table["class"], strict=True)}
    for full in (name, f"{name}:{'/'.join(corpora.SETS[name].classes[:2])}"):
        datasets.check_name(full)
        prompts = draw(full, 1000)
        assert len({p.text for p in prompts}) == 1000
        for p in prompts:
            assert part[p.query] == ("input", p.cls) and p.is_true == (False, False, True, True)
            assert all(part[d.text] == ("pool", d.cls) for d in p.demonstrations)
        inputs = (table["part"] == "input") & (table["class"].isin({p.cls for p in prompts}))
        assert len({p.query for p in prompts}) == min(1000, inputs.sum())


@pytest.mark.slow
@pytest.mark.parametrize("name", corpora.SETS)
def test_real_prompts_are_encoded(name, real, tokenizer):
    prompts = draw(name, 30)
    assert len(encode_all(prompts, tokenizer)) == 30
    kept, counts = sentences.fit(prompts, tokenizer, 150, "truncate")
    assert counts["prompts"].sum() == 30 and max(len(e.ids) for e in encode_all(kept, tokenizer, 150)) <= 150


def test_the_published_sizes(real):
    sizes = {name: sentences.report(name).query("what == 'rows in the file'")["rows"].tolist() for name in corpora.SETS}
    assert sizes == {"sst2": [6920, 1821], "trec": [5452, 500], "agnews": [7600], "ethos": [998], "financial": [2264],
                     "amazon": [1000]}  # fmt: skip
    ethos = corpora.read_ethos(download.fetch("ethos/Ethos_Dataset_Binary.csv"))
    assert Counter(row.cls for row in ethos) == {"hate": 433, "acceptable": 565}


def test_the_card_is_what_the_files_give(real):
    card = runpy.run_path(str(ROOT / "data/sentences/make_card.py"))["card"]()
    assert (ROOT / "data/sentences/README.md").read_text(encoding="utf-8") == card


def test_the_card_names_every_set_licence_and_file():
    card = (ROOT / "data/sentences/README.md").read_text(encoding="utf-8")
    about = pd.read_csv(ROOT / "data/sentences/sets.csv").set_index("set")
    assert list(about.index) == list(corpora.SETS)
    for name in corpora.SETS:
        section = card.split(f"## `{name}`: ")[1].split("\n## ")[0]
        assert about.loc[name, "licence"] in section
        for pin in download.pins().query("set == @name").itertuples():
            assert pin.file in section and pin.commit[:12] in section and pin.sha256[:16] in section
        assert set(re.findall(r"^\| (\w+) \| [\d,]+ \| [\d,]+ \|$", section, re.MULTILINE)) == set(
            corpora.SETS[name].classes
        )


def test_a_missing_file_of_the_users_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv(download.DATA, str(tmp_path))
    sentences._read.cache_clear()
    with pytest.raises(TwoTowersError, match=r"lacks trec/train_5500.label.txt"):
        draw("trec", 1)
