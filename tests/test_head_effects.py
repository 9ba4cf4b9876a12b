"""What every head asks, sends and does: against slow references in float64, and on a model made by
hand."""

from functools import cache
from itertools import product

import numpy as np
import planted
import tiny_blocks
import torch
from conftest import shared_tiny, tiny
from independent import changed_at, lead, log_softmax
from reference import Reference
from tolerances import near
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
    return alone.assign(
        path_effects(model, encoded, head_selection.by_effect(alone, senders, either_sign=True))
    )


def every_head(model):
    return np.ndindex(model.n_layers, model.n_heads)


@cache
def of_two_blocks(kind):
    """Eight prompts, and what is measured of them, in several batches, once for all tests."""
    encoded = tiny_blocks.blocks(2)
    return encoded, head_effects(shared_tiny(kind), encoded, senders=3)


def attention_difference_of(weights, e):
    return weights[list(e.label_positions)] @ np.where(e.prompt.is_true, 1, -1)


def reverse(weights, e, q):
    """The weights of position q with the two sums exchanged, label by label."""
    labels = [of for of in zip(e.label_positions, e.prompt.is_true, strict=True) if of[0] < q]
    sides = [[p for p, is_true in labels if is_true == side] for side in (True, False)]
    new = weights.copy()
    if all(sides):
        for own, other in (sides, sides[::-1]):
            new[own] = weights[own] / weights[own].sum() * weights[other].sum()
    return new


def references(model, encoded):
    """The formulas of each prompt, and its plain run by them."""
    every = [Reference(model, e.ids) for e in encoded]
    return [(slow.by_hand, slow.run) for slow in every]


def test_attention_differences_are_those_of_the_definition(model, small_batches):
    encoded, result = of_two_blocks(model.name)
    other = donors_of(encoded)["labels exchanged"]
    difference = result.attention_difference.transpose("query_source", "prompt", "layer", "head")
    assert result.query_source.values.tolist() == ["own", "labels exchanged"]
    every = references(model, encoded)
    for i, (e, (by_hand, own)) in enumerate(zip(encoded, every, strict=True)):
        theirs = every[other[i]][1]
        for layer, head in every_head(model):
            query = by_hand.turn(layer, theirs.q[layer])[head, -1] * by_hand.score_scale()
            scores = by_hand.turn(layer, own.k[layer])[head] @ query
            given = np.exp(log_softmax(scores))
            expected = [
                attention_difference_of(w, e) for w in (own.weights[layer][head, -1], given)
            ]
            near(difference[:, i, layer, head], expected)
    assert float(abs(difference[0] - difference[1]).max()) > 1e-4


def test_effects_equal_whole_runs_by_the_formulas(model, small_batches):
    encoded, result = of_two_blocks(model.name)
    every, donors = references(model, encoded), donors_of(encoded)
    for i in (0, 3, 6):  # of three batches and both blocks
        e, (by_hand, plain) = encoded[i], every[i]
        before = lead(plain.logits, e)
        near(result.logit_difference[i], before)
        for layer, head in every_head(model):
            own = plain.z[layer][head, -1]
            swapped = reverse(plain.weights[layer][head, -1], e, e.last)
            sent = {"attention swapped": swapped @ plain.v[layer][head]}
            for name in DONORS:
                sent[name] = every[donors[name][i]][1].z[layer][head, -1]
            for name in CONTRASTS:
                edit = changed_at([(layer, head)], lambda *_, z=sent[name]: z, -1)
                total = by_hand.run(e.ids, z=edit).logits
                message = by_hand.vector(plain, layer, head, sent[name] - own)
                direct = by_hand.logits(plain.final + message)
                of_head = result.sel(contrast=name).isel(prompt=i, layer=layer, head=head)
                near(of_head.effect, before - lead(total, e))
                near(of_head.direct_effect, before - lead(direct, e))
    assert float(abs(result.effect - result.direct_effect).max()) > 1e-4


def test_all_heads_swapped_at_once_equals_a_loop_over_layers_heads_and_positions(model):
    encoded = tiny_blocks.blocks(
        1, texts={cls: [f"{w} {w}" for w in words] for cls, words in tiny_blocks.TEXTS.items()}
    )
    result = head_effects(model, encoded, senders=1).logit_difference_all_swapped
    for i, (e, (by_hand, plain)) in enumerate(
        zip(encoded, references(model, encoded), strict=True)
    ):
        start, stop = e.query_span
        sets = ([e.last], range(start, stop), range(start, len(e.ids)), range(len(e.ids)))
        for name, positions in zip(POSITIONS, sets, strict=True):

            def swapped(layer, weights, _, positions=positions, e=e, plain=plain):
                weights = weights.copy()
                for head, q in product(range(len(weights)), positions):
                    weights[head, q] = reverse(plain.weights[layer][head, q], e, q)
                return weights

            changed = by_hand.run(e.ids, weights=swapped)
            near(result.sel(swapped_position=name)[i], lead(changed.logits, e))
    assert len(np.unique(np.round(result, 6))) == result.size


def test_the_dataset_says_the_same_of_a_head_in_all_its_tables(model, small_batches):
    _, result = of_two_blocks(model.name)
    mean = abs(result.effect.sel(contrast="attention swapped").mean("prompt"))
    at = dict(layer=result.sender_layer, head=result.sender_head)
    assert float(mean.isel(at).min()) == np.sort(mean.values, axis=None)[-3]
    for route, variable in {"all": "effect", "direct": "direct_effect"}.items():
        one_route = result.effect_by_route.sel(route=route)
        expected = result[variable].sel(contrast="labels exchanged").isel(at)
        near(one_route, expected.transpose(*one_route.dims))


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
    assert result.attention_difference.sel(query_source="own").notnull().all()
    assert result.effect.notnull().all()


def test_sentences_follow_no_sender():
    followed = path_effects(shared_tiny("gpt2"), tiny_blocks.blocks(1), [])
    assert followed.effect_by_route.sizes["sender"] == 0


def test_swapped_weights_by_hand():
    # Positions: true label, other label, other label, a text, and a second true label that stands
    # last.
    places = torch.tensor([[1, -1, -1, 0, 1]])
    # The sums change places; what has nothing is given its sum evenly; equal sums stay. The
    # position itself is no label before.
    for before, after in (
        ([0.5, 0.1, 0.1, 0.2, 0.1], [0.2, 0.25, 0.25, 0.2, 0.1]),
        ([0.5, 0.0, 0.0, 0.2, 0.3], [0.0, 0.25, 0.25, 0.2, 0.3]),
        ([0.3, 0.1, 0.2, 0.4, 0.0], [0.3, 0.1, 0.2, 0.4, 0.0]),
    ):
        row = torch.tensor(before, dtype=torch.float64)[None, None, None]
        swapped = swapped_weights(row, places)
        near(swapped.ravel(), after)
        near(swapped_weights(swapped, places), row)
    # the last of three positions, and no true label before it but one
    early = torch.tensor([[[[0.6, 0.4, 0.0]]]])
    one_class = torch.tensor([[1, 0, -1]])
    near(swapped_weights(early, one_class), early)


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
    swapped = effect.sel(contrast="attention swapped")
    assert min(swapped.sel(comparer), swapped.sel(writer)) > 1.5 * choice
    assert swapped.sel(suppressor) < -0.5 * choice
    assert abs(direct.sel(comparer)).max() < 0.01 * choice  # all is passed on
    near(direct.sel(writer), effect.sel(writer))  # nothing follows
    sent = effect.sel(comparer)
    assert sent.sel(contrast="labels exchanged") > 1.5 * choice  # it sends which label
    assert abs(sent.sel(contrast="texts exchanged")) < 0.01 * choice  # and not where

    senders = list(zip(result.sender_layer.values, result.sender_head.values, strict=True))
    assert sorted(senders) == [(1, 0), (2, 0), (2, 1)]
    effects = result.effect_by_route.mean("prompt").isel(sender=senders.index((1, 0)))
    by_queries = float(effects.sel(route="later queries") / effects.sel(route="all"))
    near(by_queries, 1, atol=0.03)

    at = result.logit_difference_all_swapped.mean("prompt")
    # all of the choice is decided at the last position
    assert at.sel(swapped_position="last position") < -0.9 * choice
    assert at.sel(swapped_position="query's text") > 0.99 * choice
