"""A narrow model's logits: rounded by the model, they tie; ours are unembedded in float32."""

from dataclasses import replace

import pytest
import torch
from conftest import random_prompts, tiny
from tolerances import near
from towerlab.model.capture import answer, capture, label_log_probs
from towerlab.model.edits import UNCHANGED, edited_answers
from towerlab.model.last_position import LastPosition
from towerlab.model.model import softcapped
from towerlab.model.unembed import bs_values, logit_differences


def unembedded(model, final):
    """Logits of final residual vectors in float64."""
    own, norm = model.unembedding, model.unembedding.norm
    wide = replace(own, weight=own.weight.double(), norm=replace(norm, gain=norm.gain.double()))
    logits = bs_values(final.double(), wide)
    for bias in (own.bias, None if norm.bias is None else wide.weight @ norm.bias.double()):
        logits = logits if bias is None else logits + bias
    return softcapped(logits, own.softcap)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2", "phi"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_a_narrow_model_are_those_of_its_last_residual_and_do_not_tie(kind, dtype):
    model, batch = tiny(kind, dtype), random_prompts(20, lengths=(14,))
    run = capture(model, batch)
    expected = unembedded(model, run.resid_final)
    near(run.logits.double(), expected, atol=1e-5)
    assert (run.own_logits.double() - expected).abs().max() > 1e-4
    ties = [sum(len(row) - len(row.unique()) for row in x) for x in (run.own_logits, run.logits)]
    assert ties[1] == 0  # float16 is so fine that ties are a matter of chance
    assert ties[0] > 0 or dtype == torch.float16
    top, log_prob = label_log_probs(expected, batch)
    last = LastPosition(model, batch)
    final = next(last.finals([UNCHANGED]))[1]
    of_rows = label_log_probs(unembedded(model, final[0]), batch)
    for result, reference in (
        (answer(model, batch), (top, log_prob)),
        ([x[0] for x in edited_answers(model, batch, [UNCHANGED])], (top, log_prob)),
        (last.plain_answer(), of_rows),
    ):
        assert torch.equal(result[0], reference[0])
        near(result[1], reference[1], atol=1e-5)
    difference = (of_rows[1][:, 0] - of_rows[1][:, 1])[None]
    near(logit_differences(model, final, batch), difference, atol=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_wide_models_logits_are_its_own(kind):
    run = capture(tiny(kind, torch.float32), random_prompts(4, lengths=(14,)))
    assert torch.equal(run.logits, run.own_logits)
