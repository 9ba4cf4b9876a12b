"""Prompts that test a trained model: the paper's prompts on words, and the accuracy on them.

    prompts = word_prompts("animal/country", 1000, seed=0, true_label="foo")
    accuracy(model, tokenizer, prompts, "imbalanced")                          # percent

`card` and `trainer` use these prompts.
"""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from towerlab.prompts import blocks
from towerlab.prompts.prompt import Demonstration, Prompt
from towerlab.prompts.variants import in_order, one_fewer

WORD_SETS = ("sentiment/number", "number/sentiment", "animal/country", "country/animal")
"""The paper's word sets, false class / true class"""
LABELS = ("foo", "bar")
"""Labels of a prompt, as in the paper"""
K = 2
"""Number of demonstrations of each class"""


ORDERS: dict[str, Callable[[Prompt], Prompt]] = {
    "original": lambda prompt: prompt,  # false false true true query
    "imbalanced": one_fewer,  # false false true query
    "reordered": lambda prompt: in_order(prompt, "TTFF"),  # true true false false query
}


def word_prompts(name: str, n: int, seed: int, true_label: str, words: str = "all") -> list[Prompt]:
    """Return different prompts of two false words, two true words and a true query.

    These are the paper's word datasets (v1 section 3, "Word datasets").

    Args:
        name: False class and true class, such as "animal/country".
        n: Number of prompts.
        seed: Seed of the draws.
        true_label: Label of the true class.
        words: "all" words, "seen" words (in episodes) or "heldout" words.
    """
    rows = [
        row
        for row in blocks.words().itertuples()
        if not row.ambiguous and (words == "all" or row.heldout == (words == "heldout"))
    ]
    classes = name.split("/")
    false, true = ([row.word for row in rows if row.cls == cls] for cls in classes)
    sizes = [len(false) - i for i in range(K)] + [len(true) - i for i in range(K + 1)]
    rng, codes = np.random.default_rng([seed, *name.encode()]), {}
    while len(codes) < n:
        codes.update(
            dict.fromkeys(map(tuple, rng.integers(0, sizes, size=(n, len(sizes))).tolist()))
        )
    out = []
    for code in list(codes)[:n]:
        *texts, query = _pick(true, code[K:])
        out.append(_prompt(_pick(false, code[:K]), texts, query, classes, true_label, name))
    return out


def _pick(pool: list[str], digits: Iterable[int]) -> list[str]:
    """Return texts without repetition, where each digit counts among the remaining texts."""
    rest = list(pool)
    return [rest.pop(digit) for digit in digits]


def _prompt(
    false: list[str], true: list[str], query: str, classes, true_label: str, name: str
) -> Prompt:
    """Return the prompt of false texts, true texts and a query."""
    other = LABELS[true_label == LABELS[0]]
    demonstrations = [Demonstration(text, other, classes[0]) for text in false]
    demonstrations += [Demonstration(text, true_label, classes[1]) for text in true]
    return Prompt(tuple(demonstrations), query, true_label, LABELS, classes[1], name)


@torch.no_grad()
def accuracy(
    model, tokenizer, prompts: list[Prompt], order: str = "original", batch: int = 500
) -> float:
    """Return the share of prompts whose most probable next token is the true label (percent).

    The token is the most probable one of the whole vocabulary.

    Args:
        model: Any model.
        tokenizer: Tokenizer of the model.
        prompts: Prompts of one length.
        order: Name of an order of the demonstrations, in ORDERS.
        batch: Number of prompts of a forward pass.
    """
    # All prompts have the same length.
    rows = torch.tensor(tokenizer([ORDERS[order](prompt).text for prompt in prompts]).input_ids)
    targets = torch.tensor([tokenizer(prompt.true_label).input_ids[-1] for prompt in prompts])
    right = 0
    for ids, target in zip(rows.split(batch), targets.split(batch), strict=True):
        states = model.base_model(ids, use_cache=False).last_hidden_state
        right += int((model.lm_head(states[:, -1]).argmax(-1) == target).sum())
    return 100 * right / len(prompts)
