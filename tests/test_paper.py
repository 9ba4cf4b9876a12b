"""The paper's own protocol: its prompts by hand, every number against the slow reference, lists of
heads in models of odd sizes."""

from dataclasses import replace

import pytest
from conftest import shared_tiny
from reference import Reference
from tolerances import near
from towerlab.measure.design import Design
from towerlab.measure.pipeline import Pipeline
from towerlab.model.capture import answer
from towerlab.model.token_text import Lexicon
from towerlab.prompts import paper_sets
from towerlab.prompts.paper_sets import (
    CASE,
    CHANGES,
    COUNTERBALANCED,
    LISTED_SETS,
    WORD_SETS,
    paper_prompts,
    sentence_sets,
)
from towerlab.prompts.prompt import encode_all
from towerlab.prompts.variants import exchanged_labels
from towerlab_experiments.conditions import attention_in
from towerlab_experiments.head_values import SUMS, increases
from towerlab_experiments.label_reads import label_reads
from towerlab_experiments.paper import (
    FEW_SENTENCES,
    means_of_sets,
    of_some_heads,
    paper_values,
    with_lists,
)
from towerlab_experiments.single_prompt import (
    WEIGHTS,
    label_increases,
    single_prompt,
    swept_increases,
)
from twotowers.errors import TwoTowersError
from twotowers.heads import Head
from twotowers.settings import Settings

SETS = ("a/b", "b/a")


def measured(model, encoded):
    return with_lists(paper_values(model, encoded), model.all_heads)


def encoded_of(tokenizer, n=2):
    return encode_all([p for name in SETS for p in paper_prompts(name, n)], tokenizer)


def test_the_papers_prompts():
    prompts = paper_prompts("sentiment/number", 30)
    assert {(p.query_class, p.true_label, p.order) for p in prompts} == {("number", "foo", "FFTT")}
    assert {d.cls for p in prompts for d in p.demonstrations if d.label == "bar"} == {"sentiment"}
    assert all(len({p.query, *(d.text for d in p.demonstrations)}) == 5 for p in prompts)
    # more of them are the same and others
    assert paper_prompts("sentiment/number", 12) == prompts[:12]
    assert CASE.text == "love : bar like : bar eight : foo two : foo one :"


def test_sentence_sets_have_queries_and_demonstrations_of_their_own():
    texts = {cls: [f"{cls}{i}" for i in range(9)] for cls in "abc"}
    prompts = paper_prompts("many", 200, texts=texts)
    assert paper_prompts("many", 12, texts=texts) == prompts[:12]
    shown, asked = {d.text for p in prompts for d in p.demonstrations}, {p.query for p in prompts}
    assert not shown & asked and len(shown) == 3 * 4 and len(asked) == 3 * 5
    assert {(p.dataset, p.true_label, p.order) for p in prompts} == {("many", "foo", "FFTT")}
    both = {(p.query_class, p.demonstrations[0].cls) for p in prompts}
    assert len(both) == 6 and all(a != b for a, b in both)  # every pair of classes, either way


def test_published_sets_that_cannot_be_had_are_asked_for_again(tmp_path, monkeypatch):
    monkeypatch.setenv("TWOTOWERS_DATA", str(tmp_path / "none"))
    monkeypatch.setattr("pooch.retrieve", lambda *_: refuse("no network"))
    paper_sets.sentences.set_texts.cache_clear()  # of a test that had them
    run = Pipeline(Settings(suite="published", prompts=1, out=str(tmp_path / "out")))
    assert "missing published sets of sentences" in run.measured("paper").attrs["not_testable"]
    texts = {"x": list("abcdef"), "y": list("abcdef")}
    monkeypatch.setattr("towerlab.prompts.sentences.set_texts", lambda name: texts)
    for why in ("no room", "another reason"):  # the first is a result, kept
        monkeypatch.setattr(Design, "encode", lambda self, prompts, why=why: refuse(why))
        assert "cannot read the paper's prompts: no room" in run.measured("paper").not_testable


def refuse(why):
    raise TwoTowersError(why)


def test_the_changes_say_what_their_names_say():
    prompt = paper_prompts("animal/country", 1)[0]
    of = {name: change(prompt) for name, change in CHANGES.items()}
    assert of["as it is"] == prompt
    other = of["query of the other class"]
    assert of["labels exchanged"] == exchanged_labels(prompt)
    assert (other.query_class, other.true_label) == ("animal", "bar")
    assert other.query not in [d.text for d in prompt.demonstrations]
    assert of["true first, labels exchanged"] == exchanged_labels(of["true first"])
    orders = {of[name].order for name in CHANGES if of[name].true_label == "foo"} - {"FFT"}
    assert len(orders) == 6


def test_heads_are_listed_by_mean_increase_and_read_as_label_reads_does(words, float64):
    model, encoded = shared_tiny("llama"), encoded_of(words)
    data = measured(model, encoded)
    assert list(data["word_set"].values) == list(SETS)
    reads = label_reads(model, encoded, [*map(Head.parse, data["selected_head"].values)])
    apart = increases(model, encoded)
    near(data["increase"], apart["increase"])
    near(data["block_increase"], apart["block_increase"])
    assert (data["top_answer"] == reads["top_answer"]).all()
    for name in ("attention", "ov_logit_difference"):
        near(data[name].transpose("prompt", "selected_head", "demonstration"), reads[name])
    # the lists: sorted by hand, and a partner of the same layer that is no in-context head
    for name in SETS:
        mean = (
            data["increase"].isel(prompt=(data["class_pair"] == name).values).mean("prompt").values
        )
        listed = [Head.parse(of) for of in data["in_context_head"].sel(word_set=name).values]
        assert [mean[head] for head in listed] == sorted(mean.ravel(), reverse=True)[: len(listed)]
        partners = map(Head.parse, data["random_head"].sel(word_set=name).values)
        for head, partner in zip(listed, partners, strict=True):
            is_full = all((head.layer, h) in listed for h in range(model.n_heads))
            assert partner not in listed and (partner.layer == head.layer or is_full)


def test_attention_of_all_heads_is_that_of_the_prompts_as_they_are(words, float64):
    model = replace(shared_tiny("gpt2"), tokenizer=words)
    encoded = encoded_of(words)[::-1]  # sets in an order that no sorting gives
    data, changed = measured(model, encoded), attention_in(model, encoded, CHANGES)
    means = means_of_sets(data)
    for name in SUMS:
        as_it_is = changed[name].sel(condition="as it is", drop=True)
        near(data[name].transpose(*as_it_is.dims), as_it_is)
        mean = means[f"mean_{name}"]
        assert mean["word_set"].values.tolist() == ["b/a", "a/b"]
        by_hand = as_it_is.values[:2].mean(0)
        near(mean.sel(word_set="b/a"), by_hand)


def test_sums_of_prompts_are_kept_of_some_heads(words):
    data = attention_in(replace(shared_tiny("gpt2"), tokenizer=words), encoded_of(words), CHANGES)
    few = of_some_heads(data, [Head(1, 0), Head(0, 1)])
    assert few["selected_head"].values.tolist() == ["1-0", "0-1"]
    assert not {"layer", "head"} & {*few.dims, *few.coords}
    of_head = data["attention_other"].isel(layer=0, head=1)
    assert (few["attention_other"].sel(selected_head="0-1") == of_head).all()
    assert (few["logit_difference"] == data["logit_difference"]).all()


@pytest.mark.parametrize("suite", ["words", "sentences"])
def test_what_changes_a_prompt_is_measured_for_the_figures_that_show_it(suite, tmp_path):
    """Of sentences few prompts are changed, and the means of all heads are of the same ones."""
    n = 2 if suite == "words" else FEW_SENTENCES + 1
    run = Pipeline(Settings(suite=suite, prompts=n, out=str(tmp_path)))
    paper, balance = run.measured("paper"), run.measured("paper_balance")
    sets = WORD_SETS if suite == "words" else tuple(sentence_sets(suite))
    listed = tuple(paper["word_set"].values)  # a preview has fewer sets
    assert listed == (LISTED_SETS if suite == "words" else sets)
    n_changed = min(n, FEW_SENTENCES)
    assert [*balance["class_pair"].values] == [name for name in sets for _ in range(n_changed)]
    for change in COUNTERBALANCED:
        texts = dict(sentence_sets(suite)) if suite != "words" else {}
        prompt = CHANGES[change](paper_prompts(sets[1], n, texts=texts.get(sets[1]))[1])
        (_, log_prob) = answer(run.model, run.design.encode([prompt]))
        nats = balance["logit_difference"].sel(change=change)[n_changed + 1]
        near(nats, log_prob[0, 0] - log_prob[0, 1], atol=2e-3)
    ranks = run.measured("paper_ranks")
    for name in ("class_pair", "block", "selected_head"):
        assert (ranks[name] == paper[name]).all()
    exchanges = run.measured("paper_exchanges")
    assert tuple(exchanges["word_set"].values) == listed
    as_it_is = exchanges.sel(change="as it is")
    for name in (f"mean_{name}" for name in SUMS):
        near(paper[name], as_it_is[name].transpose(*paper[name].dims), rtol=3e-3, atol=1e-4)
    if suite == "words":
        queries, changes = run.measured("paper_queries"), run.measured("paper_changes")
        assert {*queries["class_pair"].values} == {*WORD_SETS}
        assert {*changes["class_pair"].values} == {CASE.dataset} and len(changes["change"]) == 7
        for data in (queries, changes):
            found = data["attention_true"].sel(change="as it is")
            near(found[:n], as_it_is["attention_true"][:n], rtol=3e-3, atol=1e-4)
    else:
        for name in ("paper_queries", "paper_changes"):
            assert run.measured(name).attrs["not_testable"]


def test_the_case_by_hand(model, words, monkeypatch):
    encoded = encode_all([CASE], words)[0]
    heads = [Head(1, 0), Head(0, 1)]
    n_words = model.unembedding.vocabulary
    lexicon = Lexicon(tuple(f"w{i}" for i in range(n_words)), ("",) * n_words)
    monkeypatch.setattr(Lexicon, "from_tokenizer", lambda *_: lexicon)
    data = single_prompt(model, encoded, heads).isel(prompt=0)
    sweep = swept_increases(model, encoded, heads)["swept_increase"].isel(prompt=0)
    slow = Reference(model, encoded.ids)
    for name, (layer, head) in zip(data["selected_head"].values, heads, strict=True):
        for number, at in enumerate(encoded.label_positions):
            value, own = slow.value_output(layer, head, at), slow.attentions[layer][head, at]
            swept = sweep.isel(weight=13).rename(swept_head="selected_head")
            for array, weight in ((data["label_increase"], own), (swept, WEIGHTS[13])):
                before = slow.resid_pre[layer]
                increase = slow.increase(before, weight * value, encoded.true_id)
                near(array.sel(selected_head=name).isel(demonstration=number), increase)
    near(sweep.isel(weight=0), 0)
    several = label_increases(model, [encoded, encoded], heads)
    near(several["attention"][1], data["attention"])
    is_true = data["is_true_label"].values
    by_right_labels, every = several["label_increase"][1], data["label_increase"]
    near(by_right_labels[:, is_true], every[:, is_true])
    assert by_right_labels[:, ~is_true].isnull().all()


def test_no_partner_is_an_empty_name(words):
    model = shared_tiny("gptj")  # two layers of two heads: all are in the list of five
    data = measured(model, encoded_of(words, 1))
    assert data.sizes["rank"] == 4 and set(data["random_head"].values.ravel()) == {""}
