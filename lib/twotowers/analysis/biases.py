"""The two biases measured, with and without a mending, and beside known remedies (EMNLP 2024 section 6, as summarised).

Majority label: the change of accuracy from a balanced prompt to the same prompt with one demonstration fewer. Recency:
the standard deviation, over the orders of the demonstrations, of accuracy and of attention weights. All intervals come
from resampling prompts.

    chosen, judged = halves(prompts)                   # heads are chosen on one half and judged on the other
    plain = order_answers(model, by_prompt)
    with position_free(model, heads):
        mended = order_answers(model, by_prompt)
    spread(plain.correct), spread_reduction(plain.correct, mended.correct)
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped

from twotowers.analysis.edit_heads import Head, check_heads
from twotowers.analysis.mitigate import check_a_c, free_weights, minority, minority_shortcut, position_free, shares_of
from twotowers.errors import TwoTowersError
from twotowers.model.answers import Answers, answers, true_column
from twotowers.model.capture import captures, predict
from twotowers.model.loading import finished
from twotowers.model.model import Model
from twotowers.prompts.datasets import CONTENT_FREE
from twotowers.prompts.prompt import Encoded, Prompt, encode_all
from twotowers.stats.intervals import Interval, bootstrap_of_means


def halves(prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[Prompt]]:
    """The prompts to choose heads on, and those to judge on. Raises TwoTowersError when there are fewer than two."""
    if len(prompts) < 2:
        raise TwoTowersError(f"{len(prompts)} prompts cannot be halved: draw at least 2")
    return list(prompts[: len(prompts) // 2]), list(prompts[len(prompts) // 2 :])


def check_apart(chosen: Sequence[Prompt], judged: Sequence[Prompt], same_prompts: bool = False) -> None:
    """Raise TwoTowersError when heads were chosen on a prompt they are judged on, unless `same_prompts`."""
    if not same_prompts and (shared := {p.text for p in chosen} & {p.text for p in judged}):
        raise TwoTowersError(
            f"heads would be judged on {len(shared)} of the prompts they were chosen on, which flatters them: "
            "halve the prompts (biases.halves), or ask for it with same_prompts=True"
        )


def majority_answers(
    model: Model,
    encoded: Sequence[Encoded],
    head_sets: Sequence[Sequence[Head]],
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
    for seen in captures(model, encoded, {"weights", "values"}, max_tokens, progress):
        words = torch.tensor([list(e.label_ids.values()) for e in seen.prompts], device=seen.resid_final.device)
        for i, heads in enumerate(head_sets):
            shortcut = minority_shortcut(seen, model, heads)
            for j, a_c in enumerate(a_cs):
                logits = finished(model, seen.resid_final + a_c * shortcut)
                labels = logits.double().log_softmax(-1).gather(1, words)
                top[i, j, seen.index] = logits.argmax(-1).cpu().numpy()
                log_prob[i, j, seen.index] = labels.cpu().numpy()
    return Answers.read(top, log_prob, encoded)


def order_answers(model: Model, by_prompt: Sequence[Sequence[Encoded]], progress: str | None = None) -> Answers:
    """Answers over the orders of each prompt, (order, prompt): `by_prompt[i]` are all orders of prompt i."""
    flat = answers(model, [one for orders in by_prompt for one in orders], progress)
    return flat.reshaped(len(by_prompt), len(by_prompt[0]))


def order_weights(
    model: Model,
    by_prompt: Sequence[Sequence[Encoded]],
    heads: Sequence[Head],
    shortcut: str | tuple[float, float] | None = None,
    progress: str | None = None,
) -> Float[np.ndarray, "prompt order head demonstration"]:
    """Weight of the last position on each demonstration's label, followed through all orders of a prompt.

    Demonstrations are aligned by who they are: true ones first, each class in its own order (`datasets.orders` keeps
    it). With a `shortcut`, the weights that act: the shares' mixture of the head's own and the position-free ones,
    in the mended model. They add up to 1 over positions.
    """
    keep, share = (1.0, 0.0) if shortcut is None else shares_of(shortcut)
    flat = [one for orders in by_prompt for one in orders]
    align = np.array([np.argsort(~np.array(e.prompt.is_true), kind="stable") for e in flat])
    out = np.empty((len(flat), len(heads), align.shape[1]))
    record = {"weights"} | ({"streams"} if share else set())
    with ExitStack() as stack:
        if share:
            stack.enter_context(position_free(model, heads, shortcut))
        for one in captures(model, flat, record, progress=progress):
            weights = torch.stack([one.weights[layer][:, head] for layer, head in check_heads(heads, model)])
            if share:
                weights = (keep * weights + share * free_weights(one, model, heads)) / (keep + share)
            at = one.label_positions.gather(1, torch.from_numpy(align[one.index]).to(weights.device))
            out[one.index] = weights.gather(2, at.expand(len(heads), -1, -1)).transpose(0, 1).cpu().numpy()
    return out.reshape(len(by_prompt), len(by_prompt[0]), *out.shape[1:])


def calibrated(
    model: Model,
    encoded: Sequence[Encoded],
    content_free: Sequence[str] = CONTENT_FREE,
    progress: str | None = None,
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


# --- measures ---------------------------------------------------------------------------------------------------------


def reduction(
    balanced: Shaped[np.ndarray, "prompt"],
    fewer: Shaped[np.ndarray, "prompt"],
    mended_fewer: Shaped[np.ndarray, "prompt"],
    mended_balanced: Shaped[np.ndarray, "prompt"] | None = None,
    seed: int = 0,
) -> Interval:
    """By which share the change from balanced to one-fewer prompts becomes smaller: 1 - |with| / |without|.

    Of accuracy, or of the mean of any number per prompt (margins). Negative when it grows. Without a bias there is
    nothing to reduce: the estimate is then NaN. `mended_balanced` is for remedies that act on balanced prompts too
    (default: they are left alone).
    """
    mended_balanced = balanced if mended_balanced is None else mended_balanced
    table = np.stack([balanced, fewer, mended_balanced, mended_fewer], 1)
    return bootstrap_of_means(
        table, lambda m: 1 - np.abs(m[..., 2] - m[..., 3]) / np.abs(m[..., 0] - m[..., 1]), seed=seed
    )


def spread(correct: Shaped[np.ndarray, "order prompt"], seed: int = 0) -> Interval:
    """Standard deviation over the orders of accuracy, or of a mean margin; all orders are there: it divides by k."""
    return bootstrap_of_means(correct.T, lambda m: m.std(-1), seed=seed)


def spread_reduction(
    plain: Shaped[np.ndarray, "order prompt"], mended: Shaped[np.ndarray, "order prompt"], seed: int = 0
) -> Interval:
    """By which share the standard deviation of accuracy over orders becomes smaller; negative when it grows."""
    k = len(plain)
    table = np.concatenate([plain, mended]).T
    return bootstrap_of_means(table, lambda m: 1 - m[..., k:].std(-1) / m[..., :k].std(-1), seed=seed)


def spread_by_chance(correct: Shaped[np.ndarray, "order prompt"], draws: int = 200, seed: int = 0) -> float:
    """Mean standard deviation over orders when each prompt's answers are dealt to its orders at random.

    What is left by the finite number of prompts alone, if order did not matter.
    """
    rng = np.random.default_rng([seed, 7])
    return float(np.mean([rng.permuted(correct, axis=0).mean(1).std() for _ in range(draws)]))


def weight_spread(weights: Float[np.ndarray, "prompt order head demonstration"]) -> Float[np.ndarray, "prompt 2"]:
    """Per prompt: the standard deviation over orders of a demonstration's weight, and the mean weight.

    Both are means over heads and demonstrations; weights from `order_weights`. Their ratio says how far a smaller
    spread comes from less attention to labels altogether.
    """
    return np.stack([weights.std(1).mean((1, 2)), weights.mean((1, 2, 3))], 1)


def weight_spread_reduction(
    plain: Float[np.ndarray, "prompt 2"], mended: Float[np.ndarray, "prompt 2"], relative: bool = False, seed: int = 0
) -> Interval:
    """By which share the spread of weights (from `weight_spread`) becomes smaller; `relative`: spread / mean weight."""

    def of(m):
        a, b = m[..., 0], m[..., 2]
        return 1 - (b / m[..., 3]) / (a / m[..., 1]) if relative else 1 - b / a

    return bootstrap_of_means(np.concatenate([plain, mended], 1), of, seed=seed)
