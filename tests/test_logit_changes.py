"""The increase split: change of the word's logit less that of the log-sum-exp, which cancels between two labels."""

import numpy as np
import pytest
import torch
from conftest import random_prompts, tiny
from reference import Reference
from twotowers.analysis import locate, logit_changes
from twotowers.errors import TwoTowersError
from twotowers.model import unembed
from twotowers.model.capture import capture


def parts_by_hand(model, slow, x, v, true, other, norm):
    """Logits of the whole vocabulary before and after, one vector at a time."""
    before, after = (unembed.bs_values(y, model.unembedding, norm, slow.scale) for y in (x, x + v))
    lse = after.logsumexp(-1) - before.logsumexp(-1)
    change = after - before
    return {
        "increase": float(after.log_softmax(-1)[true] - before.log_softmax(-1)[true]),
        "logit_change": float(change[true]), "lse_change": float(lse), "margin": float(change[true] - change[other]),
    }  # fmt: skip


@pytest.mark.parametrize("norm", unembed.NORMS)
def test_every_part_is_that_of_the_whole_vocabulary(any_model, norm):
    encoded, heads = random_prompts(5), [(1, 0), (0, any_model.n_heads - 1)]
    found = locate.increases(any_model, encoded, norm=norm, max_tokens=30)
    table = locate.increase_parts(found, heads).set_index(["prompt", "layer", "part"])
    assert len(table) == 5 * (2 * any_model.n_layers + 2)
    for i in (0, 4):
        slow, one = Reference(any_model, encoded[i].ids), encoded[i]
        other = next(word for label, word in one.label_ids.items() if label != one.prompt.true_label)
        parts = [(layer, "attention", slow.resid_pre[layer], slow.attention[layer]) for layer in (0, 1)]
        parts += [(n, "FFN", slow.resid_pre[n] + slow.attention[n], slow.ffn[n]) for n in (0, 1)]
        parts += [(layer, f"{layer}-{head}", slow.resid_pre[layer], slow.head(layer, head)) for layer, head in heads]
        for layer, part, x, v in parts:
            expected = parts_by_hand(any_model, slow, x, v, one.true_id, other, norm)
            assert table.loc[(i, layer, part)].to_dict() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("norm", unembed.NORMS)
def test_the_margin_is_the_difference_of_two_increases(any_model, norm):
    encoded = random_prompts(4, lengths=(11,))
    seen = capture(any_model, encoded)
    other = torch.tensor([16 - e.true_id for e in encoded])  # the labels' tokens are 7 and 9
    rows = logit_changes.margin_rows(seen, any_model, norm)
    attention, ffn, heads = logit_changes.block_changes(seen, any_model, rows, norm)
    of_true, of_other = (
        (*locate.block_increases(seen, any_model, words, norm), locate.head_increases(seen, any_model, words, norm))
        for words in (seen.true_ids, other)
    )
    for found, a, b in zip((attention, ffn, heads), of_true, of_other, strict=True):
        torch.testing.assert_close(found, a - b, atol=1e-9, rtol=0)


def test_planted_vectors_by_hand():
    model = tiny("llama")
    e = model.unembedding
    towards = e.weight[7] / e.gamma  # behind the norm's weight its product with E[7] is |E[7]|^2
    rows = logit_changes.word_rows(model, torch.tensor([7, 9]))
    scale = torch.tensor([2.0, 4.0], dtype=torch.float64)
    found = logit_changes.logits(torch.stack([towards, 3 * towards])[:, None], rows, e, "frozen", scale)
    expected = [[float(e.weight[7] @ e.weight[7]) / 2], [3 * float(e.weight[7] @ e.weight[9]) / 4]]
    assert found.tolist() == pytest.approx(np.array(expected))


def test_with_three_labels_the_others_count_as_their_mean():
    model, (one,) = tiny("llama"), random_prompts(1)
    one.label_ids["baz"] = 11
    rows = logit_changes.margin_rows(capture(model, [one]), model)[0]
    words = logit_changes.word_rows(model, torch.tensor([one.true_id, 16 - one.true_id, 11]))
    torch.testing.assert_close(rows, words[0] - words[1:].mean(0))


def test_a_head_that_was_not_measured_is_refused():
    found = locate.increases(tiny("gpt2"), random_prompts(1))
    with pytest.raises(TwoTowersError, match="head 3-0 was not measured: layers go to 2"):
        locate.increase_parts(found, [(3, 0)])


def test_positions_of_a_head_add_up_to_the_head(any_model):
    heads = [(1, 0), (0, any_model.n_heads - 1)]
    seen = capture(any_model, random_prompts(3, lengths=(11,)), {"weights", "values"})
    rows = logit_changes.margin_rows(seen, any_model)
    found = logit_changes.position_changes(seen, any_model, rows, heads)
    _, _, whole = logit_changes.block_changes(seen, any_model, rows)
    assert found.shape == (3, 2, 11)
    torch.testing.assert_close(found.sum(-1), torch.stack([whole[:, a, b] for a, b in heads], 1), atol=1e-9, rtol=0)
