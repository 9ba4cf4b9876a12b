"""The two mitigations: nothing at scale zero, position-free where they say so, and equal to slow references."""

from dataclasses import replace

import pytest
import torch
from conftest import random_prompts, tiny
from twotowers.analysis import mitigate
from twotowers.analysis.edit_heads import Edit, all_heads, edited
from twotowers.analysis.mitigate import position_free
from twotowers.errors import TwoTowersError
from twotowers.model import proof, query_key
from twotowers.model.capture import capture
from twotowers.prompts.datasets import imbalanced
from twotowers.prompts.prompt import Demonstration, Prompt


def one_length(n, length=14, seed=0):
    return random_prompts(n, lengths=(length,), seed=seed)


def prompt(labels, true="foo", words=("foo", "bar")):
    return Prompt(tuple(Demonstration(f"w{i}", label) for i, label in enumerate(labels)), "q", true, words)


# --- majority label


@pytest.mark.parametrize(
    ("labels", "words", "expected"),
    [
        (["bar", "bar", "foo"], ("foo", "bar"), (("foo",), 2.0)),
        (["foo", "bar", "foo", "foo"], ("foo", "bar"), (("bar",), 3.0)),
        (["a", "a", "b", "c"], ("a", "b", "c"), (("b", "c"), 2.0)),
        (["a", "a", "b"], ("a", "b", "c"), (("b",), 2.0)),  # a label without a demonstration has no position
    ],
)
def test_minority_by_hand(labels, words, expected):
    assert mitigate.minority(prompt(labels, words[0], words)) == expected


@pytest.mark.parametrize("labels", [["foo", "bar"], ["foo", "bar", "bar", "foo"], ["foo"]])
def test_equal_counts_have_no_minority(labels):
    with pytest.raises(TwoTowersError, match=r"equal counts.*imbalanced"):
        mitigate.minority(prompt(labels))
    assert mitigate.minority(imbalanced(prompt(["bar", "foo", "bar", "foo"]))) == (("foo",), 2.0)


def test_the_minority_shortcut_is_the_sum_of_its_subhead_values(any_model):
    encoded = one_length(3, 11)  # 3 demonstrations: bar, foo, bar
    seen = capture(any_model, encoded, {"weights", "values"})
    heads = [(0, 1), (1, 0), (1, 1)]
    found = mitigate.minority_shortcut(seen, any_model, heads)
    for row, one in enumerate(encoded):
        expected = torch.zeros_like(found[row])
        for layer, head in heads:
            for position, demonstration in zip(one.label_positions, one.prompt.demonstrations, strict=True):
                if demonstration.label == "foo":
                    value = seen.values[layer, row, any_model.value_head(head), position]
                    written = value @ any_model.output_weight(layer)[head]
                    expected += seen.weights[layer, row, head, position] * written
        torch.testing.assert_close(found[row], 2 * expected)


def test_nothing_of_the_shortcut_changes_nothing_bit_for_bit(any_model):
    seen = capture(any_model, one_length(3, 11), {"weights", "values"})
    nothing = 0.0 * mitigate.minority_shortcut(seen, any_model, all_heads(any_model))
    torch.testing.assert_close(proof.finished(any_model, seen.resid_final), seen.logits)
    assert torch.equal(
        proof.finished(any_model, seen.resid_final + nothing), proof.finished(any_model, seen.resid_final)
    )


@pytest.mark.parametrize("a_c", [float("nan"), float("inf"), -float("inf"), "much", None, True])
def test_an_a_c_that_is_no_finite_number_is_refused(a_c):
    with pytest.raises(TwoTowersError, match=r"give a finite number, such as 0.03"):
        mitigate.check_a_c(a_c)
    assert mitigate.check_a_c("0.1") == 0.1


# --- recency


def without_positions(model, encoded):
    """The same model run with every token at position 0: an independent way to leave the rotation out."""

    def at_zero(_, args, kwargs):
        ids = kwargs["input_ids"]
        # A mask is given, or transformers takes equal positions for many packed sequences.
        return args, {**kwargs, "position_ids": torch.zeros_like(ids), "attention_mask": torch.ones_like(ids)}

    handle = model.hf.register_forward_pre_hook(at_zero, with_kwargs=True)
    try:
        return capture(model, encoded, {"scores", "streams"})
    finally:
        handle.remove()


def test_free_scores_of_rotary_models_are_those_of_tokens_that_all_stand_at_zero(any_model):
    if any_model.architecture.positions != "rotary":
        pytest.skip("learned positions are tested below")
    seen = without_positions(any_model, one_length(2))
    for layer in range(any_model.n_layers):
        torch.testing.assert_close(
            mitigate.free_scores(any_model, layer, seen.stream_inputs[layer]), seen.scores[layer]
        )


def test_free_scores_of_learned_positions_lack_the_embeddings_direct_part(any_model):
    if any_model.architecture.positions != "learned":
        pytest.skip("rotary positions are tested above")
    encoded = one_length(2)
    seen = capture(any_model, encoded, {"scores", "streams", "weights"})
    ids = torch.tensor([e.ids for e in encoded])
    positions = seen.stream_inputs[0] - any_model.hf.get_input_embeddings()(ids)
    torch.testing.assert_close(positions[0], positions[1])  # they do not depend on the words
    all_of_them = all_heads(any_model)
    weights = mitigate.free_weights(seen, any_model, all_of_them)
    for layer in range(any_model.n_layers):
        x, norm = seen.stream_inputs[layer], any_model.part(layer, "attention_norm")
        # Nothing to take out: the model's own scores.
        torch.testing.assert_close(mitigate.free_scores(any_model, layer, x), seen.scores[layer])
        # The norm by hand, its scale that of x, on x less the position embedding.
        less = x - positions
        scale = ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True).add(norm.eps).sqrt()
        inputs = norm.weight * (less - less.mean(-1, keepdim=True)) / scale + norm.bias
        query, key = query_key.queries(any_model, layer, inputs), query_key.keys(any_model, layer, inputs)
        for head in range(any_model.n_heads):
            for row in range(2):
                expected = torch.stack([query[row, -1, head] @ k for k in key[row, :, head]])
                expected[seen.scores[layer, row, head].isinf()] = -torch.inf  # what a window hides stays hidden
                free = mitigate.free_scores(any_model, layer, x, positions)[row, head]
                torch.testing.assert_close(free, expected)
                torch.testing.assert_close(weights[all_of_them.index((layer, head)), row], expected.softmax(-1))


def test_what_a_window_hides_stays_hidden(any_model):
    seen = capture(any_model, one_length(2), {"weights", "streams"})
    for i, (layer, head) in enumerate(all_heads(any_model)):
        free = mitigate.free_weights(seen, any_model, all_heads(any_model))[i]
        torch.testing.assert_close(free.sum(-1), torch.ones(2, dtype=free.dtype))
        assert torch.equal(free == 0, seen.weights[layer][:, head] == 0)


def moved(encoded):
    """The first demonstration becomes the last one."""
    k = len(encoded.label_positions)
    ids = encoded.ids[3 : 3 * k] + encoded.ids[:3] + encoded.ids[3 * k :]
    demonstrations = encoded.prompt.demonstrations
    return replace(
        encoded, ids=ids, prompt=replace(encoded.prompt, demonstrations=demonstrations[1:] + demonstrations[:1])
    )


def test_position_free_heads_do_not_notice_where_a_demonstration_stands(any_model):
    """Exact where the inputs hold no position: the first layer of a rotary model (with no window in the way)."""
    if not any_model.rotates(0) or any_model.window(0) is not None:
        pytest.skip("a learned position stays in the scale of the norm; a window hides by position")
    before = one_length(2)
    after = [moved(e) for e in before]
    heads = tuple((0, h) for h in range(any_model.n_heads))
    order = torch.tensor([*range(3, 12), 0, 1, 2, 12, 13])
    plain = [capture(any_model, e, {"streams"}) for e in (before, after)]
    scores = [mitigate.free_scores(any_model, 0, seen.stream_inputs[0]) for seen in plain]
    torch.testing.assert_close(scores[1], scores[0][..., order], rtol=1e-12, atol=1e-12)
    with position_free(any_model, heads, "replace"):
        mitigated = [capture(any_model, e).attention_output[0] for e in (before, after)]
    torch.testing.assert_close(mitigated[1], mitigated[0], rtol=1e-11, atol=1e-11)
    assert not torch.allclose(plain[1].attention_output[0], plain[0].attention_output[0], atol=1e-4)


def test_free_scores_move_with_their_inputs_in_every_layer(any_model):
    """A property of the function, for learned positions too when no position is taken out."""
    seen = capture(any_model, one_length(2), {"streams"})
    order = torch.tensor([*range(3, 12), 0, 1, 2, 12, 13])
    for layer in range(any_model.n_layers):
        if any_model.window(layer) is None:
            x = seen.stream_inputs[layer]
            scores = mitigate.free_scores(any_model, layer, x)
            torch.testing.assert_close(mitigate.free_scores(any_model, layer, x[:, order]), scores[..., order])


def test_the_shares_one_and_zero_change_nothing_bit_for_bit(any_model):
    encoded = one_length(3)
    before = capture(any_model, encoded)
    with position_free(any_model, all_heads(any_model), (1, 0)):
        after = capture(any_model, encoded)
    assert torch.equal(after.logits, before.logits) and torch.equal(after.resid_final, before.resid_final)
    with position_free(any_model, all_heads(any_model), "replace"):
        assert not torch.equal(capture(any_model, encoded).logits, before.logits)
    assert torch.equal(capture(any_model, encoded).logits, before.logits)


@pytest.mark.parametrize("shortcut", sorted(mitigate.SHORTCUTS))
def test_a_run_with_the_shortcut_is_that_of_its_edits_layer_by_layer(any_model, shortcut):
    """One pass equals several: read the first layer's heads, edit them, read the next layer's in the edited model."""
    keep, share = mitigate.SHORTCUTS[shortcut]
    encoded, heads, edits = one_length(1), [(0, 0), (0, 1), (1, 1)], []
    for layer in (0, 1):
        here = [head for head in heads if head[0] == layer]
        with edited(any_model, edits):
            seen = capture(any_model, encoded, {"values", "streams"})
        free = mitigate.free_weights(seen, any_model, here)
        values = torch.stack([seen.values[layer, 0, any_model.value_head(head)] for _, head in here])
        z = torch.einsum("hp,hpk->hk", free[:, 0], values)
        if seen.attention_scale is not None:
            z = z * seen.attention_scale[layer, 0]
        edits.append(Edit(tuple(here), scale=keep, positions="last", replacement=share * z))
    with edited(any_model, edits):
        expected = capture(any_model, encoded).logits
    with position_free(any_model, heads, shortcut):
        torch.testing.assert_close(capture(any_model, encoded).logits, expected)


def test_the_model_is_restored_after_an_error():
    model, encoded = tiny("gpt2"), one_length(2)
    before = capture(model, encoded).logits
    with pytest.raises(RuntimeError, match="on purpose"), position_free(model, [(0, 0)], "replace"):
        raise RuntimeError("on purpose")
    assert torch.equal(capture(model, encoded).logits, before)
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.hf.modules())


@pytest.mark.parametrize(
    ("heads", "shortcut", "says"),
    [([(0, 0)], "average", "choose one of mean"), ([(0, 0)], (1, float("nan")), "finite"),
     ([(9, 0)], "mean", "is not in"), ([], "mean", "no heads")],
)  # fmt: skip
def test_what_the_shortcut_refuses(heads, shortcut, says):
    model = tiny("gpt2")
    with pytest.raises(TwoTowersError, match=says), position_free(model, heads, shortcut):
        pass
    assert not any(m._forward_pre_hooks for m in model.hf.modules())
