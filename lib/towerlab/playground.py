"""Change a prompt or ablate heads, and see the answer, the attention and the heads' logit differences change together.

    effect = explore(model, State(prompt, heads=(Head(3, 1),)))     # numbers, without a browser
    effect.answer, effect.attention, effect.heads
    Playground("mini-gpt2")          # widgets around it: the last line of a cell in a running notebook

The page "Tinker with it" of the book does the same for one model, in the reader's browser.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import ipywidgets as widgets
import numpy as np
import pandas as pd
import torch
import vl_convert
from jaxtyping import Float
from torch import Tensor
from twotowers import figures
from twotowers.errors import TwoTowersError
from twotowers.forms import SEPARATORS
from twotowers.heads import Head, check_inside, named

from towerlab.model import loading
from towerlab.model.capture import Capture, capture, logit_difference_rows
from towerlab.model.edits import edited, everywhere, steer, zero
from towerlab.model.model import Model
from towerlab.prompts.prompt import Demonstration, Encoded, Prompt, encode
from towerlab.scenes import PUSH, SCENES, SWITCH_OFF, push, true_label

ROWS = (("love", "bar"), ("like", "bar"), ("eight", "foo"), ("two", "foo"))
EXAMPLE = Prompt([Demonstration(*row) for row in ROWS], "one", "foo", ("foo", "bar"))
"""The paper's example (v1 section 3)"""
SHOWN = 5  # heads whose attention is shown when none is picked
TOP = 5  # tokens beside the labels
DOSE = 1.5  # of the scene that pushes the query


@dataclass(frozen=True)
class State:
    """A prompt, the heads that are ablated (zeroed at all positions), and how far the query is pushed (`scenes.push`)."""

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


@torch.inference_mode()
def explore(model: Model, state: State, directions: dict | None = None) -> Effect:
    """Two forward passes. Raises TwoTowersError on heads outside the model, and on a push without two known classes."""
    check_inside(state.heads, model.n_layers, model.n_heads, model.name)
    encoded = encode(state.prompt, model.tokenizer, model.context)
    before = capture(model, [encoded], {"weights"})
    push_heads: Sequence[Head] = ()
    edits = [zero(state.heads, everywhere([encoded]))]
    if state.dose:
        push_heads, query = push(model, state.prompt, directions)
        at, query = torch.tensor([encoded.label_positions]), {layer: state.dose * x for layer, x in query.items()}
        edits.insert(0, steer(push_heads, query, None, at))
    with edited(model, *edits):
        after = capture(model, [encoded], {"weights", "keys"})
    for layer, head in push_heads:  # attention was recorded before the push; with a soft cap (Gemma 2) this is nearly it
        score_of_push = after.keys[layer, 0, model.value_head(head)] @ query[layer][0, head].to(after.keys)
        after.weights[layer, 0, head] = (after.weights[layer, 0, head].log() + score_of_push).softmax(-1)
    p = [state_of.logits[0].double().softmax(-1).cpu().numpy() for state_of in (before, after)]
    tokens = dict.fromkeys([*encoded.label_ids.values(), *np.argsort(-p[1], kind="stable")[:TOP].tolist()])
    differences = [head_logit_differences(state_of, model).cpu().numpy() for state_of in (before, after)]
    heads = pd.DataFrame(np.indices(differences[0].shape).reshape(2, -1).T, columns=["layer", "head"])
    heads["before"], heads["after"] = map(np.ravel, differences)
    answer = pd.DataFrame([{"token": _token_text(model, i), "before": p[0][i], "after": p[1][i]} for i in tokens])
    attention_heads = state.heads or push_heads or strongest(heads)
    return Effect(answer, _attention(encoded, attention_heads, before, after), heads, _sentence(model, state, p))


def strongest(heads: pd.DataFrame) -> tuple[Head, ...]:
    """The SHOWN heads that add most to the logit difference."""
    rows = heads.nlargest(SHOWN, "before")
    return tuple(map(Head, rows["layer"].tolist(), rows["head"].tolist()))


def head_logit_differences(capture: Capture, model: Model) -> Float[Tensor, "layer head"]:
    """What every head adds to the logit of the true label minus the other at the last position (nats), final norm frozen."""
    row = logit_difference_rows(capture, model)[0]
    weights = [model.output_weight(layer).to(row) for layer in range(model.n_layers)]
    return torch.stack([torch.einsum("hk,hkd,d->h", z[0].to(row), w, row) for z, w in zip(capture.z, weights, strict=True)])


def _attention(encoded: Encoded, heads: Sequence[tuple[int, int]], *captures: Capture) -> pd.DataFrame:
    """Mean over heads of the attention on each label, in each of the captures."""
    layer, head = zip(*heads, strict=True)
    rows = [f"{i + 1}. {d.text} : {d.label}" for i, d in enumerate(encoded.prompt.demonstrations)]
    at = list(encoded.label_positions)
    means = [of.weights[layer, 0, head].double().mean(0)[at].cpu().numpy() for of in captures]
    return pd.DataFrame({"demonstration": rows, "before": means[0], "after": means[1]})


def _token_text(model: Model, token: int) -> str:
    return model.tokenizer.decode([token]).strip() or "␣"


def _sentence(model: Model, state: State, p: Sequence[np.ndarray]) -> str:
    says = [f"“{_token_text(model, int(of.argmax()))}” ({of.max():.0%})" for of in p]
    did = [f"{', '.join(named(state.heads))} zeroed"] * bool(state.heads) + ["the query pushed"] * bool(state.dose)
    return f"The model says {says[0]}" + (f"; with {' and '.join(did)} it says {says[1]}." if did else ".")


def charts(effect: Effect) -> alt.VConcatChart:
    """Answer and attention before and after, and the map of heads."""
    pair = {"before": figures.GREY, "after": figures.BLUE}
    bars = []
    for table, title in ((effect.answer, "probability"), (effect.attention, "attention")):
        name = table.columns[0]
        y, offset = alt.Y(f"{name}:N", sort=list(table[name]), title=None), alt.YOffset("when:N", sort=list(pair))
        colour = alt.Color("when:N", scale=alt.Scale(domain=list(pair), range=list(pair.values())))
        tip = [name, "when", alt.Tooltip(title, format=".3f")]
        chart = alt.Chart(table.melt(name, list(pair), "when", title)).mark_bar().properties(width=220, height=alt.Step(10))
        bars.append(chart.encode(x=f"{title}:Q", y=y, yOffset=offset, color=colour, tooltip=tip))
    heads = effect.heads.melt(["layer", "head"], list(pair), "model", "logit difference")
    maps = figures.head_maps(heads, "logit difference", title="logit difference (nats)")
    return alt.vconcat(alt.hconcat(*bars), maps)


def picture(effect: Effect) -> str:
    """The charts as an image of its own: Altair's output in a notebook would fetch scripts from another host."""
    svg = vl_convert.vegalite_to_svg(charts(effect).properties(background="white").to_json())
    data = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{html.escape(effect.sentence)}" src="data:image/svg+xml;base64,{data}">'


class Playground(widgets.VBox):
    """Widgets around `explore`: `fields` by name, `scenes` to press, `effect` as last computed, `error` a line or nothing."""

    def __init__(self, model: Model | str, prompt: Prompt = EXAMPLE, dtype: str = "float32", device: str = "cpu"):
        self.model = loading.load(model, dtype=dtype, device=device) if isinstance(model, str) else model
        self.effect: Effect | None = None
        self._past: list[dict] = []
        self._directions: dict = {}
        late = {"continuous_update": False}
        self.fields = {
            "demonstrations": widgets.Textarea(rows=6, placeholder="text : label", **late),
            "query": widgets.Text(**late),
            "true label": widgets.Text(**late),
            "separator": widgets.Dropdown(options=list(SEPARATORS)),
            "heads": widgets.Text(placeholder="3-1, 2-5", **late),
            "push": widgets.FloatSlider(min=-3, max=3, step=0.25, **late),
        }
        self.scenes = {scene: widgets.Button(description=scene, layout={"width": "auto"}) for scene in SCENES}
        self.error, self.sentence, self.pictures = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.undo = widgets.Button(description="undo")
        self.undo.on_click(self._back)
        self._put(State(prompt))
        for label, field in self.fields.items():
            field.description = "examples" if label == "demonstrations" else label
            field.observe(self._on_change, "value")
        for scene, button in self.scenes.items():
            button.on_click(lambda _, scene=scene: self.refresh(scene))
        columns = [*self.fields.values(), self.undo], [self.error, self.sentence, self.pictures]
        rows = list(self.scenes.values()), [widgets.VBox(column) for column in columns]
        super().__init__([widgets.HBox(row, layout={"flex_flow": "row wrap"}) for row in rows])
        self.add_class("twotowers-playground")
        self.refresh()

    def state(self) -> State:
        """What the fields say. Raises TwoTowersError when it is no prompt."""
        value = {name: field.value for name, field in self.fields.items()}
        rows = [Demonstration(*row) for row in self._rows()]
        true, separator = value["true label"].strip(), SEPARATORS[value["separator"]]
        labels = tuple(dict.fromkeys([*(d.label for d in rows), true]))
        prompt = Prompt(rows, value["query"].strip(), true, labels, separator=separator)
        heads = tuple(Head.parse(word) for word in re.split(r"[,\s]+", value["heads"]) if word)
        return State(prompt, heads, value["push"])

    def refresh(self, scene: str | None = None) -> None:
        """Compute and show, after a scene if one is named. What goes wrong is one line; the last effect stays in sight."""
        try:
            if scene:
                state = self.state()
                self._past.append(self._now)
                heads = strongest(self.effect.heads) if scene == SWITCH_OFF and self.effect else state.heads
                self._put(State(SCENES[scene](state.prompt), heads, DOSE if scene == PUSH else state.dose))
            self.effect = explore(self.model, self.state(), directions=self._directions)
        except Exception as error:  # in a callback of a widget it would vanish unseen
            line = str(error) if isinstance(error, TwoTowersError) else repr(error).splitlines()[0]
            self.error.value = f"<span style='color:#c0392b' role='alert'>{html.escape(line)}</span>"
            return
        self.error.value, self.sentence.value = "", f"<b>{html.escape(self.effect.sentence)}</b>"
        self.pictures.value = picture(self.effect)

    def _rows(self) -> list[tuple[str, str]]:
        parts = [line.rpartition(":") for line in self.fields["demonstrations"].value.splitlines() if line.strip()]
        return [(text.strip(), label.strip()) for text, _, label in parts]

    def _put(self, state: State) -> None:
        """The fields as a state has them."""
        prompt, names = state.prompt, {sign: name for name, sign in SEPARATORS.items()}
        rows = "\n".join(f"{d.text} : {d.label}" for d in prompt.demonstrations)
        texts = {"demonstrations": rows, "query": prompt.query, "true label": prompt.true_label}
        changes = {"heads": ", ".join(named(state.heads)), "push": state.dose}
        self._set({**texts, "separator": names[prompt.separator], **changes})

    def _set(self, values: dict) -> None:
        self._setting = True
        for name, value in values.items():
            self.fields[name].value = value
        self._setting, self._now = False, {name: field.value for name, field in self.fields.items()}

    def _on_change(self, change: dict) -> None:
        if self._setting:
            return
        self._past.append(self._now)
        label = true_label(self._rows(), self.fields["query"].value.strip())
        by_class = label and change["owner"] in (self.fields["query"], self.fields["demonstrations"])
        self._set({"true label": label} if by_class else {})
        self.refresh()

    def _back(self, _) -> None:
        if self._past:
            self._set(self._past.pop())
            self.refresh()
