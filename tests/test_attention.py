"""Attention under our function is the model's own, with a cache too, and what is read of it is let
go."""

import torch
from conftest import random_prompts
from towerlab.model.attention import reading_attention


def test_a_model_with_a_cache_says_what_it_says_without(model):
    """Token by token: each time one query, and as many keys as a cache keeps (a window's worth
    where there is one)."""
    ids = torch.tensor([random_prompts(1, lengths=(14,))[0].ids])
    expected, cache, logits = model.hf(ids, use_cache=False).logits, None, []
    for part in ids.split([4, 1, 1, 3, 1, 1, 1, 1, 1], dim=1):
        out = model.hf(part, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        logits.append(out.logits)
    torch.testing.assert_close(torch.cat(logits, 1), expected, atol=1e-9, rtol=1e-9)


def test_what_is_read_with_a_cache_is_the_last_querys(model):
    ids, parts = torch.tensor([random_prompts(1, lengths=(11,))[0].ids]), []

    with reading_attention(model, 1, parts.append):
        model.hf(ids, use_cache=False)
        cache = model.hf(ids[:, :10], use_cache=True).past_key_values
        model.hf(ids[:, 10:], past_key_values=cache, use_cache=True)
    whole, _, last = parts
    torch.testing.assert_close(last.query, whole.query[:, :, -1:])
    torch.testing.assert_close(last.key, whole.key[:, :, -last.key.shape[2] :])
    assert last.mask.any(-1).all() and last.mask.shape[-1] == last.key.shape[2]
