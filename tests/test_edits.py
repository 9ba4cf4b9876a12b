"""Edits of what heads feed to W_O: the fast way against whole runs, and always undone. Formulas are
in test_independent."""

import pytest
import torch
from conftest import random_prompts
from tolerances import near
from towerlab.model import last_position
from towerlab.model.capture import answer, capture
from towerlab.model.edits import (
    PARTS,
    UNCHANGED,
    edited,
    edited_answers,
    interchange,
    patch_z,
    set_attention,
    steer,
    zero_ablate,
)
from towerlab.model.last_layer import last_layer_at_last
from towerlab.model.last_position import LastPosition

HEADS = ((0, 1), (1, 0), (1, 1))


def positions(encoded):
    return torch.tensor([e.label_positions for e in encoded])


@pytest.fixture
def base():
    return random_prompts(2, lengths=(11,))


@pytest.fixture
def source():
    return random_prompts(2, lengths=(11,), seed=1)


@pytest.mark.parametrize("max_rows", [4, 1024])  # few: edits of several layers in several goes
def test_rows_of_the_last_position_say_what_whole_runs_say(
    model, base, source, max_rows, monkeypatch
):
    monkeypatch.setattr(last_position, "MAX_ROWS", max_rows)
    last, theirs = LastPosition(model, base), LastPosition(model, source).plain
    query = {layer: state.attention.query[:, :, 0] for layer, state in theirs.items()}
    keys = {layer: state.attention.key[:, :, :3] for layer, state in theirs.items()}
    weights = {
        layer: state.attention.weights().expand(-1, -1, 11, -1) for layer, state in theirs.items()
    }
    edits = [UNCHANGED, steer(HEADS, query, keys, positions(base))]
    for heads in (HEADS[1:], HEADS, [(1, 1)], []):
        edits += [interchange(heads, [what] * 2, theirs, positions(base)) for what in PARTS]
        edits.append(interchange(heads, ["keys", "values"], theirs, positions(base)))
        edits += [
            zero_ablate(heads),
            set_attention(heads, weights),
            patch_z(heads, {layer: state.z[:, :, 0] for layer, state in theirs.items()}),
        ]
    (top, log_prob), (whole_top, whole) = last.answers(edits), edited_answers(model, base, edits)
    assert torch.equal(top, whole_top)
    near(log_prob, whole, atol=1e-11)
    near(whole[0], answer(model, base)[1])
    near(last.capture.logits, capture(model, base).logits)
    near(last.plain_answer()[1], whole[0], atol=1e-11)
    assert (whole[1:] - whole[0]).abs().amax((1, 2)).gt(1e-5).tolist() == [
        bool(edit.heads) for edit in edits[1:]
    ]


def test_a_last_layer_at_the_last_position_gives_the_logits_of_a_whole_run(model, base):
    widths = []
    out = model.part(model.n_layers - 1, "attention_out")
    whole = model.logits(base)
    with out.register_forward_hook(lambda _, args, output: widths.append(args[0].numel())):
        with last_layer_at_last(model):
            near(model.logits(base), whole, atol=1e-12)
        model.logits(base)  # undone
    assert widths == [2 * model.n_heads * model.d_head, 2 * 11 * model.n_heads * model.d_head]


def test_only_the_last_position_of_the_chosen_head_changes_and_attention_is_recorded_as_it_was(
    model, base, source
):
    include = {"streams", "weights"}
    with edited(
        model,
        interchange([(0, 1)], ["values"] * 2, LastPosition(model, source).plain, positions(base)),
    ):
        result, logits = capture(model, base, include), capture(model, base).logits
    plain = capture(model, base, include)
    # As fed to W_O: what `z` is divided by under Gemma 2 is that of all heads together.
    differs = (result.attention_out_input - plain.attention_out_input)[0].abs().amax((0, 2)) > 1e-9
    assert differs.tolist() == [head == 1 for head in range(model.n_heads)]
    for one, other in (
        (result.stream_inputs[1][:, :-1], plain.stream_inputs[1][:, :-1]),
        (result.weights[0], plain.weights[0]),
        (result.logits, logits),
    ):
        near(one, other)
