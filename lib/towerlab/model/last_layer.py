"""The last layer, computed at the last position only.

    >>> from towerlab.model.loading import load
    >>> from towerlab.prompts.paper_sets import paper_prompts
    >>> from towerlab.prompts.prompt import encode_all
    >>> model = load("mini-gpt2")
    >>> batch = encode_all(paper_prompts("animal/country", 2), model.tokenizer)
    >>> with last_layer_at_last(model):
    ...     logits = model.logits(batch)

The logits of the last position need keys and values of all positions from the last layer, but its
query, W_O and FFN at the last position only. So the stock block runs twice: on all positions, until
its attention is computed, and then on the last position with this attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

from accelerate.utils import recursively_apply
from torch import Tensor

from towerlab.model.attention import READERS, Attention, Reached, reading_attention, split_call
from towerlab.model.model import Model


def at_last(arguments: Any, n_positions: int, n_rows: int = 1) -> Any:
    """Return arguments of a block for rows that are all at the last position.

    Args:
        arguments: Arguments of the call on all positions, without hidden states.
        n_positions: Number of positions of that call.
        n_rows: Number of rows.

    Returns:
        Arguments with the last position's cosines and sines, or its number, for every row. Masks
        stay as they are, because the attention of the rows is computed by a reader.
    """

    def of_rows(x: Tensor) -> Tensor:
        _, length, *rest = x.shape
        is_mask = length != n_positions
        if is_mask:
            return x
        last = x[:, -1:]
        return last.expand(-1, n_rows, *rest)

    return recursively_apply(of_rows, arguments)


@contextmanager
def last_layer_at_last(model: Model) -> Iterator[None]:
    """Compute the last layer at the last position only, in the runs inside.

    Readers of its attention are called with all positions, as in a whole run. The outputs of its
    parts have one position, and the output of the block has the last position's vector at every
    position. The logits of the last position are equal up to rounding.

    Args:
        model: Any model.

    Yields:
        None.
    """
    layer = model.n_layers - 1
    block = model.layers[layer]
    module = model.part(layer, "attention")
    whole = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        hidden_states, args, kwargs = split_call(args, kwargs)
        last_z: list[Tensor] = []

        def keep(_: int, attention: Attention, compute_z: Callable[[], Tensor]) -> None:
            last_z.append(compute_z()[:, :, -1:])
            raise Reached

        def give(*_: Any) -> Tensor:
            return last_z[0]

        with reading_attention(model, [layer], keep), suppress(Reached):
            return whole(hidden_states, *args, **kwargs)  # only a block that is skipped returns
        n_positions = hidden_states.shape[1]
        args, kwargs = at_last((args, kwargs), n_positions)
        last = hidden_states[:, -1:].contiguous()
        without_readers = patch.object(module, READERS, (), create=True)
        with without_readers, reading_attention(model, [layer], give):
            output = whole(last, *args, **kwargs)

        def as_long(x: Tensor) -> Tensor:
            return x.expand(-1, n_positions, -1)

        return recursively_apply(as_long, output)  # GPT-2 expects as many positions

    with patch.object(block, "forward", forward):
        yield
