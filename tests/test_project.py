"""Values, keys and queries in words: identities with the model's own tensors, planted vectors, hand-made ranks."""

from dataclasses import replace
from functools import partial

import pandas as pd
import pytest
import torch
from conftest import VOCABULARY, random_prompts
from reference import Reference
from twotowers.analysis import project, word_ranks
from twotowers.errors import TwoTowersError
from twotowers.model import query_key, unembed
from twotowers.model.capture import capture
from twotowers.model.model import Unembedding
from twotowers.model.token_text import Lexicon
from twotowers.prompts import datasets
from twotowers.prompts.prompt import Demonstration, Prompt


def lexicon() -> Lexicon:
    words = ("foo", "bar", "the", ":", *(f"word{i}" for i in range(VOCABULARY - 4)))
    return Lexicon(words, words)


def test_value_outputs_are_those_of_the_slow_reference_and_weighted_they_sum_to_the_head(any_model):
    encoded = random_prompts(2, lengths=(11,))
    seen = capture(any_model, encoded, {"values", "weights"})
    everywhere = torch.arange(11).expand(2, -1)
    heads = list(range(any_model.n_heads))
    for layer in range(any_model.n_layers):
        found = project.value_outputs(seen, any_model, layer, heads, everywhere)
        slow = Reference(any_model, encoded[1].ids)
        for head in heads:
            torch.testing.assert_close(found[1, head, 4], slow.value_output(layer, head, 4), atol=1e-9, rtol=1e-9)
        whole = torch.einsum("bhp,bhpd->bd", seen.weights[layer], found)
        bias = any_model.output_bias(layer)
        whole = whole if bias is None else whole + bias
        torch.testing.assert_close(whole, seen.attention_output[layer])


def test_places_and_heads_may_be_chosen(any_model):
    encoded = random_prompts(2, lengths=(11,))
    seen = capture(any_model, encoded, {"values"})
    whole = project.value_outputs(seen, any_model, 1, range(any_model.n_heads), torch.arange(11).expand(2, -1))
    some = project.value_outputs(seen, any_model, 1, [1, 0], torch.tensor([[5, 2], [8, 0]]))
    torch.testing.assert_close(some[1, 0], whole[1, 1, [8, 0]])
    torch.testing.assert_close(some[0, 1], whole[0, 0, [5, 2]])


def test_attention_only_keys_are_the_layer_input_less_embedding_less_ffn_outputs(any_model):
    ffn = {}
    handles = [
        any_model.part(layer, "ffn_block").register_forward_hook(
            lambda module, args, out, layer=layer: ffn.__setitem__(layer, out.reshape(2, -1, any_model.d_model))
        )
        for layer in range(any_model.n_layers)
    ]
    try:
        seen = capture(any_model, random_prompts(2, lengths=(11,)), project.WANT)
    finally:
        for handle in handles:
            handle.remove()
    places = torch.tensor([[2, 5], [5, 8]])
    for layer in range(any_model.n_layers):
        rest = seen.stream_inputs[layer] - seen.stream_inputs[0] - sum(ffn[i] for i in range(layer))
        gathered = project.key_inputs(seen, layer, places, attention_only=True)
        torch.testing.assert_close(gathered[1], rest[1, [5, 8]], atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(project.key_inputs(seen, layer, places)[0], seen.stream_inputs[layer][0, [2, 5]])


def test_the_query_carried_back_gives_the_models_own_scores(any_model):
    seen = capture(any_model, random_prompts(3, lengths=(14,)), project.WANT | {"keys", "weights"})
    everywhere = torch.arange(14).expand(3, -1)
    for layer in range(any_model.n_layers):
        rotary = any_model.rotates(layer)
        x = query_key.normed(any_model, layer, seen.stream_inputs[layer])
        for head in range(any_model.n_heads):
            q, key = seen.queries[layer][:, head] * seen.scaling[layer], seen.keys[layer][:, any_model.value_head(head)]
            own = torch.einsum("bd,bpd->bp", q, key)
            u = project.carried_query(seen, any_model, layer, head, everywhere if rotary else None)
            _, constant = query_key.query_in_input_space(any_model, layer, head, q, everywhere, x)
            torch.testing.assert_close((u * x).sum(-1) + constant, own, atol=1e-6, rtol=1e-6)


def test_without_rotation_the_score_is_that_of_query_and_key_before_they_are_turned(any_model):
    seen = capture(any_model, random_prompts(2, lengths=(11,)), project.WANT)
    layer, head = any_model.n_layers - 1, 1
    x = query_key.normed(any_model, layer, seen.resid_pre[layer])
    query = query_key.unrotated(any_model, layer, query_key.queries(any_model, layer, x))[:, head]
    key = query_key.unrotated(any_model, layer, query_key.keys(any_model, layer, x))[:, any_model.value_head(head)]
    u = project.carried_query(seen, any_model, layer, head)[:, 0]
    _, constant = query_key.query_in_input_space(any_model, layer, head, query, None, x[:, None])
    torch.testing.assert_close((u * x).sum(-1) + constant[:, 0], (query * key).sum(-1), atol=1e-6, rtol=1e-6)
    if any_model.rotates(layer):
        turned = project.carried_query(seen, any_model, layer, head, torch.tensor([[10, 2], [10, 2]]))
        cosine = torch.cosine_similarity(turned, u[:, None], dim=-1)
        # At its own position the query is turned and turned back; at another it is not the same.
        torch.testing.assert_close(cosine[:, 0], torch.ones(2).double(), atol=1e-6, rtol=0)
        assert (cosine[:, 1] < 0.999).all()


def test_places_of_a_query_are_refused_where_nothing_turns(any_model):
    still = [layer for layer in range(any_model.n_layers) if not any_model.rotates(layer)]
    if not still:
        pytest.skip("layers that rotate see a query differently from every place")
    seen = capture(any_model, random_prompts(1), project.WANT)
    with pytest.raises(TwoTowersError, match="does not rotate"):
        project.carried_query(seen, any_model, still[0], 0, torch.tensor([[2]]))
    with pytest.raises(TwoTowersError, match="ask for it"):
        project.value_outputs(capture(any_model, random_prompts(1)), any_model, 0, [0], torch.tensor([[2]]))


def test_readings_hold_every_kind_once(any_model):
    seen = capture(any_model, random_prompts(2, lengths=(14,)), project.WANT)
    found = list(project.readings(seen, any_model, [(1, 0), (1, 1), (0, 1)]))
    kinds = [(r.kind, r.of) for r in found]
    assert len(set(kinds)) == len(kinds)
    assert ("key", "layer 1") in kinds and ("key", "layer 0") in kinds
    assert ("key, attention only", "layer 1") in kinds and ("key, attention only", "layer 0") not in kinds
    assert {of for kind, of in kinds if kind == "value"} == {"1-0", "1-1", "0-1"}
    turning = [head for head in ((1, 0), (1, 1), (0, 1)) if any_model.rotates(head[0])]
    assert [of for kind, of in kinds if kind == "query, turned"] == [f"{a}-{b}" for a, b in turning]
    for reading in found:
        assert reading.vectors.shape == (*reading.places.shape, any_model.d_model)
        assert reading.kind in project.KINDS


def test_a_planted_label_vector_finds_its_word_at_rank_1():
    # Six words, each its own direction: projecting a vector reads its coordinates off.
    eye, ones = torch.eye(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    v = torch.tensor([0.1, 0.3, 5.0, 0.2, 0.0, 0.4], dtype=torch.float64)
    for centred in (True, False):
        e = Unembedding(eye, None, ones, None, centred, 1e-6)
        for norm, scale in (("frozen", torch.tensor(3.0)), ("recomputed", None), ("raw", None)):
            assert unembed.rank(v[None], torch.arange(6)[None], e, norm).tolist() == [[5, 3, 1, 4, 6, 2]]
            assert [int(unembed.rank(v[None], torch.tensor([[i]]), e, norm)) for i in range(6)] == [5, 3, 1, 4, 6, 2]
            assert unembed.top_words(v, 2, e, norm, scale)[1].tolist() == [2, 5]
            assert unembed.top_words(v, 2, e, norm, scale, torch.tensor([2]))[1].tolist() == [5, 1]
        assert int(unembed.rank(-v[None], torch.tensor([[2]]), e)) == 6


@pytest.mark.parametrize("rows", [2, 40])
@pytest.mark.parametrize("norm", unembed.NORMS)
def test_vectors_rank_the_same_through_the_matrix_that_makes_them(rows, norm, any_model, monkeypatch):
    monkeypatch.setattr(unembed, "ROWS", 16)
    monkeypatch.setattr(unembed, "vocab_chunks", partial(unembed.vocab_chunks, size=25))
    weight, rng = any_model.output_weight(1)[0], torch.Generator().manual_seed(0)
    z = torch.randn(rows, len(weight), dtype=weight.dtype, generator=rng)
    words = torch.randint(any_model.unembedding.vocabulary, (rows, 3), generator=rng)
    bs = unembed.bs_values(z @ weight, any_model.unembedding, norm.replace("frozen", "recomputed"))
    above = (bs[:, None] > bs.gather(1, words)[..., None] + 1e-12).sum(-1)
    for found in (
        unembed.rank(z, words, any_model.unembedding, norm, weight),
        unembed.rank(z @ weight, words, any_model.unembedding, norm),
    ):
        assert torch.equal(found, above + 1)


def test_top_words_pass_over_the_silent_ones(any_model, monkeypatch):
    e = any_model.unembedding
    monkeypatch.setattr(
        unembed, "vocab_chunks", lambda e: ((i, e.weight[i : i + 7]) for i in range(0, e.vocabulary, 7))
    )
    v = torch.randn(4, any_model.d_model, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    silent = torch.arange(0, VOCABULARY, 2)
    full = unembed.bs_values(v, e, "recomputed")
    full[:, silent] = float("-inf")
    values, ids = unembed.top_words(v, 5, e, "recomputed", without=silent)
    torch.testing.assert_close(values, full.topk(5).values)
    assert torch.equal(ids, full.topk(5).indices)
    few = unembed.top_words(v, 50, e, "recomputed", without=silent)[1]
    assert few.shape[-1] == VOCABULARY - len(silent)


def test_relations_of_words_to_a_demonstration_and_to_the_query():
    classes = {"number": {"one", "two", "eight", "nine"}, "sentiment": {"love", "hate", "two"}}
    prompt = Prompt(
        (Demonstration("love", "bar", "sentiment"), Demonstration("two", "foo", "number")),
        "one", "foo", ("foo", "bar"), "number",
    )  # fmt: skip
    encoded = replace(random_prompts(1, lengths=(8,))[0], prompt=prompt)
    assert project.relations(encoded, 0, classes) == {
        "love": "own text", "hate": "own class", "two": "other text", "one": "other text",
        "eight": "other class", "nine": "other class", "bar": "own label", "foo": "other label",
    }  # fmt: skip
    query = project.relations(encoded, None, classes)
    assert query["one"] == "own text" and query["eight"] == "own class" and query["hate"] == "other class"
    assert query["foo"] == "own label" and query["two"] == "other text"


def test_related_words_count_what_the_top_words_hold(any_model):
    encoded = random_prompts(3, lengths=(14,))
    heads = [(1, 0), (0, 1)]
    silent = lexicon().stopword_ids
    assert [lexicon().texts[i] for i in silent] == ["the", ":"]
    # All words asked for: every label and every text is among them, whatever the vector.
    everything = project.related_words(any_model, encoded, heads, lexicon(), k=VOCABULARY)
    assert (everything["own label"] == 1).all() and (everything["other label"] == 1).all()
    by_key = everything[everything.kind == "key"]
    assert (by_key["own text"] == 1).all() and (
        by_key["other text"] == 3 / 4
    ).all()  # the query is not in the vocabulary
    assert set(everything.of) == {"1-0", "0-1", "layer 1", "layer 0"}
    one = project.related_words(any_model, encoded, heads, lexicon(), k=3)
    table = project.top_word_table(any_model, encoded[1], heads, lexicon(), k=3)
    left = table[(table.silent == "left out") & (table["head"] == "1-0")]
    for kind in ("value", "query"):
        slow = left[left.kind == kind].groupby("position").relation.apply(lambda r: (r == "other label").sum())
        fast = one[(one.prompt == 1) & (one.kind == kind) & (one.of == "1-0")].set_index("position")["other label"]
        assert slow.to_dict() == fast.to_dict()
    again = [project.related_words(any_model, encoded, heads, lexicon(), k=3, random_seed=5) for _ in range(2)]
    pd.testing.assert_frame_equal(*again)


def test_the_table_of_top_words_ranks_them_and_names_their_token(any_model):
    encoded = random_prompts(1, lengths=(11,))[0]
    table = project.top_word_table(any_model, encoded, [(1, 1), (1, 0)], lexicon(), k=4)
    assert list(dict.fromkeys(table["head"])) == ["1-1", "1-0"]
    for _, group in table.groupby(["head", "kind", "position", "silent"]):
        assert list(group["rank"]) == [1, 2, 3, 4] and group["value"].is_monotonic_decreasing
    assert not set(table[table.silent == "left out"].word) & {"the", ":"}
    assert (table[table.position == 2].token == lexicon().texts[encoded.ids[2]]).all()
    keys = table[table.kind == "key"]
    first, second = (keys[keys["head"] == h].drop(columns="head").reset_index(drop=True) for h in ("1-1", "1-0"))
    pd.testing.assert_frame_equal(first, second)


def test_random_directions_keep_the_norm_and_nothing_else():
    v = torch.randn(200, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    drawn = project.random_directions(v, torch.Generator().manual_seed(2))
    torch.testing.assert_close(drawn.norm(dim=-1), v.norm(dim=-1))
    assert torch.cosine_similarity(drawn, v, dim=-1).mean().abs() < 0.1


def test_label_ranks_are_those_of_one_value_at_a_time(any_model):
    encoded = random_prompts(3, lengths=(14, 11))
    heads = [(1, 1), (0, 0)]
    found = word_ranks.label_ranks(any_model, encoded, heads)
    assert len(found) == 2 * (4 + 3 + 4)
    slow = Reference(any_model, encoded[1].ids)
    for layer, head in heads:
        rows = found[(found.prompt == 1) & (found["head"] == f"{layer}-{head}")].set_index("demonstration")
        for i, position in enumerate(encoded[1].label_positions):
            bs = unembed.bs_values(slow.value_output(layer, head, position), any_model.unembedding, "recomputed")
            assert rows.loc[i, "rank"] == 1 + int((bs > bs[encoded[1].ids[position]]).sum())
            other = next(word for label, word in encoded[1].label_ids.items() if label != rows.loc[i, "label"])
            assert rows.loc[i, "other_rank"] == 1 + int((bs > bs[other]).sum())
            assert rows.loc[i, "label"] == encoded[1].prompt.demonstrations[i].label
            assert rows.loc[i, "true"] == encoded[1].prompt.is_true[i]


RANKS = pd.DataFrame(
    [
        (0, "1-0", "foo", 1), (0, "1-0", "foo", 2), (0, "1-0", "bar", 4),
        (1, "1-0", "foo", 1), (1, "1-0", "foo", 1), (1, "1-0", "bar", 5),
    ],
    columns=["prompt", "head", "label", "rank"],
)  # fmt: skip


def test_mrr_by_hand():
    found = word_ranks.mrr(RANKS, ["head", "label"]).set_index("label")
    assert found.loc["foo", "mrr"] == pytest.approx((0.75 + 1) / 2) and found.loc["foo", "n"] == 2
    assert found.loc["bar", "mrr"] == pytest.approx((1 / 4 + 1 / 5) / 2)
    assert found.loc["foo", "median_rank"] == 1 and found.loc["foo", "at_rank_1"] == 0.75
    over = word_ranks.advantages(RANKS.assign(other_rank=[2, 2, 4, 1, 2, 1]), ["head"])
    assert over["advantage"].tolist() == pytest.approx([(1 / 2 + 0 + 0) / 3, (0 + 1 / 2 - 4 / 5) / 3])
    over_all = word_ranks.mrr(RANKS, ["head"])
    assert over_all.mrr[0] == pytest.approx(((1 + 1 / 2 + 1 / 4) / 3 + (1 + 1 + 1 / 5) / 3) / 2)


def test_the_same_prompt_number_in_two_sets_counts_twice():
    two = pd.concat([RANKS.assign(dataset="a"), RANKS.assign(dataset="b")])
    assert word_ranks.mrr(two, ["head", "label"])["n"].tolist() == [4, 4]


def test_rank_shares_count_at_or_below():
    found = word_ranks.rank_shares(RANKS, ["label"], 10).set_index(["label", "rank"])["share"]
    assert found["foo"].to_dict() == {1: 0.75, **dict.fromkeys(range(2, 11), 1.0)}
    assert found["bar", 3] == 0 and found["bar", 4] == 0.5 and found["bar", 10] == 1


def test_preferences_are_paired_and_named_only_when_sure():
    found = word_ranks.preferences(RANKS, ("foo", "bar")).iloc[0]
    assert found["difference"] == pytest.approx(((0.75 - 0.25) + (1 - 0.2)) / 2)
    assert found["foo"] == pytest.approx(0.875) and found["reads"] == "foo"
    assert word_ranks.preferences(RANKS, ("bar", "foo")).iloc[0]["reads"] == "foo"
    rows = [(i, "1-0", label, 1 + (i + (label == "foo")) % 2) for i in range(8) for label in ("foo", "bar")]
    even = pd.DataFrame(rows, columns=RANKS.columns)
    assert word_ranks.preferences(even, ("foo", "bar")).iloc[0]["reads"] == "neither"


def test_class_words_are_the_lists():
    lists = datasets.class_words()
    assert "seven" in lists["number"] and "love" in lists["sentiment"] and len(lists) > 40
