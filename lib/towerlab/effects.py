"""Effects of a changed prompt and of ablated heads on the answer, the attention and heads.

    >>> from towerlab.model.loading import load
    >>> from towerlab.prompts.paper_sets import CASE
    >>> effect = zeroing_effect(load("mini-gpt2"), CASE, [Head(3, 7)])
    >>> list(effect.attention["demonstration"])
    ['1. love : bar', '2. like : bar', '3. eight : foo', '4. two : foo']
    >>> [demonstration.label for demonstration in SCENES["Swap the labels"](CASE).demonstrations]
    ['foo', 'foo', 'bar', 'bar']

The opening page and book/playground.ipynb show them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from twotowers.errors import TwoTowersError
from twotowers.heads import Head, Heads, head_names

from towerlab.model.capture import Capture, capture, logit_difference_rows
from towerlab.model.edits import edited, everywhere, zero_ablate
from towerlab.model.model import Model
from towerlab.prompts.prompt import Prompt
from towerlab.prompts.variants import exchanged_labels, one_fewer, true_first

TOP_TOKENS = 5  # number of tokens in a table of answers, besides the labels
TOP_HEADS = 5  # number of heads whose attention is shown if none is ablated


def _mix_classes(prompt: Prompt) -> Prompt:
    """Return the prompt with the labels of its first and last demonstration exchanged."""
    first, *rest, last = prompt.demonstrations
    new_first = replace(first, label=last.label)
    new_last = replace(last, label=first.label)
    return replace(prompt, demonstrations=(new_first, *rest, new_last))


SCENES: dict[str, Callable[[Prompt], Prompt]] = {
    "Swap the labels": exchanged_labels,
    "Put the true demonstrations first": true_first,
    "Remove one": one_fewer,
    "Mix two classes": _mix_classes,
    "A query of neither class": lambda prompt: replace(prompt, query="river"),
}
"""Name of a change -> the change."""
SWITCH_OFF = "Switch off the heads that add most"


@dataclass(frozen=True)
class Effect:
    """Tables of the effect of ablated heads, with columns before and after.

    `answer` has the probability of each label and of the top tokens. `attention` has the mean
    attention of some heads from the last position to each label. `heads` has the
    `head_logit_differences` (nats). `sentence` is the answer in words.
    """

    answer: pd.DataFrame
    attention: pd.DataFrame
    heads: pd.DataFrame
    sentence: str


@torch.inference_mode()
def zeroing_effect(model: Model, prompt: Prompt, heads: Heads = ()) -> Effect:
    """Return the effect of ablating heads at all positions, in two forward passes.

    Args:
        model: Any model.
        prompt: A prompt with labels.
        heads: Heads to ablate. The attention is that of these heads, or of the `strongest` heads if
            there are none.

    Returns:
        The answer, attention and logit differences before and after.

    Raises:
        TwoTowersError: If a head is outside the model, or if the prompt has no second label.
    """
    if len(prompt.labels) < 2:
        raise TwoTowersError(
            f"one label '{prompt.true_label}': expected two; add a demonstration with another label"
        )
    unknown = head_names(head for head in heads if head not in model.all_heads)
    if unknown:
        raise TwoTowersError(
            f"unknown head '{unknown[0]}' of '{model.name}': expected layers up to "
            f"{model.n_layers - 1} and heads up to {model.n_heads - 1}"
        )
    batch = model.encode([prompt])
    (encoded,) = batch
    runs = {"before": capture(model, batch, {"weights"})}
    edit = zero_ablate(heads, everywhere(batch))
    with edited(model, edit):
        runs["after"] = capture(model, batch, {"weights"})

    p = {}
    for when, run in runs.items():
        shares = run.logits[0].double().softmax(-1)
        p[when] = shares.cpu().numpy()
    top = np.argsort(-p["after"], kind="stable")[:TOP_TOKENS].tolist()
    ids = list(dict.fromkeys([*encoded.label_ids.values(), *top]))
    answer = pd.DataFrame({"token": [_token_text(model, token) for token in ids]})
    table = pd.DataFrame(model.all_heads, columns=["layer", "head"])
    for when, run in runs.items():
        answer[when] = p[when][ids]
        table[when] = head_logit_differences(run, model).flatten().cpu().numpy()

    layer, head = zip(*(heads or strongest(table)), strict=True)
    demonstrations = [f"{i}. {d.text} : {d.label}" for i, d in enumerate(prompt.demonstrations, 1)]
    attention = pd.DataFrame({"demonstration": demonstrations})
    for when, run in runs.items():
        mean = run.weights[layer, 0, head].double().mean(0)
        attention[when] = mean[list(encoded.label_positions)].cpu().numpy()

    sentence = f"The model says {_top(model, p['before'])}"
    if heads:
        names = ", ".join(head_names(heads))
        sentence += f"; with {names} zeroed it says {_top(model, p['after'])}"
    return Effect(answer, attention, table, f"{sentence}.")


def _top(model: Model, p: np.ndarray) -> str:
    """Return the most probable token in quotation marks, with its probability."""
    token = _token_text(model, int(p.argmax()))
    return f"“{token}” ({p.max():.0%})"


def strongest(heads: pd.DataFrame) -> tuple[Head, ...]:
    """Return the heads that add most to the logit difference.

    Args:
        heads: Table with the columns `layer`, `head` and `before` (nats).

    Returns:
        TOP_HEADS heads, best first.
    """
    rows = heads.nlargest(TOP_HEADS, "before")
    layers = rows["layer"].tolist()
    numbers = rows["head"].tolist()
    return tuple(map(Head, layers, numbers))


def head_logit_differences(capture: Capture, model: Model) -> Float[Tensor, "layer head"]:
    """Return the addition of each head to the logit difference, with the final norm frozen.

    Args:
        capture: Values of one prompt.
        model: Model of the capture.

    Returns:
        Logit of the true label minus that of the other label (nats; layer, head).
    """
    row = logit_difference_rows(capture, model)[0]
    layers = []
    for layer, z in enumerate(capture.z[:, 0]):
        weight = model.output_weight(layer).to(row)
        layers.append(torch.einsum("hk,hkd,d->h", z.to(row), weight, row))
    return torch.stack(layers)


def _token_text(model: Model, token: int) -> str:
    """Return the text of a token, or a visible space."""
    return model.tokenizer.decode([token]).strip() or "␣"
