"""Change a prompt or ablate heads, and see the answer, the attention and the heads' logit differences change together.

    effect = explore(model, State(prompt, heads=(Head(3, 1),)))     # numbers, without a browser
    effect.answer, effect.attention, effect.heads
    SCENES["Swap the labels"](prompt)                               # another prompt
    Playground("mini-gpt2")          # widgets around it: the last line of a cell in a running notebook

The page "Playground" of the book does the same for one model, in the reader's browser.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import altair as alt
import ipywidgets as widgets
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from twotowers import choose, figures
from twotowers.errors import TwoTowersError
from twotowers.explore import alert
from twotowers.forms import SEPARATORS, Form
from twotowers.heads import Head, check_inside, named

from towerlab.measure.conditions import true_first
from towerlab.measure.heads import heads as measure_heads
from towerlab.measure.tower_grid import BLOCKS, class_directions
from towerlab.model import loading, query_key
from towerlab.model.capture import Capture, capture, logit_difference_rows
from towerlab.model.edits import edited, everywhere, steer, zero
from towerlab.model.model import Model
from towerlab.prompts.blocks import class_words, draw_blocks
from towerlab.prompts.paper_sets import CASE
from towerlab.prompts.prompt import Demonstration, Encoded, Prompt, encode, encode_all
from towerlab.prompts.variants import exchanged_labels, one_fewer

SHOWN = 5  # heads whose attention is shown when none is picked
TOP = 5  # tokens beside the labels
DOSE = 1.5  # of the scene that pushes the query
SWITCH_OFF = "Switch off the heads that add most"
PUSH = "Push the query towards the other class"
SEPARATOR = {sign: name for name, sign in SEPARATORS.items()}
"""What stands between demonstrations -> its name"""


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


@dataclass(frozen=True)
class State:
    """A prompt, the heads that are ablated (zeroed at all positions), and how far the query is pushed (`push`)."""

    prompt: Prompt
    heads: tuple[Head, ...] = ()
    dose: float = 0.0


@dataclass(frozen=True)
class Effect:
    """The model as it is and under the state's changes, as tidy tables with columns before and after.

    `answer`: token, probability of every label and of the top tokens. `attention`: demonstration, mean over the state's heads
    (or the `strongest`) of the attention of the last position on its label. `heads`: layer, head,
    `head_logit_differences`. `sentence`: the answer in words.
    """

    answer: pd.DataFrame
    attention: pd.DataFrame
    heads: pd.DataFrame
    sentence: str


Direction = tuple[list[Head], Float[Tensor, "layer head d_head"]]
"""The heads that compare two classes most; mean query of the second class minus the first's, of every head"""


@torch.inference_mode()
def explore(model: Model, state: State, directions: dict[tuple, Direction] | None = None) -> Effect:
    """Two forward passes. Raises TwoTowersError on heads outside the model, and on a push without two known classes."""
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
    for layer, head in push_heads:  # attention was recorded before the push; with a soft cap (Gemma 2) this is nearly it
        score_of_push = after.keys[layer, 0, model.value_head(head)] @ query[layer][0, head].to(after.keys)
        after.weights[layer, 0, head] = (after.weights[layer, 0, head].log() + score_of_push).softmax(-1)
    p = [run.logits[0].double().softmax(-1).cpu().numpy() for run in (before, after)]
    tokens = dict.fromkeys([*encoded.label_ids.values(), *np.argsort(-p[1], kind="stable")[:TOP].tolist()])
    answer = pd.DataFrame([{"token": _token_text(model, i), "before": p[0][i], "after": p[1][i]} for i in tokens])
    differences = [head_logit_differences(run, model).cpu().numpy() for run in (before, after)]
    heads = pd.DataFrame(np.indices(differences[0].shape).reshape(2, -1).T, columns=["layer", "head"])
    heads["before"], heads["after"] = map(np.ravel, differences)
    attention = _attention(encoded, state.heads or push_heads or strongest(heads), before, after)
    return Effect(answer, attention, heads, _sentence(model, state, p))


def strongest(heads: pd.DataFrame) -> tuple[Head, ...]:
    """The SHOWN heads that add most to the logit difference."""
    rows = heads.nlargest(SHOWN, "before")
    return tuple(map(Head, rows["layer"].tolist(), rows["head"].tolist()))


def head_logit_differences(capture: Capture, model: Model) -> Float[Tensor, "layer head"]:
    """What every head adds to the logit of the true label minus the other at the last position (nats), final norm frozen."""
    row = logit_difference_rows(capture, model)[0]
    weights = [model.output_weight(layer).to(row) for layer in range(model.n_layers)]
    return torch.stack([torch.einsum("hk,hkd,d->h", z[0].to(row), w, row) for z, w in zip(capture.z, weights, strict=True)])


def _attention(encoded: Encoded, heads: Sequence[tuple[int, int]], before: Capture, after: Capture) -> pd.DataFrame:
    """Mean over heads of the attention on each label."""
    layer, head = zip(*heads, strict=True)
    table = pd.DataFrame({"demonstration": [f"{i}. {d.text} : {d.label}" for i, d in enumerate(encoded.prompt.demonstrations, 1)]})
    for name, run in (("before", before), ("after", after)):
        table[name] = run.weights[layer, 0, head].double().mean(0)[list(encoded.label_positions)].cpu().numpy()
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
    return f"The model says {before}" + (f"; with {' and '.join(changes)} it says {after}." if changes else ".")


def class_of(word: str) -> str | None:
    """Its class in the word lists."""
    return next((cls for cls, words in class_words().items() if word in words), None)


def true_label(rows: Sequence[tuple[str, str]], query: str) -> str | None:
    """The label of the demonstrations whose class is the query's; None when a word is unknown or they do not agree."""
    cls = class_of(query)
    labels = {label for text, label in rows if cls and class_of(text) == cls}
    return labels.pop() if len(labels) == 1 else None


def push(
    model: Model, prompt: Prompt, directions: dict[tuple, Direction] | None = None
) -> tuple[list[Head], dict[int, Float[Tensor, "1 head d_head"]]]:
    """The heads that compare the prompt's two classes most, and what a dose of 1 towards the other class adds to the queries
    of every head of their layers at the prompt's last position. `directions`: those of this model made before, and after.

    The query's class is its own where it is one of the two. Raises TwoTowersError for demonstrations of fewer classes.
    """
    known = dict.fromkeys(cls for d in prompt.demonstrations if (cls := class_of(d.text)))
    query_class = class_of(prompt.query)
    own, other, *_ = [*sorted(known, key=lambda cls: cls != query_class), "", ""]
    if not other:
        raise TwoTowersError("a push needs demonstrations of two classes of the word lists, such as love and two")
    directions = {} if directions is None else directions
    key = (own, other, prompt.separator, prompt.labels[:2])
    if key not in directions:
        directions[key] = _direction(model, *key)
    heads, direction = directions[key]
    last = torch.tensor([[encode(prompt, model.tokenizer).last]], device=model.device).expand(1, model.n_heads)
    return heads, {layer: query_key.rotated(model, layer, direction[layer][None], last) for layer, _ in heads}


def _direction(model: Model, own: str, other: str, sign: str, labels: Sequence[str]) -> Direction:
    """Heads by attention to labels of the query's class minus the other; mean query of the other class minus the own."""
    form = Form(2, SEPARATOR[sign])
    blocks = draw_blocks(BLOCKS, form, seed=[0, 1], pairs=[f"{other}/{own}"], labels=["/".join(labels)])
    encoded = encode_all(blocks, model.tokenizer, model.context)
    differences = choose.attention_difference(measure_heads(model, encoded)).mean("prompt")
    best = choose.top(differences, choose.TOP, -np.inf)
    direction = torch.tensor(class_directions(model, encoded)["query"].isel(pair=0).values, device=model.device)
    return best, direction.to(torch.promote_types(model.dtype, torch.float32))


def charts(effect: Effect) -> alt.VConcatChart:
    """Answer and attention before and after, and the map of heads."""
    pair = {"before": figures.GREY, "after": figures.BLUE}
    bars = []
    for table, title in ((effect.answer, "probability"), (effect.attention, "attention")):
        name = table.columns[0]
        y, offset = alt.Y(f"{name}:N", sort=list(table[name]), title=None), alt.YOffset("when:N", sort=list(pair))
        colour = alt.Color("when:N", scale=alt.Scale(domain=list(pair), range=list(pair.values())))
        chart = alt.Chart(table.melt(name, list(pair), "when", title)).mark_bar().properties(width=220, height=alt.Step(10))
        bars.append(chart.encode(x=f"{title}:Q", y=y, yOffset=offset, color=colour))
    heads = effect.heads.melt(["layer", "head"], list(pair), "model", "logit difference")
    maps = figures.head_maps(heads, "logit difference", title="logit difference (nats)")
    return alt.vconcat(alt.hconcat(*bars), maps)


def picture(effect: Effect) -> str:
    """The charts as an image of its own: a widget shows HTML."""
    data = base64.b64encode(figures.svg(charts(effect).properties(background="white").to_dict()).encode()).decode()
    return f'<img alt="{html.escape(effect.sentence)}" src="data:image/svg+xml;base64,{data}">'


class Playground(widgets.VBox):
    """Widgets around `explore`: `fields` by name, `scenes` to press, `effect` as last computed, `error` a line or nothing."""

    def __init__(self, model: Model | str, dtype: str = "float32", device: str = "cpu"):
        self.model = loading.load(model, dtype=dtype, device=device) if isinstance(model, str) else model
        self.effect: Effect | None = None
        self._directions: dict[tuple, Direction] = {}
        late = {"continuous_update": False}
        self.fields = {
            "demonstrations": widgets.Textarea(description="examples", rows=6, placeholder="text : label", **late),
            "query": widgets.Text(description="query", **late),
            "true label": widgets.Text(description="true label", **late),
            "separator": widgets.Dropdown(description="separator", options=list(SEPARATORS)),
            "heads": widgets.Text(description="heads", placeholder="3-1, 2-5", **late),
            "push": widgets.FloatSlider(description="push", min=-3, max=3, step=0.25, **late),
        }
        self.scenes = {scene: widgets.Button(description=scene, layout={"width": "auto"}) for scene in SCENES}
        self.error, self.sentence, self.pictures = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self._put(State(CASE))
        for field in self.fields.values():
            field.observe(self._on_change, "value")
        for scene, button in self.scenes.items():
            button.on_click(lambda _, scene=scene: self.refresh(scene))
        columns = [*self.fields.values()], [self.error, self.sentence, self.pictures]
        rows = [*self.scenes.values()], [widgets.VBox(column) for column in columns]
        super().__init__([widgets.HBox(row, layout={"flex_flow": "row wrap"}) for row in rows])
        self.add_class("twotowers-playground")
        self.refresh()

    def state(self) -> State:
        """What the fields say. Raises TwoTowersError when it is no prompt."""
        value = {name: field.value for name, field in self.fields.items()}
        rows, true = [Demonstration(*row) for row in self._rows()], value["true label"].strip()
        labels = tuple(dict.fromkeys([*(d.label for d in rows), true]))
        prompt = Prompt(rows, value["query"].strip(), true, labels, separator=SEPARATORS[value["separator"]])
        heads = tuple(Head.parse(word) for word in re.split(r"[,\s]+", value["heads"]) if word)
        return State(prompt, heads, value["push"])

    def refresh(self, scene: str | None = None) -> None:
        """Compute and show, after a scene if one is named. What goes wrong is one line; the last effect stays in sight."""
        try:
            state = self.state()
            if scene:
                heads = strongest(self.effect.heads) if scene == SWITCH_OFF and self.effect else state.heads
                state = State(SCENES[scene](state.prompt), heads, DOSE if scene == PUSH else state.dose)
                self._put(state)
            self.effect = explore(self.model, state, self._directions)
        except Exception as error:  # in a callback of a widget it would vanish unseen
            self.error.value = alert(error if isinstance(error, TwoTowersError) else repr(error).splitlines()[0])
            return
        self.error.value, self.sentence.value = "", f"<b>{html.escape(self.effect.sentence)}</b>"
        self.pictures.value = picture(self.effect)

    def _rows(self) -> list[tuple[str, str]]:
        parts = [line.rpartition(":") for line in self.fields["demonstrations"].value.splitlines() if line.strip()]
        return [(text.strip(), label.strip()) for text, _, label in parts]

    def _put(self, state: State) -> None:
        """The fields as a state has them."""
        prompt = state.prompt
        rows = "\n".join(f"{d.text} : {d.label}" for d in prompt.demonstrations)
        texts = {"demonstrations": rows, "query": prompt.query, "true label": prompt.true_label}
        self._set({**texts, "separator": SEPARATOR[prompt.separator], "heads": ", ".join(named(state.heads)), "push": state.dose})

    def _set(self, values: Mapping[str, str | float]) -> None:
        """Fields, without `_on_change` for each of them."""
        self._setting = True
        for name, value in values.items():
            self.fields[name].value = value
        self._setting = False

    def _on_change(self, change: dict) -> None:
        if self._setting:
            return
        label = true_label(self._rows(), self.fields["query"].value.strip())
        if label and change["owner"] in (self.fields["query"], self.fields["demonstrations"]):
            self._set({"true label": label})
        self.refresh()
