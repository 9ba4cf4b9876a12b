"""What the scenes of the playground do to a prompt, and the push of its query along the direction between two classes.

SCENES["Swap the labels"](prompt)                 # another prompt
heads, query = push(model, prompt)                # layer -> what a dose of 1 adds to the last position's queries
with edited(model, steer(heads, query, None, at)): ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from twotowers import choose
from twotowers.errors import TwoTowersError
from twotowers.forms import SEPARATORS, Form
from twotowers.heads import Head

from towerlab.measure.conditions import true_first
from towerlab.measure.directions import BLOCKS, class_directions
from towerlab.measure.heads import heads
from towerlab.model import query_key
from towerlab.model.model import Model
from towerlab.prompts.blocks import class_words, draw_blocks
from towerlab.prompts.prompt import Prompt, encode, encode_all
from towerlab.prompts.variants import exchanged_labels, one_fewer

SWITCH_OFF = "Switch off the heads that add most"
PUSH = "Push the query towards the other class"


def mix_classes(prompt: Prompt) -> Prompt:
    """The first and the last demonstration exchange their labels."""
    first, *rest, last = prompt.demonstrations
    return replace(prompt, demonstrations=(replace(first, label=last.label), *rest, replace(last, label=first.label)))


SCENES: dict[str, Callable[[Prompt], Prompt]] = {
    "Swap the labels": exchanged_labels,
    "Move the matching examples away": true_first,
    "Remove one": one_fewer,
    "Mix two classes": mix_classes,
    "A query of neither class": lambda prompt: replace(prompt, query="river"),
    SWITCH_OFF: lambda prompt: prompt,  # and the heads with the largest logit differences are zeroed
    PUSH: lambda prompt: prompt,  # and the dose is set
}


def class_of(word: str) -> str | None:
    """Its class in the word lists."""
    return next((cls for cls, words in class_words().items() if word in words), None)


def true_label(rows: Sequence[tuple[str, str]], query: str) -> str | None:
    """The label of the demonstrations whose class is the query's; None when a word is unknown or they do not agree."""
    cls = class_of(query)
    labels = {label for text, label in rows if cls and class_of(text) == cls}
    return labels.pop() if len(labels) == 1 else None


def pair_of(prompt: Prompt) -> tuple[str, str]:
    """Two classes of the demonstrations, the query's first where it is one of them. Raises TwoTowersError for fewer."""
    classes = list(dict.fromkeys(filter(None, (class_of(d.text) for d in prompt.demonstrations))))
    own = class_of(prompt.query)
    pair = [own, *(cls for cls in classes if cls != own)] if own in classes else classes
    if len(pair) < 2:
        raise TwoTowersError("a push needs demonstrations of two classes of the word lists, such as love and two")
    return pair[0], pair[1]


Direction = tuple[list[Head], Float[Tensor, "layer head d_head"]]


def push(
    model: Model, prompt: Prompt, directions: dict[tuple, Direction] | None = None
) -> tuple[list[Head], dict[int, Float[Tensor, "1 head d_head"]]]:
    """The heads that compare the prompt's two classes most, and what a dose of 1 towards the other class adds to the queries
    of every head of their layers at the prompt's last position. `directions`: those of this model made before, and after."""
    names, directions = {sign: name for name, sign in SEPARATORS.items()}, {} if directions is None else directions
    key = (pair_of(prompt), names[prompt.separator], prompt.labels[:2])
    if key not in directions:
        directions[key] = _direction(model, *key)
    of_pair, direction = directions[key]
    last = torch.tensor([[encode(prompt, model.tokenizer).last]], device=model.device).expand(1, model.n_heads)
    return of_pair, {layer: query_key.rotated(model, layer, direction[layer][None], last) for layer, _ in of_pair}


def _direction(model: Model, pair: tuple[str, str], separator: str, labels: Sequence[str]) -> Direction:
    """Heads by attention to labels of the query's class minus the other; mean query of the other class minus the own."""
    own, other = pair
    blocks = draw_blocks(BLOCKS, Form(2, separator), seed=[0, 1], pairs=[f"{other}/{own}"], labels=["/".join(labels)])
    encoded = encode_all(blocks, model.tokenizer, model.context)
    differences = choose.attention_difference(heads(model, encoded)).mean("prompt")
    best = choose.top(differences, choose.TOP, -np.inf)
    direction = torch.tensor(class_directions(model, encoded)["query"].isel(pair=0).values, device=model.device)
    return best, direction.to(torch.promote_types(model.dtype, torch.float32))
