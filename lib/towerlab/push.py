"""The push of the playground: what moves a prompt's query towards the other class (chapter 11).

heads, query = push(model, prompt)      # add dose * query at the last position
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from twotowers import choose
from twotowers.errors import TwoTowersError
from twotowers.heads import Head
from twotowers.settings import SEPARATORS, Form

from towerlab.measure.heads import heads as measure_heads
from towerlab.measure.tower_grid import BLOCKS, class_directions
from towerlab.model import query_key
from towerlab.model.model import Model
from towerlab.prompts.blocks import class_words, draw_blocks
from towerlab.prompts.prompt import Prompt, encode, encode_all

SEPARATOR = {sign: name for name, sign in SEPARATORS.items()}
"""What stands between demonstrations -> its name"""
Direction = tuple[list[Head], Float[Tensor, "layer head d_head"]]
"""The heads that compare two classes most; mean query of the second class minus the first's, of
every head"""


def class_of(word: str) -> str | None:
    """Its class in the word lists."""
    return next((cls for cls, words in class_words().items() if word in words), None)


def push(
    model: Model, prompt: Prompt, directions: dict[tuple, Direction] | None = None
) -> tuple[list[Head], dict[int, Float[Tensor, "1 head d_head"]]]:
    """The heads that compare the prompt's two classes most, and what moves their query.

    The query's class is its own where it is one of the two.

    Args:
        model: any.
        prompt: with demonstrations of two classes of the word lists.
        directions: those of this model made before; a new one is added.

    Returns:
        Heads, and layer -> (1, head, d_head): what a dose of 1 towards the other class adds to the
            queries of every head of these layers at the last position.

    Raises:
        TwoTowersError: for demonstrations of fewer classes.
    """
    known = dict.fromkeys(cls for d in prompt.demonstrations if (cls := class_of(d.text)))
    query_class = class_of(prompt.query)
    own, other, *_ = [*sorted(known, key=lambda cls: cls != query_class), "", ""]
    if not other:
        raise TwoTowersError(
            "a push needs demonstrations of two classes of the word lists, such as love and two"
        )
    directions = {} if directions is None else directions
    key = (own, other, prompt.separator, prompt.labels[:2])
    if key not in directions:
        directions[key] = _direction(model, *key)
    heads, direction = directions[key]
    last = torch.tensor([[encode(prompt, model.tokenizer).last]], device=model.device).expand(
        1, model.n_heads
    )
    return heads, {
        layer: query_key.rotated(model, layer, direction[layer][None], last) for layer, _ in heads
    }


def _direction(model: Model, own: str, other: str, sign: str, labels: Sequence[str]) -> Direction:
    """Heads by attention difference; mean query of the other class minus that of the own."""
    form = Form(2, SEPARATOR[sign])
    blocks = draw_blocks(
        BLOCKS, form, seed=[0, 1], pairs=[f"{other}/{own}"], labels=["/".join(labels)]
    )
    encoded = encode_all(blocks, model.tokenizer, model.context)
    differences = choose.attention_difference(measure_heads(model, encoded)).mean("prompt")
    best = choose.top(differences, choose.TOP, -np.inf)
    direction = torch.tensor(
        class_directions(model, encoded)["query"].isel(pair=0).values, device=model.device
    )
    return best, direction.to(torch.promote_types(model.dtype, torch.float32))
