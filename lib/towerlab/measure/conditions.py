"""Prompts with one demonstration fewer, or in another order: attention and answers (v1 section 5; EMNLP section 6). Chapter 5.

data = conditions(model, encoded, CONDITIONS, encode)     # (condition, prompt, layer, head)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import xarray as xr
from twotowers.errors import NotTestable, TwoTowersError
from twotowers.recording import Recording

from towerlab.measure.chain import Run
from towerlab.measure.observations import Answers, observations, variables_of
from towerlab.model.capture import Capture, read_all
from towerlab.model.model import Model
from towerlab.prompts.prompt import Encoded, Prompt
from towerlab.prompts.variants import in_order, one_fewer


def true_nearest(prompt: Prompt) -> Prompt:
    """The paper's own order: the other class first, the query's class nearest the query."""
    return in_order(prompt, "".join(sorted("FT"[true] for true in prompt.is_true)))


def true_first(prompt: Prompt) -> Prompt:
    """The paper's re-ordered set (v1 section 5.2)."""
    return in_order(prompt, "".join(sorted(("FT"[true] for true in prompt.is_true), reverse=True)))


CONDITIONS: dict[str, Callable[[Prompt], Prompt]] = {
    "plain": lambda prompt: prompt,
    "one true fewer": one_fewer,
    "one other fewer": lambda prompt: one_fewer(prompt, kind=False),
    "true nearest": true_nearest,
    "true first": true_first,
}
"""Name -> how a prompt is changed; in the two with one fewer, the last demonstration of that kind is removed"""


def conditions(
    model: Model,
    prompts: Sequence[Prompt],
    changes: Mapping[str, Callable[[Prompt], Prompt]],
    encode: Callable[[Sequence[Prompt]], list[Encoded]],
) -> xr.Dataset:
    """`attention_true`, `attention_other` (condition, prompt, layer, head): attention on all labels of a kind; and answers.

    Of the plain prompts also `attention_left` (true labels without the last true demonstration) and `attention_removed`
    (everything of the last true demonstration): left / (1 - removed) is what the softmax alone would give to the true
    labels once that demonstration is removed. Raises TwoTowersError where a kind would lose its only demonstration.
    """
    encoded = {name: encode([change(prompt) for prompt in prompts]) for name, change in changes.items()}
    shape = (len(encoded), len(prompts), model.n_layers, model.n_heads)
    on_true, on_other = np.empty((2, *shape), dtype=np.float32)
    on_rest, on_last = np.empty((2, *shape[1:]), dtype=np.float32)
    answers = Answers(encoded["plain"], len(encoded))
    for i, (name, variants) in enumerate(encoded.items()):
        answers.encoded = variants

        def read(capture: Capture, i: int = i, name: str = name) -> None:
            for row, (at, e) in enumerate(zip(capture.index, capture.prompts, strict=True)):
                weights = capture.weights[:, row].float().cpu().numpy()
                true = np.array(e.prompt.is_true)
                labels = np.array(e.label_positions)
                on_true[i, at] = weights[..., labels[true]].sum(-1)
                on_other[i, at] = weights[..., labels[~true]].sum(-1)
                if name == "plain":
                    last = int(np.flatnonzero(true)[-1])
                    on_rest[at] = weights[..., labels[true][:-1]].sum(-1)
                    on_last[at] = weights[..., slice(*demonstration(e, last))].sum(-1)
            answers.read(capture, (i,))

        read_all(f"conditions, {name}", model, variants, {"weights"}, read)
    variables = variables_of(
        "conditions", attention_true=on_true, attention_other=on_other, attention_left=on_rest, attention_removed=on_last
    )
    return observations(encoded["plain"], variables | answers.variables("condition"), condition=list(encoded))


def demonstration(encoded: Encoded, place: int) -> tuple[int, int]:
    """First token and the one after the last of a demonstration: its text, colon, label and separator."""
    starts = [start for start, _ in (*encoded.text_spans, encoded.query_span)]
    if not 0 <= place < len(starts) - 1:
        raise TwoTowersError(f"demonstration {place}: the prompt has {len(starts) - 1}")
    return starts[place], starts[place + 1]


def check_one_can_go(run: Run) -> None:
    """Raises NotTestable where the form has one demonstration of each class, so that none can be removed."""
    if run.form.k < 2:
        raise NotTestable("its best-learned form has one demonstration of each class, and none can be removed: give k=2")


def _conditions(run: Run) -> Recording:
    """Attention and answers with one demonstration fewer, and in two orders."""
    check_one_can_go(run)
    few = run.encode(run.few())
    return run.in_parts("conditions", few, lambda some: conditions(run.model, [e.prompt for e in some], CONDITIONS, run.encode))
