"""What every head asks, sends and does: against slow references in float64, and on a model made by
hand."""

from functools import cache
from itertools import product

import numpy as np
import planted
import pytest
import tiny_blocks
import torch
from conftest import shared_tiny, tiny
from plain_hooks import every_head, put, run, weights_of, z_of
from tolerances import FLOAT64
from towerlab.model.label_attention import swapped_weights
from towerlab.prompts.blocks import DONORS, donors_of, draw_blocks
from towerlab.prompts.prompt import encode_all
from towerlab_experiments.head_effects import (
    CONTRASTS,
    POSITIONS,
    path_effects,
    single_head_effects,
)
from twotowers import head_selection


def head_effects(model, encoded, senders=8):
    alone = single_head_effects(model, encoded)
    return alone.assign(path_effects(model, encoded, head_selection.by_effect(alone, senders)))


@cache
def of_two_blocks(kind):
    """Eight prompts, and what is measured of them, in several batches, once for all tests."""
    encoded = tiny_blocks.blocks(2)
    return encoded, head_effects(shared_tiny(kind), encoded, senders=3)


def attention_difference_of(weights, e):
    return sum(
        float(weights[p]) * (1 if true else -1)
        for p, true in zip(e.label_positions, e.prompt.is_true, strict=True)
        if p < len(weights)
    )


def reverse(weights, e, q):
    """The weights of position q with the two sums exchanged, label by label."""
    new = weights.clone()
    sides = [
        [
            p
            for p, is_true in zip(e.label_positions, e.prompt.is_true, strict=True)
            if is_true == side and p < q
        ]
        for side in (True, False)
    ]
    if all(sides):
        for own, other in (sides, sides[::-1]):
            for p in own:
                new[p] = weights[p] / sum(weights[s] for s in own) * sum(weights[s] for s in other)
    return new


def sent_z(model, encoded):
    """Of every prompt: its plain run, and contrast -> (layer, head) -> what that head feeds to
    W_O."""
    plain, donors = [run(model, e) for e in encoded], donors_of(encoded)
    out = []
    for i, e in enumerate(encoded):
        of_contrast = {"attention swapped": {}} | {name: {} for name in DONORS}
        for layer, head in every_head(model):
            attention = plain[i]["attention"][layer]
            weights = reverse(weights_of(model, attention, head, e.last), e, e.last)
            of_contrast["attention swapped"][layer, head] = z_of(model, weights, attention[2], head)
            for name in DONORS:
                theirs = plain[donors[name][i]]["z"][layer][0, -1]
                of_contrast[name][layer, head] = theirs[
                    head * model.d_head : (head + 1) * model.d_head
                ]
        out.append((plain[i], of_contrast))
    return out


def test_attention_differences_are_those_of_the_definition(model, small_batches):
    encoded, result = of_two_blocks(model.name)
    other = donors_of(encoded)["labels exchanged"]
    difference = (
        result.attention_difference.transpose("query_source", "prompt", "layer", "head")
        .sel(query_source=["own", "labels exchanged"])
        .values
    )
    runs = [run(model, e) for e in encoded]
    for i, e in enumerate(encoded):
        for layer, head in every_head(model):
            own, (their_query, *_) = runs[i]["attention"][layer], runs[other[i]]["attention"][layer]
            expected = [
                attention_difference_of(weights_of(model, own, head, e.last, query), e)
                for query in (None, their_query)
            ]
            np.testing.assert_allclose(difference[:, i, layer, head], expected, **FLOAT64)
    own, exchanged = result.attention_difference
    assert float(abs(own - exchanged).max()) > 1e-4


def test_effects_equal_whole_runs_with_plain_hooks(model, small_batches):
    encoded, result = of_two_blocks(model.name)
    sent = sent_z(model, encoded)
    for i in (0, 3, 6):  # of three batches and both blocks
        plain, sent_of = sent[i]
        np.testing.assert_allclose(result.logit_difference[i], plain["difference"], **FLOAT64)
        for name in CONTRASTS:
            effects = [
                result[variable].sel(contrast=name)[i].values
                for variable in ("effect", "direct_effect")
            ]
            for layer, head in every_head(model):
                change = put(model, [(layer, head)], sent_of[name])
                total = run(model, encoded[i], change)
                own = lambda at, *_: change(at, plain["z"][at].clone(), None)  # noqa: B023, E731
                direct = run(model, encoded[i], own, plain["ffn"])
                for effect, other in zip(effects, (total, direct), strict=True):
                    np.testing.assert_allclose(
                        effect[layer, head], plain["difference"] - other["difference"], **FLOAT64
                    )
    assert float(abs(result.effect - result.direct_effect).max()) > 1e-4


def test_all_heads_swapped_at_once_equals_a_loop_over_layers_heads_and_positions(model):
    encoded = tiny_blocks.blocks(
        1, texts={cls: [f"{w} {w}" for w in words] for cls, words in tiny_blocks.TEXTS.items()}
    )
    result = head_effects(model, encoded, senders=1).logit_difference_all_swapped
    for i, (e, (plain, _)) in enumerate(zip(encoded, sent_z(model, encoded), strict=True)):
        start, stop = e.query_span
        sets = ([e.last], range(start, stop), range(start, len(e.ids)), range(len(e.ids)))
        for name, positions in zip(POSITIONS, sets, strict=True):

            def change(layer, z, attention, positions=positions, e=e, plain=plain):
                for head, q in product(range(model.n_heads), positions):
                    weights = reverse(weights_of(model, plain["attention"][layer], head, q), e, q)
                    z[0, q, head * model.d_head : (head + 1) * model.d_head] = z_of(
                        model, weights, attention[2], head
                    )
                return z

            np.testing.assert_allclose(
                result.sel(swapped_position=name)[i], run(model, e, change)["difference"], **FLOAT64
            )
    assert len(np.unique(np.round(result, 6))) == result.size


def test_the_dataset_says_the_same_of_a_head_in_all_its_tables(model, small_batches):
    _, result = of_two_blocks(model.name)
    mean = abs(result.effect.sel(contrast="attention swapped").mean("prompt"))
    at = dict(layer=result.sender_layer, head=result.sender_head)
    assert float(mean.isel(at).min()) == np.sort(mean.values, axis=None)[-3]
    for route, variable in {"all": "effect", "direct": "direct_effect"}.items():
        one_route = result.effect_by_route.sel(route=route)
        expected = result[variable].sel(contrast="labels exchanged").isel(at)
        np.testing.assert_allclose(one_route, expected.transpose(*one_route.dims), **FLOAT64)


def test_donors_differ_from_a_prompt_in_what_their_name_says():
    encoded = tiny_blocks.blocks(3)
    donors = donors_of(encoded)
    for name, of_name in donors.items():
        for i, j in enumerate(of_name):
            e, other = encoded[i].prompt, encoded[j].prompt
            assert (e.block, e.query) == (other.block, other.query) and of_name[j] == i
            labels = [[d.label for d in p.demonstrations] for p in (e, other)]
            texts = [[d.text for d in p.demonstrations] for p in (e, other)]
            assert (e.true_label == other.true_label) == (name == "texts exchanged")
            assert (texts[0] == texts[1]) == (name == "labels exchanged")
            assert (labels[0] == labels[1]) == (name == "both exchanged")


def test_labels_of_unequal_length_have_no_attention_difference_with_exchanged_labels():
    prompts = draw_blocks(
        1,
        tiny_blocks.TEMPLATE,
        seed=0,
        pairs=["a/b"],
        label_pairs=["foo/bar a1"],
        texts=tiny_blocks.TEXTS,
    )
    encoded = encode_all(prompts, tiny_blocks.tokenizer())
    result = head_effects(tiny("gpt2"), encoded)
    assert result.attention_difference.sel(query_source="labels exchanged").isnull().all()
    assert (
        result.attention_difference.sel(query_source="own").notnull().all()
        and result.effect.notnull().all()
    )


def test_sentences_follow_no_sender():
    assert (
        path_effects(shared_tiny("gpt2"), tiny_blocks.blocks(1), []).effect_by_route.sizes["sender"]
        == 0
    )


def test_swapped_weights_by_hand():
    # Positions: true label, other label, other label, a text, and a second true label that stands
    # last.
    places = torch.tensor([[1, -1, -1, 0, 1]])
    rows = torch.tensor(
        [[0.5, 0.1, 0.1, 0.2, 0.1], [0.5, 0.0, 0.0, 0.2, 0.3], [0.3, 0.1, 0.2, 0.4, 0.0]],
        dtype=torch.float64,
    )
    # The sums change places; what has nothing is given its sum evenly; equal sums stay. The
    # position itself is no label before.
    expected = torch.tensor(
        [[0.2, 0.25, 0.25, 0.2, 0.1], [0.0, 0.25, 0.25, 0.2, 0.3], [0.3, 0.1, 0.2, 0.4, 0.0]],
        dtype=torch.float64,
    )
    result = torch.cat([swapped_weights(row[None, None, None], places)[0, 0] for row in rows])
    torch.testing.assert_close(result, expected)
    again = swapped_weights(swapped_weights(rows[:1, None, None], places), places)[0, 0]
    torch.testing.assert_close(again, rows[:1])
    early = torch.tensor(
        [[[[0.6, 0.4, 0.0]]]]
    )  # the last of three positions, and no true label before it but one
    one_class = torch.tensor([[1, 0, -1]])
    torch.testing.assert_close(swapped_weights(early, one_class), early)


def test_a_head_that_prefers_nothing_moves_nothing(float64):
    model, encoded = tiny("llama"), tiny_blocks.blocks(1)
    with torch.no_grad():  # no query of layer 0: its heads look at everything alike
        model.part(0, "attention").q_proj.weight.zero_()
    result = head_effects(model, encoded)
    assert float(abs(result.attention_difference.sel(layer=0)).max()) < 1e-12
    assert float(abs(result.effect.sel(layer=0, contrast="attention swapped")).max()) < 1e-12
    assert float(abs(result.effect.sel(layer=1, contrast="attention swapped")).max()) > 1e-4


def test_a_planted_relay_and_a_planted_suppressor_are_found():
    result = head_effects(planted.relay_and_suppressor(), tiny_blocks.blocks(4), senders=3)
    choice = float(result.logit_difference.min())
    assert choice > 2  # nats: the model answers right
    own, other = result.attention_difference.mean("prompt")
    text, label = (own + other) / 2, (own - other) / 2
    effect, direct = result.effect.mean("prompt"), result.direct_effect.mean("prompt")
    comparer, idle, writer, suppressor = (
        dict(layer=layer, head=head) for layer, head in ((1, 0), (1, 1), (2, 0), (2, 1))
    )

    for head in (comparer, idle):
        assert text.sel(head) > 0.9 and abs(label.sel(head)) < 0.01
    for head in (writer, suppressor):
        assert label.sel(head) > 0.9 and abs(text.sel(head)) < 0.01
    assert abs(effect.sel(idle)).max() < 1e-9  # it looks, and does nothing
    c = effect.sel(contrast="attention swapped")
    assert (
        c.sel(comparer) > 1.5 * choice
        and c.sel(writer) > 1.5 * choice
        and c.sel(suppressor) < -0.5 * choice
    )
    assert abs(direct.sel(comparer)).max() < 0.01 * choice  # all is passed on
    np.testing.assert_allclose(
        direct.sel(writer), effect.sel(writer), rtol=0, atol=1e-9
    )  # nothing follows
    assert (
        effect.sel(contrast="labels exchanged", **comparer) > 1.5 * choice
    )  # it sends which label
    assert abs(effect.sel(contrast="texts exchanged", **comparer)) < 0.01 * choice  # and not where

    senders = list(zip(result.sender_layer.values, result.sender_head.values, strict=True))
    assert sorted(senders) == [(1, 0), (2, 0), (2, 1)]
    effects = result.effect_by_route.mean("prompt").isel(sender=senders.index((1, 0)))
    by_queries = float(effects.sel(route="later queries") / effects.sel(route="all"))
    assert by_queries == pytest.approx(1, abs=0.03)

    at = result.logit_difference_all_swapped.mean("prompt")
    assert (
        at.sel(swapped_position="last position") < -0.9 * choice
    )  # all of the choice is decided there
    assert at.sel(swapped_position="query's text") > 0.99 * choice
