"""A full factorial of prompts (order x true label x query class), its design, and rules that look at labels only.

    prompts, design = factorial(draw("animal/country", 20))
    baselines(prompts)                                   # what rules without any learning score here

The design says in numbers what could decide between the labels, a and b being the first and second of a prompt's
labels. Each term is coded so that +1 speaks for a and -1 for b:

- last: the label of the last demonstration;
- alternation: the label that would continue an alternation, where the last TAIL labels alternate; else 0;
- place: mean place of label a less that of b, over the largest it can be: +1 when all a stand nearest the query;
- count: demonstrations of a less those of b; 0 where the classes have equal numbers;
- match: is the query of the class of label a? Only this term needs a comparison of the query with demonstrations.

In a balanced factorial match and the other four (the label sequence) are orthogonal, to each other and to a constant
preference for a label word. v1 sections 4.4, 5.1 and 5.2 try single orders; this design is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from math import comb

import numpy as np
import pandas as pd
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from twotowers.errors import TwoTowersError
from twotowers.prompts.datasets import swapped_labels
from twotowers.prompts.prompt import Demonstration, Prompt

TAIL = 4  # labels that must alternate for an alternation; all of them when there are fewer, three at least
_MIRROR = str.maketrans("TF", "FT")


def arrangements(k: int, n: int | None = None, seed: int | Sequence[int] = 0) -> list[str]:
    """Orders of k true ("T") and k false ("F") demonstrations: all of them, or n drawn at random.

    Drawn ones come with their mirror (T and F exchanged), so every place holds each kind equally often. Raises
    TwoTowersError for an odd n or more orders than there are.
    """
    if k < 1:
        raise TwoTowersError(f"k={k}: give at least 1 demonstration of each class")
    if n is None:
        places = combinations(range(2 * k), k)
        return ["".join("T" if i in those else "F" for i in range(2 * k)) for those in places]
    if n < 2 or n % 2 or n > comb(2 * k, k):
        raise TwoTowersError(f"{n} orders of {k} + {k} do not balance: give an even number up to {comb(2 * k, k)}")
    rng, rest, found = np.random.default_rng(seed), list("F" * (k - 1) + "T" * k), {}
    while len(found) < n // 2:
        found["F" + "".join(rng.permutation(rest))] = None
    return [order for one in found for order in (one, one.translate(_MIRROR))]


def factorial(
    prompts: Sequence[Prompt], orders: int | Sequence[str] | None = None, seed: int = 0, imbalanced: bool = False
) -> tuple[list[Prompt], pd.DataFrame]:
    """Every prompt in all its orders x both assignments of labels x a query of either class; and `design` of these.

    `orders`: None for all arrangements, a number to draw for each prompt (see `arrangements`), or arrangements such as
    ("FFTT", "TTFF"). `imbalanced` puts beside each prompt the same one without its first demonstration: from all
    orders of k + k these are all orders of k + (k - 1), either class being the fewer.

    The design has two more columns: source (the number of the drawn prompt) and cluster. Sources that share a query
    word, directly or through others, are one cluster; to have many, draw prompts of different queries. The query word
    of the other class comes from the other prompts, does not stand in the prompt, and is shared by as few sources as
    can be. Raises TwoTowersError for prompts without two named classes of one label each, unequal numbers of
    demonstrations, arrangements that do not balance, and no word left for a query.
    """
    prompts = list(prompts)
    for prompt in prompts:
        _check_source(prompt, imbalanced)
    others, made, source = _other_queries(prompts), [], []
    for i, (prompt, other) in enumerate(zip(prompts, others, strict=True)):
        k = sum(prompt.is_true)
        if orders is None or isinstance(orders, int | np.integer):
            chosen = arrangements(k, orders, seed=[seed, i])
        else:
            chosen = _check_balance(orders, k)
        asked_other = _asking(prompt, other)
        for order, asked, swap in product(chosen, (False, True), (False, True)):
            shown = replace(asked_other if asked else prompt, demonstrations=_ordered(prompt, order))
            shown = swapped_labels(shown) if swap else shown
            forms = [shown, replace(shown, demonstrations=shown.demonstrations[1:])][: 1 + imbalanced]
            made += forms
            source += [i] * len(forms)
    table = design(made)
    table.insert(0, "source", source)
    table.insert(1, "cluster", _clusters([p.query for p in prompts], others)[source])
    return made, table


def design(prompts: Sequence[Prompt]) -> pd.DataFrame:
    """One row per prompt, read from the prompt alone; the terms are explained at the top of this module.

    Columns: query, query_class, true_label, order ("FFTT": T carries the query's label), labels ("bbaa": a is the first
    label word), and the terms last, alternation, place, count, match. Raises TwoTowersError for no prompts, other than
    two labels, labels that differ between prompts, and a prompt whose demonstrations show one label only.
    """
    prompts = list(prompts)
    if len({p.labels for p in prompts}) != 1 or len(prompts[0].labels) != 2:
        raise TwoTowersError("a design needs prompts of the same two labels: draw them with one pair of labels")
    return pd.DataFrame([_row(prompt) for prompt in prompts])


def _row(prompt: Prompt) -> dict[str, object]:
    a = prompt.labels[0]
    sign = np.array([1 if d.label == a else -1 for d in prompt.demonstrations])
    if len(set(sign)) != 2:
        raise TwoTowersError("a prompt whose demonstrations show one label only has no place in a design: take k of 2")
    places = np.arange(len(sign))
    gap = places[sign > 0].mean() - places[sign < 0].mean()
    return {
        "query": prompt.query, "query_class": prompt.cls, "true_label": prompt.true_label,
        "order": "".join("FT"[true] for true in prompt.is_true),
        "labels": "".join("a" if s > 0 else "b" for s in sign),
        "last": float(sign[-1]), "alternation": float(-sign[-1] * _alternates(sign)), "place": gap / (len(sign) / 2),
        "count": float(sign.sum()), "match": 1.0 if prompt.true_label == a else -1.0,
    }  # fmt: skip


def _alternates(sign: np.ndarray) -> bool:
    tail = sign[-TAIL:]
    return len(tail) >= 3 and bool((tail[1:] != tail[:-1]).all())


def baselines(prompts: Sequence[Prompt]) -> pd.DataFrame:
    """Share of prompts that rules get right which look at labels only: rule, accuracy, n. Computed from prompts alone.

    "continue the sequence" switches where the labels alternate and repeats elsewhere. "the preferred label" is the one
    label word that scores best when always said; "the more frequent label" counts ties as half.
    """
    table = design(prompts)
    match, last, switch = table["match"], table["last"], -table["last"]
    says = {
        "repeat the last label": last,
        "switch from the last label": switch,
        "continue the sequence": switch.where(table["alternation"] != 0, last),
        "the preferred label": np.sign(match.sum()) or 1.0,
        "the more frequent label": np.sign(table["count"]),
    }
    return pd.DataFrame(
        [{"rule": r, "accuracy": float((0.5 + 0.5 * s * match).mean()), "n": len(table)} for r, s in says.items()]
    )


def _check_source(prompt: Prompt, imbalanced: bool) -> None:
    kinds = {(d.cls, d.label) for d in prompt.demonstrations}
    true = sum(prompt.is_true)
    if len(kinds) != 2 or len({c for c, _ in kinds}) != 2 or prompt.cls not in {c for c, _ in kinds} - {""}:
        raise TwoTowersError(
            "a factorial needs prompts of two named classes, each with a label: draw a pair of classes"
        )
    if len(prompt.demonstrations) != 2 * true:
        raise TwoTowersError("a factorial needs as many demonstrations of either class: give the balanced prompts")
    if imbalanced and true < 2:
        raise TwoTowersError("k=1 leaves one label when a demonstration goes: draw with k of at least 2")


def _check_balance(orders: Sequence[str], k: int) -> list[str]:
    letters = np.array([list(order) for order in orders]) if len({len(o) for o in orders}) == 1 else np.empty((0, 0))
    true = letters == "T"
    if not (len(true) and np.isin(letters, ["T", "F"]).all() and true.shape[1] == 2 * k and (true.sum(1) == k).all()):
        raise TwoTowersError(f"orders must be words of {k} T and {k} F, such as {'F' * k + 'T' * k}")
    if (true.mean(0) != 0.5).any():
        raise TwoTowersError("these orders do not balance: give with each one its mirror (T and F exchanged)")
    return list(orders)


def _ordered(prompt: Prompt, order: str) -> tuple[Demonstration, ...]:
    rest = {kind: iter([d for d, t in zip(prompt.demonstrations, prompt.is_true, strict=True) if t == kind])
            for kind in (True, False)}  # fmt: skip
    return tuple(next(rest[letter == "T"]) for letter in order)


def _asking(prompt: Prompt, query: str) -> Prompt:
    other = next(d for d in prompt.demonstrations if d.cls != prompt.cls)
    return replace(prompt, query=query, cls=other.cls, true_label=other.label)


def _other_queries(prompts: list[Prompt]) -> list[str]:
    """For every prompt a query of its other class: one that its own query already has, a fresh one, or any."""
    pools: dict[str, dict[str, None]] = {}
    for p in prompts:
        for text, cls in ((p.query, p.cls), *((d.text, d.cls) for d in p.demonstrations)):
            pools.setdefault(cls, {})[text] = None
    partner_of, out = {p.query: p.query for p in prompts}, []
    for p in prompts:
        cls = next(d.cls for d in p.demonstrations if d.cls != p.cls)
        free = [text for text in pools[cls] if text not in {d.text for d in p.demonstrations}]
        if not free:
            raise TwoTowersError(f"no text of the class {cls} is left to ask for: draw more prompts")
        rank = {text: (partner_of.get(text) != p.query, text in partner_of) for text in free}
        out.append(min(free, key=rank.__getitem__))
        partner_of.setdefault(out[-1], p.query)
    return out


def _clusters(queries: list[str], others: list[str]) -> np.ndarray:
    words = pd.factorize(np.array([*queries, *others], dtype=object))[0]
    a, b, n = words[: len(queries)], words[len(queries) :], words.max() + 1
    found = connected_components(coo_matrix((np.ones(len(a)), (a, b)), shape=(n, n)), directed=False)[1]
    return pd.factorize(found[a])[0]
