"""What every chapter refuses before its model loads, in one line that names the remedy."""

from dataclasses import replace

import pytest
from conftest import shared
from transformers import AutoTokenizer
from twotowers.chapters.chapter import Chapter, at_least_two, check_parameters, counted, length_variants, open_chapter
from twotowers.errors import TwoTowersError
from twotowers.model import loading
from twotowers.prompts import datasets, sentences
from twotowers.prompts.datasets import counterbalanced, imbalanced, orders, swapped_labels, with_other_class_text
from twotowers.prompts.prompt import Demonstration, Prompt

GOOD = {
    "model": "mini-gpt2", "datasets": ["animal/country"], "n_prompts": 20, "labels": ["foo", "bar"], "norm": "frozen",
    "top_k": 5, "seed": 0, "device": "cpu", "dtype": "float32",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("n_prompts", 0, "at least 1"),
        ("n_prompts", -3, "at least 1"),
        ("n_prompts", "many", "at least 1"),
        ("n_promts", 20, "did you mean 'n_prompts'"),
        ("labels", ["foo", "foo"], "two different"),
        ("labels", "foo", "two different"),
        ("norm", "frosen", "choose one of frozen"),
        ("datasets", ["animal/nothing"], "unknown dataset"),
        ("seed", -1, "at least 0"),
        ("top_k", 0, "at least 1"),
        ("k", 0, "at least 1"),
        ("k", True, "at least 1"),
        ("long", "cut", "choose drop or truncate"),
        ("device_map", "cuda", "unknown device_map 'cuda': choose one of auto"),
        ("model", "", "give a word"),
    ],
)
def test_bad_parameters_are_refused_in_one_line(tmp_path, name, value, says):
    with pytest.raises(TwoTowersError, match=says) as refusal:
        open_chapter("01-locate", GOOD | {"out": str(tmp_path), name: value})
    assert "\n" not in str(refusal.value)


def test_an_out_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TwoTowersError, match="give another folder"):
        open_chapter("01-locate", GOOD | {"out": str(tmp_path / "file" / "out")})


def test_lists_may_come_as_the_strings_that_papermill_passes():
    checked = check_parameters({"labels": "foo,bar", "datasets": "['animal/country', 'country/animal']"})
    assert checked == {"labels": ["foo", "bar"], "datasets": ["animal/country", "country/animal"]}


def test_only_plain_names_of_a_notebook_count_as_parameters(tmp_path):
    scope = GOOD | {"out": str(tmp_path), "_hidden": 1, "In": [], "pytest": pytest, "print": print}
    chapter = open_chapter("01-locate", scope)
    assert chapter.n_prompts == 20 and set(chapter.parameters) == set(GOOD) | {"out"}


def test_a_model_that_does_not_learn_is_named_and_one_that_does_is_not(monkeypatch):
    said = []
    monkeypatch.setattr("twotowers.chapters.chapter.Chapter.here", lambda self, text: said.append(text))
    chapter = Chapter("02-project", {})
    chapter.caution(0.5)
    assert not said
    chapter.caution(0.12)
    assert "12%, is below the 50%" in said[0]


def test_a_device_map_is_one_of_the_words_or_none_and_not_beside_a_device(monkeypatch):
    monkeypatch.setattr(loading, "find_spec", lambda name: object())  # as if accelerate were installed
    for given, found in (("", None), (None, None), ("none", None), ("auto", "auto")):
        assert check_parameters({"device_map": given}) == {"device_map": found}
    assert check_parameters({"device": "cpu", "device_map": "auto"})["device_map"] == "auto"
    with pytest.raises(TwoTowersError, match=r"device=cuda and device_map=auto: .* give one"):
        check_parameters({"device": "cuda", "device_map": "auto"})
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    with pytest.raises(TwoTowersError, match="pip install accelerate"):
        check_parameters({"device_map": "auto"})


def test_a_chapter_that_needs_more_says_so_before_the_model_loads(tmp_path):
    with pytest.raises(TwoTowersError, match="n_prompts=2: this chapter needs at least 3 prompts a set"):
        open_chapter("05-x", GOOD | {"out": str(tmp_path), "n_prompts": 2}, least=3)
    for k in (1, 5):
        with pytest.raises(TwoTowersError, match=f"k={k}: this chapter takes one away"):
            open_chapter("05-x", GOOD | {"out": str(tmp_path), "k": k}, own={"k": at_least_two})


def test_counts_that_differ_are_a_range():
    assert (counted([20, 20]), counted(iter([20, 1700, 17]))) == ("20", "17 to 1,700")


# --- prompts that the model cannot read -------------------------------------------------------------------------------

LENGTHS = (1, 2, 3, 5, 8, 13, 21)  # words of a text, so that prompts have many lengths


def text(i):
    """In GPT-2 the first word of some texts takes more tokens where no space stands before it."""
    return " ".join([("unquestionably", "one")[i % 2]] + [f"w{i}"] * LENGTHS[i % len(LENGTHS)])


def drawn(name, n, *, labels, true_label, k, **_):
    """Prompts of texts of many lengths; the labels have other numbers of tokens, too."""
    true_label = true_label or labels[0]
    other = labels[1 - labels.index(true_label)]
    out = []
    for i in range(n):
        texts = [text(5 * i + 3 * j + i // 7) for j in range(2 * k + 1)]
        shown = [Demonstration(t, other if j < k else true_label, "ab"[j >= k]) for j, t in enumerate(texts[:-1])]
        out.append(Prompt(tuple(shown), texts[-1], true_label, labels, "b", name))
    return out


@pytest.fixture(params=["gpt2", "llama2"])
def reader(request, monkeypatch):
    """A function that gives a chapter whose model reads `context` tokens, and what it says."""
    tokenizer = AutoTokenizer.from_pretrained(shared(f"tokenizers/{request.param}"))
    monkeypatch.setattr(datasets, "draw", drawn)
    said = []
    monkeypatch.setattr(Chapter, "here", lambda self, text: said.append(text))

    def make(context, **given):
        least = given.pop("least", 2)
        chapter = Chapter("04-x", {"n_prompts": 40, "labels": ["foo", "bar"], "seed": 0} | given, least)
        chapter.__dict__["loaded"] = type("M", (), {"tokenizer": tokenizer, "context": context, "name": "m"})()
        return chapter

    return make, said


def sizes(prompts, chapter):
    return [len(e.ids) for e in chapter.encode(prompts)]


@pytest.mark.parametrize("long", ["drop", "truncate"])
def test_every_form_of_a_prompt_that_is_kept_can_be_read_and_has_its_texts(reader, long):
    make, said = reader
    everything = sorted(sizes(make(9999).prompts("some"), make(9999)))
    context = everything[len(everything) // 2]
    chapter = make(context, long=long)
    kept = chapter.prompts("some")
    other = chapter.prompts("some", "bar")
    assert [swapped_labels(p) for p in kept] == other  # paired over true labels
    assert 0 < len(kept) < 40 if long == "drop" else len(kept) == 40
    for forms in (counterbalanced(kept), [o for p in kept for o in orders(p)], [imbalanced(p) for p in kept]):
        assert max(sizes(forms, chapter)) <= context
    assert len(said) == 1 and said[0].startswith(f"some: 40 prompts asked for, {len(kept)} used: ")
    left = int(said[0].split(": ")[2].split()[0])
    assert left == (40 - len(kept) if long == "drop" else len([p for p in kept if p not in set(drawn_plainly())]))
    assert 0 < left < 40
    chapter.prompts("some", n=7)
    assert len(said) == 1


def drawn_plainly():
    return drawn("some", 40, labels=("foo", "bar"), true_label=None, k=2)


def test_a_prompt_that_is_too_long_in_one_order_only_is_left_out_of_all(reader):
    """The limit lies between the lengths of two orders of the same prompt."""
    make, _ = reader
    free = make(9999)
    prompt = next((p for p in drawn_plainly() if len(set(sizes(orders(p), free))) > 1), None)
    if prompt is None:
        pytest.skip("this tokenizer gives a text the same tokens wherever it stands")
    short, long = min(s := sizes(orders(prompt), free)), max(s)
    for context, kept in ((long, 1), (long - 1, 0)):
        for form in orders(prompt):
            assert len(sentences.fit([form], free.loaded.tokenizer, context, "drop", length_variants)[0]) == kept
    alone = [orders(prompt)[s.index(short)]]
    assert sentences.fit(alone, free.loaded.tokenizer, long - 1)[0] == alone


def test_nothing_is_said_when_all_fit(reader):
    make, said = reader
    assert len(make(9999).prompts("some")) == 40 and not said


def test_forms_with_texts_of_other_prompts_lose_the_same_prompts(reader):
    make, said = reader
    prompts = make(9999).prompts("some")[:12]
    forms = [prompts, with_other_class_text(prompts), *(with_other_class_text(prompts, place) for place in range(4))]
    lengths = [sizes(form, make(9999)) for form in forms]
    context = sorted(map(max, zip(*lengths, strict=True)))[5]
    together = make(context).together(*forms)
    keep = [i for i in range(12) if max(one[i] for one in lengths) <= context]
    assert 0 < len(keep) < 12
    assert [[e.prompt for e in form] for form in together] == [[form[i] for i in keep] for form in forms]
    assert said == [
        f"12 prompts are compared in 6 forms, {len(keep)} of them used: the others are longer than the {context:,} "
        "tokens that this model reads in at least one form."
    ]
    with pytest.raises(TwoTowersError, match="no prompt is short enough in all 6 forms"):
        make(10).together(*forms)


def test_a_text_that_fits_is_moved_where_there_is_one(reader):
    make, _ = reader
    context = sorted(sizes(make(9999).prompts("some"), make(9999)))[20]
    chapter = make(context)
    prompts = chapter.prompts("some")
    for place in (None, 0, 3):
        plain, fitted = with_other_class_text(prompts, place), with_other_class_text(prompts, place, chapter.fits)
        assert max(sizes(plain, make(9999))) > context >= max(sizes(fitted, make(9999)))
        for a, b in zip(plain, fitted, strict=True):
            assert (a == b) == chapter.fits(a)
        assert with_other_class_text(prompts, place, lambda prompt: False) == plain


def test_too_few_prompts_left_name_what_to_do(reader):
    make, _ = reader
    with pytest.raises(TwoTowersError, match="40 prompts 0 are left and 2 needed, 40 left out, longer than") as bad:
        make(12).prompts("some")
    assert "long=truncate, a smaller k" in str(bad.value) and "\n" not in str(bad.value)
    with pytest.raises(TwoTowersError, match="take long=truncate"):
        make(sorted(sizes(make(9999).prompts("some"), make(9999)))[2], least=20).prompts("some")


def test_special_tokens_are_counted(reader, monkeypatch):
    make, said = reader
    chapter = make(9999)
    special = str(chapter.loaded.tokenizer.all_special_tokens[0])

    def two_have_it(*given, **named):
        return [replace(p, query=f"a {special}") if i < 2 else p for i, p in enumerate(drawn(*given, **named))]

    monkeypatch.setattr(datasets, "draw", two_have_it)
    assert len(chapter.prompts("some")) == 38
    (line,) = said
    assert line.endswith("38 used: 2 left out, a special token of the tokenizer stands in a text.")
