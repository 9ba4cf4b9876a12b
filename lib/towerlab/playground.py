"""Change a prompt or ablate heads, and see answer, attention and logit differences change together.

    >>> effect = explore(loading.load("mini-gpt2"), State(CASE, heads=(Head(3, 7),)))
    >>> list(effect.attention["demonstration"])
    ['1. love : bar', '2. like : bar', '3. eight : foo', '4. two : foo']
    >>> [demonstration.label for demonstration in SCENES["Swap the labels"](CASE).demonstrations]
    ['foo', 'foo', 'bar', 'bar']

`Playground("mini-gpt2")`, the last line of a cell, has widgets around it. The page "Playground" of
the book does the same for one model, in the reader's browser.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import altair as alt
import ipywidgets as widgets
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from twotowers import figures
from twotowers.errors import TwoTowersError
from twotowers.explore import alert
from twotowers.heads import Head, check_inside, named
from twotowers.settings import SEPARATORS

from towerlab.measure.conditions import true_first
from towerlab.model import loading
from towerlab.model.capture import Capture, capture, logit_difference_rows
from towerlab.model.edits import edited, everywhere, steer, zero
from towerlab.model.model import Model
from towerlab.prompts.paper_sets import CASE
from towerlab.prompts.prompt import Demonstration, Encoded, Prompt, encode
from towerlab.prompts.variants import exchanged_labels, one_fewer
from towerlab.push import SEPARATOR, Direction, class_of, push

SHOWN = 5  # heads whose attention is shown when none is picked
TOP = 5  # tokens beside the labels
DOSE = 1.5  # of the scene that pushes the query
SWITCH_OFF = "Switch off the heads that add most"
PUSH = "Push the query towards the other class"


def mix_classes(prompt: Prompt) -> Prompt:
    """The first and the last demonstration exchange their labels."""
    first, *rest, last = prompt.demonstrations
    return replace(
        prompt,
        demonstrations=(replace(first, label=last.label), *rest, replace(last, label=first.label)),
    )


SCENES: dict[str, Callable[[Prompt], Prompt]] = {
    "Swap the labels": exchanged_labels,
    "Move the matching examples away": true_first,
    "Remove one": one_fewer,
    "Mix two classes": mix_classes,
    "A query of neither class": lambda prompt: replace(prompt, query="river"),
    SWITCH_OFF: lambda prompt: (
        prompt
    ),  # and the heads with the largest logit differences are zeroed
    PUSH: lambda prompt: prompt,  # and the dose is set
}


@dataclass(frozen=True)
class State:
    """A prompt, the heads that are ablated (zeroed at all positions), and how far the query is
    pushed (`push`)."""

    prompt: Prompt
    heads: tuple[Head, ...] = ()
    dose: float = 0.0


@dataclass(frozen=True)
class Effect:
    """The model as it is and under the state's changes, as tidy tables with columns before and
    after.

    `answer`: token, probability of every label and of the top tokens. `attention`: demonstration,
    mean over the state's heads (or the `strongest`) of the attention of the last position on its
    label. `heads`: layer, head, `head_logit_differences`. `sentence`: the answer in words.
    """

    answer: pd.DataFrame
    attention: pd.DataFrame
    heads: pd.DataFrame
    sentence: str


@torch.inference_mode()
def explore(model: Model, state: State, directions: dict[tuple, Direction] | None = None) -> Effect:
    """Two forward passes: the model as it is, and under the state's changes.

    Args:
        model: any.
        state: a prompt, heads that are ablated, and how far the query is pushed.
        directions: those of `push` made before; new ones are added.

    Raises:
        TwoTowersError: on heads outside the model, and on a push without two known classes.
    """
    check_inside(state.heads, model.n_layers, model.n_heads, model.name)
    encoded = encode(state.prompt, model.tokenizer, model.context)
    before = capture(model, [encoded], {"weights"})
    push_heads: Sequence[Head] = ()
    edits = [zero(state.heads, everywhere([encoded]))]
    if state.dose:
        push_heads, query = push(model, state.prompt, directions)
        query = {layer: state.dose * x for layer, x in query.items()}
        edits.insert(0, steer(push_heads, query, None, torch.tensor([encoded.label_positions])))
    with edited(model, *edits):
        after = capture(model, [encoded], {"weights", "keys"})
    # Attention was recorded before the push; with a soft cap (Gemma 2) this is nearly it.
    for layer, head in push_heads:
        score_of_push = after.keys[layer, 0, model.value_head(head)] @ query[layer][0, head].to(
            after.keys
        )
        after.weights[layer, 0, head] = (
            after.weights[layer, 0, head].log() + score_of_push
        ).softmax(-1)
    p = [run.logits[0].double().softmax(-1).cpu().numpy() for run in (before, after)]
    tokens = dict.fromkeys(
        [*encoded.label_ids.values(), *np.argsort(-p[1], kind="stable")[:TOP].tolist()]
    )
    answer = pd.DataFrame(
        [{"token": _token_text(model, i), "before": p[0][i], "after": p[1][i]} for i in tokens]
    )
    differences = [head_logit_differences(run, model).cpu().numpy() for run in (before, after)]
    heads = pd.DataFrame(
        np.indices(differences[0].shape).reshape(2, -1).T, columns=["layer", "head"]
    )
    heads["before"], heads["after"] = map(np.ravel, differences)
    attention = _attention(encoded, state.heads or push_heads or strongest(heads), before, after)
    return Effect(answer, attention, heads, _sentence(model, state, p))


def strongest(heads: pd.DataFrame) -> tuple[Head, ...]:
    """The SHOWN heads that add most to the logit difference."""
    rows = heads.nlargest(SHOWN, "before")
    return tuple(map(Head, rows["layer"].tolist(), rows["head"].tolist()))


def head_logit_differences(capture: Capture, model: Model) -> Float[Tensor, "layer head"]:
    """What every head adds to the logit of true minus other label (nats), final norm frozen."""
    row = logit_difference_rows(capture, model)[0]
    weights = [model.output_weight(layer).to(row) for layer in range(model.n_layers)]
    return torch.stack(
        [
            torch.einsum("hk,hkd,d->h", z[0].to(row), w, row)
            for z, w in zip(capture.z, weights, strict=True)
        ]
    )


def _attention(
    encoded: Encoded, heads: Sequence[tuple[int, int]], before: Capture, after: Capture
) -> pd.DataFrame:
    """Mean over heads of the attention on each label."""
    layer, head = zip(*heads, strict=True)
    table = pd.DataFrame(
        {
            "demonstration": [
                f"{i}. {d.text} : {d.label}" for i, d in enumerate(encoded.prompt.demonstrations, 1)
            ]
        }
    )
    for name, run in (("before", before), ("after", after)):
        table[name] = (
            run.weights[layer, 0, head]
            .double()
            .mean(0)[list(encoded.label_positions)]
            .cpu()
            .numpy()
        )
    return table


def _token_text(model: Model, token: int) -> str:
    return model.tokenizer.decode([token]).strip() or "␣"


def _sentence(model: Model, state: State, p: Sequence[np.ndarray]) -> str:
    before, after = (f"“{_token_text(model, int(of.argmax()))}” ({of.max():.0%})" for of in p)
    changes = []
    if state.heads:
        changes.append(f"{', '.join(named(state.heads))} zeroed")
    if state.dose:
        changes.append("the query pushed")
    return f"The model says {before}" + (
        f"; with {' and '.join(changes)} it says {after}." if changes else "."
    )


def true_label(rows: Sequence[tuple[str, str]], query: str) -> str | None:
    """The label of the demonstrations of the query's class; None where they do not agree."""
    cls = class_of(query)
    labels = {label for text, label in rows if cls and class_of(text) == cls}
    return labels.pop() if len(labels) == 1 else None


def charts(effect: Effect) -> alt.VConcatChart:
    """Answer and attention before and after, and the map of heads."""
    pair = {"before": figures.GREY, "after": figures.BLUE}
    bars = []
    for table, title in ((effect.answer, "probability"), (effect.attention, "attention")):
        name = table.columns[0]
        y = alt.Y(f"{name}:N", sort=list(table[name]), title=None)
        offset = alt.YOffset("when:N", sort=list(pair))
        colour = alt.Color("when:N", scale=alt.Scale(domain=list(pair), range=list(pair.values())))
        chart = (
            alt.Chart(table.melt(name, list(pair), "when", title))
            .mark_bar()
            .properties(width=220, height=alt.Step(10))
        )
        bars.append(chart.encode(x=f"{title}:Q", y=y, yOffset=offset, color=colour))
    heads = effect.heads.melt(["layer", "head"], list(pair), "model", "logit difference")
    maps = figures.head_maps(heads, "logit difference", title="logit difference (nats)")
    return alt.vconcat(alt.hconcat(*bars), maps)


def picture(effect: Effect) -> str:
    """The charts as an image of its own: a widget shows HTML."""
    data = base64.b64encode(
        figures.svg(charts(effect).properties(background="white").to_dict()).encode()
    ).decode()
    return f'<img alt="{html.escape(effect.sentence)}" src="data:image/svg+xml;base64,{data}">'


class Playground(widgets.VBox):
    """Widgets around `explore`: `fields` by name, `scenes` to press.

    `effect`: as last computed; `error`: a line or nothing.
    """

    def __init__(self, model: Model | str, dtype: str = "float32", device: str = "cpu"):
        self.model = (
            loading.load(model, dtype=dtype, device=device) if isinstance(model, str) else model
        )
        self.effect: Effect | None = None
        self._directions: dict[tuple, Direction] = {}
        self._setting = False
        late = {"continuous_update": False}
        self.fields = {
            "demonstrations": widgets.Textarea(
                description="examples", rows=6, placeholder="text : label", **late
            ),
            "query": widgets.Text(description="query", **late),
            "true label": widgets.Text(description="true label", **late),
            "separator": widgets.Dropdown(description="separator", options=list(SEPARATORS)),
            "heads": widgets.Text(description="heads", placeholder="3-1, 2-5", **late),
            "push": widgets.FloatSlider(description="push", min=-3, max=3, step=0.25, **late),
        }
        self.scenes = {
            scene: widgets.Button(description=scene, layout={"width": "auto"}) for scene in SCENES
        }
        self.error, self.sentence, self.pictures = widgets.HTML(), widgets.HTML(), widgets.HTML()
        for field in self.fields.values():
            field.observe(self._on_change, "value")
        for scene, button in self.scenes.items():
            button.on_click(lambda _, scene=scene: self.refresh(scene))
        columns = [*self.fields.values()], [self.error, self.sentence, self.pictures]
        rows = [*self.scenes.values()], [widgets.VBox(column) for column in columns]
        super().__init__([widgets.HBox(row, layout={"flex_flow": "row wrap"}) for row in rows])
        self._put(State(CASE))
        self.refresh()

    def state(self) -> State:
        """What the fields say. Raises TwoTowersError when it is no prompt."""
        value = {name: field.value for name, field in self.fields.items()}
        rows, true = [Demonstration(*row) for row in self._rows()], value["true label"].strip()
        labels = tuple(dict.fromkeys([*(d.label for d in rows), true]))
        separator = SEPARATORS[value["separator"]]
        prompt = Prompt(rows, value["query"].strip(), true, labels, separator=separator)
        heads = tuple(Head.parse(word) for word in re.split(r"[,\s]+", value["heads"]) if word)
        return State(prompt, heads, value["push"])

    def refresh(self, scene: str | None = None) -> None:
        """Compute and show, after a scene if one is named; an error is a line."""
        try:
            state = self.state()
            if scene:
                heads = (
                    strongest(self.effect.heads)
                    if scene == SWITCH_OFF and self.effect
                    else state.heads
                )
                state = State(
                    SCENES[scene](state.prompt), heads, DOSE if scene == PUSH else state.dose
                )
            self._put(state)
            self.effect = explore(self.model, state, self._directions)
        except Exception as error:  # in a callback of a widget it would vanish unseen
            self.error.value = alert(
                error if isinstance(error, TwoTowersError) else repr(error).splitlines()[0]
            )
            return
        self.error.value, self.sentence.value = "", f"<b>{html.escape(self.effect.sentence)}</b>"
        self.pictures.value = picture(self.effect)

    def _rows(self) -> list[tuple[str, str]]:
        lines = self.fields["demonstrations"].value.splitlines()
        parts = [line.rpartition(":") for line in lines if line.strip()]
        return [(text.strip(), label.strip()) for text, _, label in parts]

    def _on_change(self, change: dict) -> None:
        """Compute anew. The true label follows the texts, where the word lists know the query."""
        if self._setting:
            return
        texts = self.fields["demonstrations"], self.fields["query"]
        label = true_label(self._rows(), self.fields["query"].value.strip())
        if label and change["owner"] in texts:
            self._setting, self.fields["true label"].value = True, label
            self._setting = False
        self.refresh()

    def _put(self, state: State) -> None:
        """The fields as a state has them."""
        prompt, self._setting = state.prompt, True
        self.fields["demonstrations"].value = "\n".join(
            f"{d.text} : {d.label}" for d in prompt.demonstrations
        )
        self.fields["query"].value = prompt.query
        self.fields["true label"].value = prompt.true_label
        self.fields["separator"].value = SEPARATOR[prompt.separator]
        self.fields["heads"].value = ", ".join(named(state.heads))
        self.fields["push"].value = state.dose
        self._setting = False
