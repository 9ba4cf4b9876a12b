"""How often a miniature is right on the word prompts of the book (drawn by `twotowers.prompts.datasets`)."""

from collections.abc import Callable

import torch
from torch import Tensor
from twotowers.prompts.datasets import draw, imbalanced, reordered
from twotowers.prompts.prompt import Prompt

ORDERS: dict[str, Callable[[Prompt], Prompt]] = {
    "original": lambda prompt: prompt,  # false false true true query
    "imbalanced": imbalanced,  # false false true query
    "reordered": reordered,  # true true false false query
}


@torch.no_grad()
def answers(model, tokenizer, texts: list[str]) -> Tensor:
    """The most probable next token of each text, over the vocabulary: (text,). Texts of one length only."""
    found = []
    for start in range(0, len(texts), 500):
        ids = torch.tensor(tokenizer(texts[start : start + 500]).input_ids)
        states = model.base_model(ids, use_cache=False).last_hidden_state[:, -1]
        found.append(model.lm_head(states).argmax(-1))
    return torch.cat(found)


def measure(model, tokenizer, sets, count: int, seed: int, words="all", orders=ORDERS) -> list[dict]:
    """One row per set and true label: set, label, and the accuracy (percent) in every order of `orders`."""
    was_training = model.training
    model.eval()
    rows = []
    for name in sets:
        for label in ("foo", "bar"):
            prompts = draw(name, count, seed=seed, labels=("foo", "bar"), true_label=label, words=words)
            target = tokenizer(label).input_ids[-1]
            row = {"set": name, "label": label}
            for order in orders:
                found = answers(model, tokenizer, [ORDERS[order](prompt).text for prompt in prompts])
                row[order] = 100 * (found == target).float().mean().item()
            rows.append(row)
    model.train(was_training)
    return rows


def mean(rows: list[dict], column: str) -> float:
    """The mean of a column over rows."""
    return sum(row[column] for row in rows) / len(rows)
