"""Prompts whose demonstrations tell nothing of the task: labels shared out over the classes, or texts over the labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from twotowers.errors import TwoTowersError
from twotowers.prompts.prompt import Prompt


def uninformative(prompts: Sequence[Prompt], seed: int = 0) -> list[Prompt]:
    """Every prompt with labels that do not tell its classes: each class has each label equally often, drawn at random.

    Texts, query and true label stay. Todd et al. (2024) shuffle labels freely, which at 2 + 2 keeps the task in every
    sixth prompt and reverses it in another. Raises TwoTowersError for a class with an odd number of demonstrations, and
    for other than two labels.
    """
    rng, out = np.random.default_rng([seed, 24]), []
    for prompt in prompts:
        labels: list[str] = [""] * len(prompt.demonstrations)
        for cls in dict.fromkeys(d.cls for d in prompt.demonstrations):
            places = [i for i, d in enumerate(prompt.demonstrations) if d.cls == cls]
            if len(places) % 2 or len(prompt.labels) != 2:
                raise TwoTowersError("labels cannot be shared out evenly: give two labels and an even k")
            for i, place in enumerate(rng.permutation(places)):
                labels[place] = prompt.labels[i % 2]
        shown = tuple(replace(d, label=label) for d, label in zip(prompt.demonstrations, labels, strict=True))
        out.append(replace(prompt, demonstrations=shown))
    return out


def silent_texts(prompts: Sequence[Prompt], seed: int = 0) -> list[Prompt]:
    """Every prompt with its labels in place and half of each class's texts exchanged for half of the other's.

    So texts do not tell the labels, whose order, query and true label stay: what such a prompt's answer owes to the
    order of labels. With an odd number of demonstrations a class the half is rounded up or down at random.
    """
    rng, out = np.random.default_rng([seed, 52]), []
    for prompt in prompts:
        shown, sides = list(prompt.demonstrations), ([], [])
        for i in rng.permutation(len(shown)):
            sides[prompt.is_true[i]].append(int(i))
        half = int(min(map(len, sides)) / 2 + rng.choice([0, 0.5]))
        for i, j in list(zip(*sides, strict=False))[:half]:
            a, b = shown[i], shown[j]
            shown[i], shown[j] = replace(b, label=a.label), replace(a, label=b.label)
        out.append(replace(prompt, demonstrations=tuple(shown)))
    return out
