"""The two biases read from a model, with and without a mitigation, and beside known remedies (EMNLP 2024 section 6, as
summarised).

Majority label: the change of accuracy from a balanced prompt to the same prompt with one demonstration fewer. Recency:
the standard deviation, over the orders of the demonstrations, of accuracy and of attention weights.

    plain, weights = read_orders(model, by_prompt, heads)
    mitigated, acting = read_orders(model, by_prompt, heads, "mean")       # with the position-free shortcut
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped

from twotowers.analysis.edit_heads import check_heads
from twotowers.analysis.mitigate import check_a_c, free_weights, minority, minority_shortcut, position_free, shares_of
from twotowers.model.answers import Answers, true_column
from twotowers.model.capture import Capture, predict, read_all
from twotowers.model.model import Model
from twotowers.model.proof import finished
from twotowers.prompts.datasets import CONTENT_FREE
from twotowers.prompts.prompt import Encoded, encode_all


def majority_answers(
    model: Model,
    encoded: Sequence[Encoded],
    head_sets: Sequence[Sequence[tuple[int, int]]],
    a_cs: Sequence[float],
    max_tokens: int = 4096,
    progress: str | None = None,
) -> Answers:
    """Answers with the minority shortcut, (head set, a_c, prompt): one forward pass for all of them.

    a_c = 0 is the model as it is. Raises TwoTowersError for an a_c that is not finite and prompts of equal counts.
    """
    a_cs = [check_a_c(a_c) for a_c in a_cs]
    for one in encoded:
        minority(one.prompt)  # refuse before the work, not in the middle of it
    shape = (len(head_sets), len(a_cs), len(encoded))
    top, log_prob = np.empty(shape, dtype=int), np.empty((*shape, len(encoded[0].label_ids)))

    def read(seen: Capture) -> None:
        words = torch.tensor([list(e.label_ids.values()) for e in seen.prompts], device=seen.resid_final.device)
        for i, heads in enumerate(head_sets):
            shortcut = minority_shortcut(seen, model, heads)
            for j, a_c in enumerate(a_cs):
                logits = finished(model, seen.resid_final + a_c * shortcut)
                labels = logits.double().log_softmax(-1).gather(1, words)
                top[i, j, seen.index] = logits.argmax(-1).cpu().numpy()
                log_prob[i, j, seen.index] = labels.cpu().numpy()

    read_all(model, encoded, {"weights", "values"}, read, max_tokens, progress)
    return Answers.read(top, log_prob, encoded)


def read_orders(
    model: Model,
    by_prompt: Sequence[Sequence[Encoded]],
    heads: Sequence[tuple[int, int]],
    shortcut: str | tuple[float, float] | None = None,
    progress: str | None = None,
) -> tuple[Answers, Float[np.ndarray, "prompt order head demonstration"]]:
    """Answers over the orders of each prompt, (order, prompt), and the weights that act: `by_prompt[i]` are the orders of i.

    Weights are those of the last position on each demonstration's label, followed through the orders: demonstrations
    are aligned by who they are, true ones first, each class in its own order (`datasets.orders` keeps it). With a
    `shortcut` in `heads`, they are the shares' mixture of a head's own and the position-free ones, in the mitigated
    model. They add up to 1 over positions.
    """
    keep, share = (1.0, 0.0) if shortcut is None else shares_of(shortcut)
    heads, flat = list(check_heads(heads, model)), [one for orders in by_prompt for one in orders]
    align = np.array([np.argsort(~np.array(e.prompt.is_true), kind="stable") for e in flat])
    weights, top = np.empty((len(flat), len(heads), align.shape[1])), np.empty(len(flat), dtype=int)
    labels = np.empty((len(flat), len(flat[0].label_ids)))

    def read(one: Capture) -> None:
        acting = torch.stack([one.weights[layer][:, head] for layer, head in heads])
        if share:
            acting = (keep * acting + share * free_weights(one, model, heads)) / (keep + share)
        at = one.label_positions.gather(1, torch.from_numpy(align[one.index]).to(acting.device))
        weights[one.index] = acting.gather(2, at.expand(len(heads), -1, -1)).transpose(0, 1).cpu().numpy()
        words = torch.tensor([list(e.label_ids.values()) for e in one.prompts], device=one.logits.device)
        top[one.index] = one.logits.argmax(-1).cpu().numpy()
        labels[one.index] = one.logits.double().log_softmax(-1).gather(1, words).cpu().numpy()

    with nullcontext() if shortcut is None else position_free(model, heads, shortcut):
        read_all(model, flat, {"weights"} | ({"streams"} if share else set()), read, progress=progress)
    shape = len(by_prompt), len(by_prompt[0])
    return Answers.read(top, labels, flat).reshaped(*shape), weights.reshape(*shape, *weights.shape[1:])


def calibrated(
    model: Model, encoded: Sequence[Encoded], content_free: Sequence[str] = CONTENT_FREE, progress: str | None = None
) -> Bool[np.ndarray, "prompt"]:
    """Is the true label chosen after contextual calibration (Zhao et al. 2021)? Cost: 1 + len(content_free) passes.

    The query gives way to each content-free text in turn; the label probabilities found there (normalised over the
    labels, mean over the texts) divide those of the real query. Their W is diagonal and b is 0.
    """
    plain = predict(model, encoded, progress=progress)[1].log_softmax(1)
    free = [replace(e.prompt, query=text) for e in encoded for text in content_free]
    prior = predict(model, encode_all(free, model.tokenizer, model.context), progress=progress)[1].softmax(1)
    prior = prior.reshape(len(encoded), len(content_free), -1).mean(1)
    return (plain - prior.log()).argmax(1).numpy() == true_column(encoded)


def averaged(
    model: Model, by_prompt: Sequence[Sequence[Encoded]], progress: str | None = None
) -> Bool[np.ndarray, "prompt"]:
    """Is the true label chosen by the mean label probability over all orders? Cost: one pass for each order."""
    flat = [one for orders in by_prompt for one in orders]
    p = predict(model, flat, progress=progress)[1].softmax(1).reshape(len(by_prompt), len(by_prompt[0]), -1).mean(1)
    return p.argmax(1).numpy() == true_column([orders[0] for orders in by_prompt])


def spread_by_chance(correct: Shaped[np.ndarray, "order prompt"], draws: int = 400, seed: int = 0) -> float:
    """Standard deviation of accuracy over orders that chance alone exceeds once in twenty times.

    Each prompt's answers are dealt to its orders at random: what is left by the finite number of prompts.
    """
    rng = np.random.default_rng([seed, 7])
    return float(np.quantile([rng.permuted(correct, axis=0).mean(1).std() for _ in range(draws)], 0.95))


def weight_spread(weights: Float[np.ndarray, "prompt order head demonstration"]) -> Float[np.ndarray, "prompt 2"]:
    """Per prompt: the standard deviation over orders of a demonstration's weight, and the mean weight.

    Both are means over heads and demonstrations; weights from `read_orders`. Their ratio says how far a smaller
    spread comes from less attention to labels altogether.
    """
    return np.stack([weights.std(1).mean((1, 2)), weights.mean((1, 2, 3))], 1)
