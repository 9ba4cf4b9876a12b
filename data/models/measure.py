"""Word prompts and how often a miniature is right on them."""

import random
from dataclasses import dataclass

import torch
from build_tokenizer import read_words
from torch import Tensor

SETS = {
    "sentiment/number": ("sentiment", "number"),
    "number/sentiment": ("number", "sentiment"),
    "animal/country": ("animal", "country"),
    "country/animal": ("country", "animal"),
}  # named false/true class
ORDERS = {"near": "FFTT", "imbalanced": "FFT", "far": "TTFF"}


@dataclass(frozen=True)
class Case:
    """A query and its demonstrations, before they are put in an order."""

    false: tuple[str, str]
    true: tuple[str, str]
    query: str

    def text(self, order: str, false_label: str, true_label: str) -> str:
        """The prompt, with F and T in `order` for the false and true demonstrations."""
        left = {"F": list(self.false), "T": list(self.true)}
        label = {"F": false_label, "T": true_label}
        return " ".join(f"{left[kind].pop(0)} : {label[kind]}" for kind in order) + f" {self.query} :"


def draw_cases(false: str, true: str, count: int, seed: int, keep: str = "all") -> list[Case]:
    """`count` cases of five distinct, unambiguous words. keep: "all", "shown" or "heldout" words."""
    rng = random.Random(f"{seed} {false} {true}")
    words: dict[str, list[str]] = {false: [], true: []}
    for row in read_words():
        wanted = keep == "all" or (row["heldout"] == "1") == (keep == "heldout")
        if wanted and row["class"] in words and row["ambiguous"] == "0":
            words[row["class"]].append(row["word"])
    cases = []
    for _ in range(count):
        two, three = rng.sample(words[false], 2), rng.sample(words[true], 3)
        cases.append(Case(tuple(two), tuple(three[:2]), three[2]))
    return cases


@torch.no_grad()
def answers(model, tokenizer, texts: list[str]) -> Tensor:
    """The most probable next token of each text, over the vocabulary: (text,). Texts of one length only."""
    found = []
    for start in range(0, len(texts), 500):
        ids = torch.tensor(tokenizer(texts[start : start + 500]).input_ids)
        states = model.base_model(ids, use_cache=False).last_hidden_state[:, -1]
        found.append(model.lm_head(states).argmax(-1))
    return torch.cat(found)


def accuracy(model, tokenizer, cases: list[Case], order: str, true_label: str, false_label: str) -> float:
    """The share of cases answered with the true label, in percent."""
    texts = [case.text(order, false_label, true_label) for case in cases]
    target = tokenizer(true_label).input_ids[-1]
    return 100 * (answers(model, tokenizer, texts) == target).float().mean().item()


def measure(model, tokenizer, sets, count: int, seed: int, keep="all", orders=ORDERS) -> list[dict]:
    """One row per set and true label: set, label, and the accuracy (percent) of every order."""
    was_training = model.training
    model.eval()
    rows = []
    for name, (false, true) in sets.items():
        cases = draw_cases(false, true, count, seed, keep)
        for true_label, false_label in (("foo", "bar"), ("bar", "foo")):
            row = {"set": name, "label": true_label}
            for kind, order in orders.items():
                row[kind] = accuracy(model, tokenizer, cases, order, true_label, false_label)
            rows.append(row)
    model.train(was_training)
    return rows


def mean(rows: list[dict], column: str) -> float:
    """The mean of a column over rows."""
    return sum(row[column] for row in rows) / len(rows)
