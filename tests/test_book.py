"""What a chapter does with measurements made by hand: it judges, it makes tables, and it says what
is missing or mistyped."""

import json
import shutil
from types import SimpleNamespace

import altair as alt
import numpy as np
import pytest
import xarray as xr
from conftest import refused
from twotowers import book, files, pages
from twotowers.heads import Head
from twotowers.intervals import Interval
from twotowers.paths import included_models
from twotowers.settings import Settings

PAIRS, LABELS = [f"a{i}/b{i}" for i in range(10)], ["x/y", "z/w", "u/v"]


def prompts(n=120):
    """Coordinates of n prompts: class pairs and label pairs in turn, every tenth prompt with names
    of classes as labels."""
    pair = [PAIRS[i % 10] for i in range(n)]
    labels = [pair[i] if i // 10 % 10 == 9 else LABELS[i // 10 % 3] for i in range(n)]
    return {
        "class_pair": ("prompt", pair),
        "label_pair": ("prompt", labels),
        "block": ("prompt", np.arange(n) // 4),
    }


def dataset(answer=2.0, **variables):
    """A measurement of a model of two layers with four heads, whose true label leads by `answer`
    nats, more or less."""
    lead = answer + np.random.default_rng(0).normal(scale=0.1, size=120)
    numbers = {"logit_difference": ("prompt", lead), **variables}
    identity = json.dumps({"evaluation_blocks": 30, "k": 2, "separator": "space"})
    sizes = {"layers": 2, "heads": 4, "key_value_heads": 4, "parameters": 1}
    about = {"identity": identity, "measurement": "heads"}
    return xr.Dataset(numbers, prompts(), sizes | about)


@pytest.fixture
def chapter(monkeypatch):
    """A chapter of three models: "a" learns, "b" is at chance, "c" lacks what is not "heads"."""
    found = {("a", "heads"): dataset(), ("b", "heads"): dataset(0.0), ("c", "heads"): dataset()}
    found |= {(model, "knockouts"): dataset(1.0) for model in "ab"}
    answers = {"top_answer": ("prompt", [0, 0]), "k": ("prompt", [2, 2])}
    answers |= {"separator": ("prompt", ["space", "space"])}
    templates = xr.Dataset(answers, attrs=dataset().attrs).set_coords(["k", "separator"])
    found |= {(model, "templates"): templates for model in "abc"}
    monkeypatch.setattr(files, "precomputed_models", lambda: dict.fromkeys("abc"))
    monkeypatch.setattr(
        files, "open_precomputed", lambda model, suite, name: found.get((model, name))
    )
    texts: list[str] = []
    for module in (book, pages):
        monkeypatch.setattr(module, "display", lambda part: texts.append(getattr(part, "data", "")))
    of_a = book.open({"model": "a"})
    of_a.texts, of_a.files = texts, found
    return of_a


def answers(chapter, name="heads"):
    """The logit differences of a measurement by model."""
    return {model: data.logit_difference for model, data in chapter.measured(name).items()}


def test_a_claim_is_judged_and_says_what_it_rests_on(chapter):
    chapter.judge_claim("learned", answers(chapter))
    rows = {row.model: row for row in chapter.rows}
    assert [rows[model].verdict for model in "abc"] == ["holds", "absent", "holds"]
    # without names of classes
    assert rows["a"].prompts == 110 and (rows["a"].n, rows["a"].label_pairs) == (10, 3)
    words = "a: 11 prompts per class pair, 10 × 3 class and label pairs, k = 2, space; b: "
    assert words in chapter.texts[0]


def test_models_that_do_not_learn_are_named(chapter):
    chapter.judge_claim("attention-chooses", answers(chapter, "knockouts"), untestable={})
    assert [row.verdict for row in chapter.rows] == ["holds", "not testable"]
    why = "too few class pairs to tell whether it learns the task: accuracy "
    assert chapter.rows[1].words.startswith(why) and f"</b>: {why}" in chapter.texts[0]
    assert "c:" not in chapter.texts[0]  # it does not have this measurement
    row = "model, 0-1", "value", "<i> : foo", [("foo", True), ("a<b", False)]
    chapter.figure("1.2", pages.readings([row]), "Words <b>.")
    assert "&lt;i&gt; : foo" in chapter.texts[-2] and "<b>foo</b>, a&lt;b<" in chapter.texts[-2]
    assert 'id="fig-1-2"><b>Table 1.2.</b> Words &lt;b&gt;.' in chapter.texts[-1]


@pytest.mark.parametrize(
    ("learned", "words"),
    [
        (Interval(0.84, (8, 3), 0.38, 1.31), "too few class pairs .*: accuracy 84% .38%, 100%.$"),
        (Interval(0.5, (20, 9), 0.45, 0.56), "does not learn the task: accuracy 50% .45%, 56%.$"),
        (Interval(0.02, (8, 3), -0.1, 0.2), "does not learn the task: accuracy 2% .0%, 20%.$"),
        (Interval(1.0, (1, 1)), "too few class pairs to tell whether it learns"),
    ],
)
def test_too_few_class_pairs_are_not_a_model_that_does_not_learn(chapter, learned, words):
    chapter.models["a"].accuracy = learned
    refused(words, chapter.models["a"].check_learned)


def test_a_claim_without_a_line_is_refused(chapter):
    refused("unknown claim 'learnt': .* in data", chapter.judge_claim, "learnt", answers(chapter))


def test_a_table_goes_through_dimensions(chapter):
    values = {"a": answers(chapter)["a"]}
    by_dose = values["a"] * xr.DataArray([1, 2, 3], {"dose": [0.5, 1.0, 2.0]})
    many = {"a": by_dose.expand_dims(side=2)}
    table = chapter.table(many, by=("side", "dose"), what="x")
    assert table[["model", "side", "dose", "what"]].values.tolist() == [
        ["a", s, x, "x"] for s in (0, 1) for x in (0.5, 1.0, 2.0)
    ]
    once = chapter.table(values).loc[0]
    assert once["n"] == 10
    assert [*table["value"] / once["value"]] == pytest.approx([1, 2, 3, 1, 2, 3])
    shares = chapter.table(many, by=("side", "dose"), denominator=values)
    assert shares["value"].tolist() == pytest.approx([1, 2, 3, 1, 2, 3])
    assert chapter.table(values, clusters=["block"]).loc[0, "n"] == 28
    refused(r"got \(prompt, dose\); take means", chapter.table, many, by=("side",))


def test_where_nothing_is_there_a_table_and_a_figure_say_so(chapter):
    values = answers(chapter)["a"]
    empty = chapter.table({}, by=("dose",), what="x")
    assert empty.empty and list(empty) == ["model", "dose", "value", "low", "high", "n", "what"]
    none = chapter.table({"a": values * np.nan}).loc[0]
    assert np.isnan(none["value"]) and none["n"] == 0
    most = values.where(np.arange(110) > 0)
    refused("cannot use 1 of 110 values", chapter.table, {"a": most})
    chapter.figure("1.1", alt.Chart(empty).mark_bar(), "Bars.")
    assert "Bars. Nothing to draw: no model has these numbers." in chapter.texts[-1]


def test_heads_that_leave_no_others_are_told_and_have_none(chapter):
    four = [Head(0, h) for h in range(4)]
    chapter.sets = {"a": {"four": four, "eight": four * 2, "none": []}}
    assert chapter.draw_random_sets("a", "four", n_sets=3) and not chapter.texts
    for name, words in (("eight", "8 heads leave too few"), ("none", "the rule selects no heads")):
        assert chapter.draw_random_sets("a", name, n_sets=3) == [] and words in chapter.texts[-1]


def test_labels_are_arbitrary_unless_a_chapter_asks_for_others(chapter):
    for labels, n in ((None, 110), ("names", 10), ("all", 120)):
        assert chapter.measured("heads", labels=labels)["a"].sizes["prompt"] == n
    chapter.files |= {(model, "selection"): dataset() for model in "abc"}
    # blocks that choose are not those that judge
    assert chapter.measured("selection")["a"].sizes["prompt"] == 120


def test_a_stored_measurement_is_read_and_never_made(chapter, monkeypatch):
    never = SimpleNamespace(name="a", stored=lambda name: None)
    monkeypatch.setattr(chapter, "_pipeline", lambda suite: never)
    assert [*chapter.stored("knockouts")] == ["a", "b"]  # "a" is precomputed with these settings
    del chapter.files["a", "knockouts"]
    chapter._files.cache_clear()
    assert [*chapter.stored("knockouts")] == ["b"]
    chapter._files.cache_clear()
    never.stored = lambda name: chapter.files["b", name]
    assert {*chapter.stored("knockouts")} == {"a", "b"}


def test_what_is_stored_with_other_settings_is_not_shown(chapter, monkeypatch):
    never = SimpleNamespace(name="a", stored=lambda name: None)
    monkeypatch.setattr(chapter, "_pipeline", lambda suite: never)
    chapter.settings = Settings(model="a", k=4)  # "a" is precomputed with k = 2
    assert [*chapter.stored("knockouts")] == ["b"]


def test_sets_of_a_model_have_the_size_that_it_was_measured_with(chapter):
    ranked = np.tile(np.arange(1.0, 9.0).reshape(2, 4), (120, 1, 1))
    of_heads = ("prompt", "layer", "head")
    variables = {"attribution": (of_heads, ranked)}
    variables["attention"] = ((*of_heads, "demonstration"), ranked[..., None])
    data = dataset(**variables).assign_coords(is_true_label=("demonstration", [True]))
    for model, n in {"a": 3, "b": 5}.items():
        made_from = json.dumps({"top_k": n})
        chapter.files[model, "selection"] = data.assign_attrs(identity=made_from)
    chapter.files["c", "selection"] = chapter.files["b", "selection"]
    chapter.settings = Settings(model="a", top_k=3)
    sizes = {model: len(sets["by attribution"]) for model, sets in chapter.sets.items()}
    assert sizes == {"a": 3, "b": 5, "c": 5}


def cell(*lines):
    return {"In": ["", "model = 'a'", "\n".join(lines), "x = 3"], "model": "a", "x": 3}


def test_a_parameter_that_nobody_knows_is_refused():
    mistyped = cell("# Parameters", "evaluation_blcoks = 20")
    refused("unknown parameter 'evaluation_blcoks': expected one of model, ", book.open, mistyped)
    given = cell("# Parameters", "evaluation_blocks = 20") | {"evaluation_blocks": 20}
    assert book.open(given).settings.evaluation_blocks == 20
    assert book.open(cell("# Parameters", 'texts = "own"'), extra=["texts"]).settings.model == "a"
    assert book.open(cell("mine = 1")).settings.model == "a"  # a cell of one's own is no parameter


def test_a_chapter_measures_a_new_model_on_few_blocks(tmp_path, monkeypatch):
    notes = []
    monkeypatch.setattr(pages, "note", notes.append)

    def blocks(model, **given):
        auto = dict.fromkeys(book.BLOCKS, "auto") | given
        settings = book.open({"model": model, "out": str(tmp_path), **auto}).settings
        return settings.evaluation_blocks, settings.selection_blocks

    assert blocks("mini-gpt2") == blocks("smollm2-135m") == (50, 40)
    assert blocks("someone") == (20, 20)
    assert blocks("someone", evaluation_blocks=30) == (30, 20)
    shutil.copytree(included_models()["mini-gpt2"], tmp_path / "mine")
    assert blocks(str(tmp_path / "mine")) == (20, 20)
    assert "is measured on 20 evaluation blocks and 20 selection" in notes[-1]
    heads = tmp_path / "someone/words/heads.nc"  # as `twotowers measure` leaves it
    heads.parent.mkdir(parents=True)
    heads.touch()
    assert blocks("someone") == (50, 40)


def test_a_disk_that_says_no_is_told(chapter, tmp_path, monkeypatch):
    chapter.judge_claim("learned", answers(chapter))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TWOTOWERS_EVIDENCE", str(tmp_path / "file"))
    refused("cannot write .*free some space", chapter.close)


def test_models_come_smallest_first_and_a_file_of_other_settings_stands_for_none(
    chapter, monkeypatch
):
    for model, parameters in zip("abc", (3, 1, 2), strict=True):
        chapter.files[model, "heads"].attrs["parameters"] = parameters
    assert [*chapter.measured("heads")] == ["b", "c", "a"]
    pipeline = SimpleNamespace(measured=lambda name: dataset(9.0))
    monkeypatch.setattr(book.Chapter, "_open_pipeline", lambda self, suite: pipeline)
    others = book.open({"model": "a", "k": 4})  # the files say k = 2
    assert others.measured("heads")["a"].logit_difference.min() > 8
