"""How a query meets a key, on every architecture; the proof and test_independent compare queries,
keys and scores."""

import pytest
import torch
from conftest import random_prompts, tiny
from towerlab.model import query_key
from towerlab.model.attention import reading_attention
from towerlab.model.capture import capture
from towerlab_experiments.label_reads import carried_query


@pytest.fixture
def run(model):
    """A capture, and what the attention of each layer was given."""
    given = []
    with reading_attention(model, range(model.n_layers), lambda _, x, own: given.append(x)):
        return capture(model, random_prompts(2, lengths=(11,)), {"weights", "streams"}), given


def test_a_query_carried_through_w_k_meets_the_input_as_it_meets_the_unturned_key(model, run):
    for layer, stream in enumerate(run[0].stream_inputs):
        normed = model.normed(layer, "attention", stream)
        query = query_key.queries(model, layer, normed[:, -1])
        keys = query_key.keys(model, layer, normed)
        bias = model.projection(layer, 1)[1]
        for head in range(model.n_heads):
            kv_head = model.value_head(head)
            constant = 0 if bias is None else query[:, head] @ bias[kv_head]
            for place in (2, 10):
                read, own = normed[:, place], query[:, head]
                carried = query_key.query_in_input_space(model, layer, head, own, read)
                expected = (own * keys[:, place, kv_head]).sum(-1)
                torch.testing.assert_close((carried * read).sum(-1) + constant, expected)
            torch.testing.assert_close(carried_query(run[0], model, layer, head), carried)


def test_windows_and_soft_caps_of_the_tiny_models_are_really_at_work(model, run):
    kind, (run, given) = model.name, run
    masked = (run.weights[..., :-1] == 0).any(-1).all(-1).all(-1)  # per layer
    windowed = {"mistral": [True, True], "qwen2": [False, True], "gemma2": [True, False],
                "gemma3_text": [True, False],
                "phi3": [True, True], "starcoder2": [True, True], "smollm3": [False, True, False],
                "gpt_neo": [False, True]}  # fmt: skip
    assert masked.tolist() == windowed.get(kind, [False] * model.n_layers)
    for layer in range(model.n_layers):
        length = getattr(model.config, "sliding_window", getattr(model.config, "window_size", 0))
        hidden = 11 - length if masked[layer] else 0
        assert (run.scores[layer, ..., :hidden] < -1e30).all()
        assert (run.scores[layer, ..., hidden:] > -1e30).all()
    if kind == "gemma2":
        uncapped = [x._replace(softcap=None).last().scores() for x in given[1:]]
        # beyond the cap, where it bends
        assert max(scores.abs().max() for scores in uncapped) > 2 * 1.5
        assert run.logits.abs().max() < 4.0


@pytest.mark.parametrize(("kind", "longest"), [("llama", 64), ("phi3 longrope", 32)])
def test_a_prompt_is_not_longer_than_the_positions_with_one_set_of_angles(kind, longest):
    assert tiny(kind).context == longest
