"""The paper's own sets of prompts (v1, section 3): false demonstrations first, true ones nearest the query, labels foo and bar.

    prompts = paper_prompts("sentiment/number", 100)            # false class / true class, "foo" true
    prompts[0].text                                             # 'hate : bar calm : bar nine : foo six : foo two :'
    [CHANGES["one true fewer"](p) for p in prompts]             # v1 section 5.1

Prompt i of a set is always the same, however many are drawn. A prompt's `dataset` is its set, `block` its number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations

import numpy as np
from twotowers.errors import TwoTowersError
from twotowers.forms import SEPARATORS, Form

from towerlab.prompts.blocks import class_words
from towerlab.prompts.prompt import Demonstration, Prompt
from towerlab.prompts.variants import exchanged_labels, in_order, one_fewer, with_query

WORD_SETS = ("sentiment/number", "number/sentiment", "animal/country", "country/animal")
"""Named false class / true class; the query is of the true class"""
LISTED_SETS = WORD_SETS[::2]
"""Those whose lists of heads the paper shows (v1 figures 3 and 4)"""
FORMS = (Form(2, "space"), Form(2, "line break"))
"""The paper's prompt template, and the one for tokenizers that cannot say the labels in it"""
LABELS = ("foo", "bar")
CASE = Prompt(
    tuple(Demonstration(text, *of) for of, texts in ((("bar", "sentiment"), ("love", "like")), (("foo", "number"), ("eight", "two")))
          for text in texts), "one", "foo", LABELS, "number", WORD_SETS[0],
)  # fmt: skip
"""The paper's example (v1 section 3): love : bar like : bar eight : foo two : foo one :"""
_SEED = 5


def paper_prompts(
    name: str,
    n: int,
    *,
    true_label: str = "foo",
    order: str = "FFTT",
    form: Form = FORMS[0],
    seed: int = 0,
    texts: Mapping[str, Sequence[str]] | None = None,
) -> list[Prompt]:
    """Prompts of one set, with a given true label and order of true and false demonstrations.

    Args:
        name: the set, false class / true class.
        n: how many prompts.
        true_label: "foo" or "bar".
        order: which places hold true demonstrations; "FFTT" is the paper's.
        texts: class -> texts to draw from; default the word lists.
    Raises:
        TwoTowersError: for an unknown class, another label, and a class with fewer than k + 2 texts.
    """
    texts = class_words() if texts is None else texts
    for cls in name.split("/"):
        if len(texts.get(cls, ())) < form.k + 2:
            raise TwoTowersError(
                f"the set {name} needs {form.k + 2} texts of the class '{cls}', there are {len(texts.get(cls, ()))}"
            )
    if true_label not in LABELS:
        raise TwoTowersError(f"the paper's labels are {' and '.join(LABELS)}, not '{true_label}'")
    prompts = [_draw(name, i, form, seed, texts) for i in range(n)]
    prompts = prompts if true_label == LABELS[0] else [exchanged_labels(p) for p in prompts]
    return [in_order(p, order) for p in prompts]


def _draw(name: str, number: int, form: Form, seed: int, texts: Mapping[str, Sequence[str]]) -> Prompt:
    false, true = name.split("/")
    rng = np.random.default_rng([seed, _SEED, *name.encode(), number])
    own, other = (rng.permutation(np.array([t for t in texts[cls] if t not in LABELS], dtype=object)) for cls in (true, false))
    rows = [(text, LABELS[1], false) for text in other[: form.k]] + [(text, LABELS[0], true) for text in own[: form.k]]
    demonstrations = tuple(Demonstration(*row) for row in rows)
    return Prompt(demonstrations, own[form.k], LABELS[0], LABELS, true, name, SEPARATORS[form.separator], number)


def other_query(prompt: Prompt, texts: Mapping[str, Sequence[str]] | None = None) -> Prompt:
    """The prompt with a query of its other class (EMNLP tables 5 and 6, as summarised: the prediction flips)."""
    texts, cls = class_words() if texts is None else texts, next(d.cls for d in prompt.demonstrations if d.cls != prompt.cls)
    used = {d.text for d in prompt.demonstrations} | set(LABELS)
    free = [text for text in texts[cls] if text not in used]
    return with_query(prompt, free[np.random.default_rng([_SEED, prompt.block]).integers(len(free))], cls)


def orders(k: int) -> list[str]:
    """Every order of k true and k false demonstrations; the paper's first."""
    return sorted({"".join(order) for order in permutations("F" * k + "T" * k)})


CHANGES: dict[str, Callable[[Prompt], Prompt]] = {
    "as it is": lambda prompt: prompt,
    "labels exchanged": exchanged_labels,
    "one true fewer": one_fewer,
    "true first": lambda prompt: in_order(prompt, orders(2)[-1]),
    "true first, labels exchanged": lambda prompt: exchanged_labels(in_order(prompt, orders(2)[-1])),
    "query of the other class": other_query,
} | {order: (lambda prompt, order=order: in_order(prompt, order)) for order in orders(2)[1:-1]}
"""Name -> how a prompt of a set is changed. The first, second, fourth and fifth are a counterbalanced set of four; the first, the
fourth and those named after an order are all six orders (EMNLP table 8, as summarised)"""
