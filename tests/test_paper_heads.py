"""The twelve heads and the two remedies on the paper's sets: every number against runs put together
by hand."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from reference import Reference
from test_mitigations import free_weights
from tolerances import near
from towerlab.measure.pipeline import Pipeline
from towerlab.prompts.paper_sets import CHANGES, paper_prompts
from towerlab.prompts.prompt import encode_all
from towerlab.prompts.variants import exchanged_labels
from towerlab_experiments import paper_heads
from towerlab_experiments.ablations import ablations, single_head_ablations
from towerlab_experiments.label_reads import label_reads
from towerlab_experiments.mitigations import remedied
from towerlab_experiments.paper_heads import REMEDIED, looked_at, twelve
from twotowers import head_selection
from twotowers.errors import NotTestable
from twotowers.files import select_named_sets, select_random_sets
from twotowers.heads import Head
from twotowers.settings import Settings


@pytest.fixture
def encoded(words):
    """encode(prompts), and four prompts of two sets: foo true, then bar true."""
    prompts = [paper_prompts(name, 1)[0] for name in ("a/b", "b/a")]
    encode = lambda prompts: encode_all(prompts, words)  # noqa: E731
    return encode, encode([*prompts, *map(exchanged_labels, prompts)])


def test_the_twelve_are_taken_in_turn_and_halved_by_their_leaning():
    foo, bar = (xr.DataArray(np.zeros((8, 8)), dims=("layer", "head")) for _ in "ab")
    lost = foo.copy()
    # the mean is 2.5, without any rounding, so the order of heads decides
    foo[0, :8], bar[0, :8] = 3 - np.arange(8) / 16, 2 + np.arange(8) / 16
    bar[0, 0] += 1  # the first by mean increase
    foo[7, 7] -= 1
    lost[7, :8] = np.arange(8.0)
    lost[:4] = np.nan
    heads, raise_foo, raise_bar = twelve(foo, bar, lost)
    assert len(heads) == 8 and heads[:3] == [Head(0, 0), Head(7, 7), Head(0, 1)]
    leaning = [float(foo[head] - bar[head]) for head in raise_foo + raise_bar[::-1]]
    assert leaning == sorted(leaning, reverse=True) and {*raise_foo, *raise_bar} == {*heads}
    many = xr.DataArray(np.random.default_rng(0).normal(size=(20, 20)), dims=("layer", "head"))
    # both lists alike: the first twelve
    assert [len(of) for of in twelve(many, many, many)] == [12, 6, 6]
    assert len(twelve(*[many[:2, :2]] * 3)[0]) == 2


def test_heads_from_the_middle_layer_on_are_zeroed_alone(model, encoded):
    data, every = (single_head_ablations(model, encoded[1], "all", first) for first in (1, 0))
    lost = data["log_prob_lost"]
    assert lost[:, 0].isnull().all()
    near(lost[:, 1:], every["log_prob_lost"][:, 1:], atol=1e-12)


def test_what_they_attend_to_and_read_is_what_label_reads_says(model, encoded, words):
    encode, prompts = encoded
    model = replace(model, tokenizer=words)
    heads = [Head(1, 1), Head(0, 0)]
    data = looked_at(model, prompts, heads)
    others = encode([CHANGES["query of the other class"](e.prompt) for e in prompts])
    assert data["selected_head"].values.tolist() == ["1-1", "0-0"]
    as_it_is, flipped = (label_reads(model, of, heads, ranks=False) for of in (prompts, others))
    for name, expected in (("as it is", as_it_is), ("query of the other class", flipped)):
        attention = data["attention"].sel(change=name).transpose("prompt", ...)
        assert np.allclose(attention, expected["attention"])
    for name in ("log_prob_true", "log_prob_other"):
        assert np.allclose(data[f"flipped_{name}"], flipped[name])
    assert np.allclose(data["ov_logit_difference"], as_it_is["ov_logit_difference"])
    labels = [[e.prompt.true_label for e in of] for of in (prompts, others)]
    assert all(map(str.__ne__, *labels))


def test_attention_on_true_labels_is_summed_without_and_with_a_remedy(model, encoded, words):
    encode, prompts = encoded
    model = replace(model, tokenizer=words)
    data = remedied(model, prompts, {"some": [Head(0, 1), Head(1, 0)]}, REMEDIED)["attention_true"]
    for name in ("one true fewer", "TFFT"):
        for i, e in enumerate(encode([REMEDIED[name](e.prompt) for e in prompts])):
            slow = Reference(model, e.ids)
            at = [p for p, true in zip(e.label_positions, e.prompt.is_true, strict=True) if true]
            for layer, head in ((0, 1), (1, 0)):
                own = remedied_sum = float(slow.attentions[layer][head, at].sum())
                one = data.sel(change=name, selected_head=f"{layer}-{head}").isel(prompt=i)
                near(one.sel(remedy="none"), own, atol=1e-7)
                if name == "TFFT":
                    free = free_weights(slow.by_hand, slow.run, layer)[head, at].sum()
                    remedied_sum = (own + free) / 2
                # In other layers the remedy of "TFFT" also changes the input.
                if layer == 0 or name == "one true fewer":
                    near(one.sel(remedy="remedy"), remedied_sum, atol=1e-7)


def test_sentences_have_no_words_of_the_other_class():
    with pytest.raises(NotTestable, match="only the word sets"):
        paper_heads.recipe_paper_ablations(Pipeline(Settings(suite="sentences")))


def test_prompts_that_choose_do_not_judge_and_the_same_texts_have_exchanged_labels():
    run = Pipeline(Settings(prompts=4))
    run.__dict__["measured"] = lambda name: xr.Dataset(coords={"word_set": ["animal/country"]})
    selection = paper_heads.with_exchanged(run, range(paper_heads.n_selection(run.design)))
    evaluation = paper_heads.evaluation(run, 8)
    assert len(selection) == len(evaluation) == 4
    assert not {e.prompt for e in selection} & {e.prompt for e in evaluation}
    first, _, exchanged, _ = (e.prompt for e in evaluation)
    assert exchanged == exchanged_labels(first) and exchanged.true_label == "bar"


def test_the_first_heads_of_a_ranking_are_zeroed_on_prompts_that_choose_none(tmp_path, monkeypatch):
    """One percent of the heads is among the numbers, as in a model with 200 heads."""
    monkeypatch.setattr(head_selection, "one_percent", lambda n_heads: 2)
    run = Pipeline(Settings(prompts=4, out=str(tmp_path)))
    data = select_named_sets(run.measured("dose"))
    names = data["ranked_head"].sel(ranking="by ablation", rank=slice(1, 3)).values
    evaluated = paper_heads.evaluation(run, paper_heads.N_DOSE)
    heads = {"three": [Head.parse(name) for name in names]}
    zeroed = ablations(run.model, evaluated, heads).sel(head_set="three")
    found = data["logit_difference"].sel(head_set="3 by ablation")
    near(found, zeroed["logit_difference"], atol=1e-4)
    assert data["block"].min() == paper_heads.n_selection(run.design)
    random = select_random_sets(run.measured("dose"))
    assert random["head_set"].values.tolist() == [f"{n} both in turn" for n in (1, 2, 3, 6, 12)]
    assert random.sizes["random_set"] == 20
