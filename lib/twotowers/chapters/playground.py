"""The playground's widgets: they collect a `State`, ask `explore.results` for its results and show them.

    Playground("mini-gpt2")        # the last line of a cell, in a live notebook

Thin on purpose. What goes wrong appears in the widget, in one line, and the last results stay in sight.
"""

from __future__ import annotations

import html
import re

import ipywidgets as widgets
import pandas as pd

from twotowers.chapters.explore import ACTIONS, State, heads_from_text, results
from twotowers.errors import TwoTowersError
from twotowers.model import loading
from twotowers.model.model import Model
from twotowers.paths import shipped_models
from twotowers.prompts.datasets import paper_example
from twotowers.prompts.prompt import SEPARATORS, Demonstration, Prompt
from twotowers.stats import charts

MOST_BUTTONS = 400  # heads on the map; of a larger model the strongest layers are shown


def _bars_html(title: str, rows: list[tuple[str, float, float]], limit: float = 1.0) -> str:
    """Two thin bars a row, before (grey) and after (blue); `limit` fills the width."""
    out = [f"<b>{html.escape(title)}</b><table style='width:100%;border-spacing:4px 1px'>"]
    for name, before, after in rows:
        bars = "".join(
            f"<div style='height:6px;width:{100 * max(0.0, min(1.0, value / limit)):.1f}%;background:{shade}'></div>"
            for value, shade in ((before, charts.GREY), (after, charts.BLUE))
        )
        numbers = f"{before:.2f} → {after:.2f}"
        out.append(
            f"<tr><td style='white-space:nowrap'>{html.escape(name)}</td><td style='width:45%'>{bars}</td>"
            f"<td style='white-space:nowrap'>{numbers}</td></tr>"
        )
    return "".join(out) + "</table>"


def _shade(value: float, limit: float) -> str:
    """White at zero, blue above, orange below, as on the book's maps."""
    red, green, blue = (int(c, 16) for c in re.findall("..", (charts.BLUE if value >= 0 else charts.ORANGE)[1:]))
    part = min(1.0, abs(value) / limit) if limit else 0.0
    return "#" + "".join(f"{round(255 + part * (c - 255)):02x}" for c in (red, green, blue))


class Playground(widgets.VBox):
    """Widgets around `results`. `state()` is what is set, `found` the last results; `error` shows a line or nothing."""

    def __init__(self, model: Model | str, prompt: Prompt | None = None, dtype: str = "float32", device: str = "cpu"):
        prompt = paper_example() if prompt is None else prompt
        name = model if isinstance(model, str) else model.name
        self._loaded = {} if isinstance(model, str) else {name: model}
        self._how, self.found = {"dtype": dtype, "device": device}, None
        late = {"continuous_update": False}
        self.model = widgets.Combobox(value=name, options=sorted(shipped_models()), description="model", **late)
        self.query = widgets.Text(value=prompt.query, description="query", **late)
        self.true = widgets.Text(value=prompt.true_label, description="true label", **late)
        self.separator = widgets.Dropdown(
            options=list(SEPARATORS.items()), value=prompt.separator, description="separator"
        )
        self.action = widgets.ToggleButtons(
            options=ACTIONS, value="zero", description="do", style={"button_width": "9em"}
        )
        self.amount = widgets.FloatText(value=0.5, description="factor", step=0.1, **late)
        self.heads = widgets.Text(placeholder="3-1, 2-5", description="heads", **late)
        self.add = widgets.Button(description="add a demonstration", icon="plus", layout={"width": "200px"})
        self.undo, self.reset = (widgets.Button(description=d, layout={"width": "80px"}) for d in ("undo", "reset"))
        self.rows = widgets.VBox()
        self.map, self.buttons = widgets.VBox(), {}
        self.error, self.sentence = widgets.HTML(), widgets.HTML()
        self.panels = [widgets.HTML(layout={"width": "32%", "min_width": "260px"}) for _ in range(3)]
        self._mapped = None
        for demonstration in prompt.demonstrations:
            self._add_row(demonstration.text, demonstration.label)
        self._fixed = (self.model, self.query, self.true, self.separator, self.action, self.amount, self.heads)
        for widget in self._fixed:
            widget.observe(self._changed, "value")
        self._start = self._now = self._setting()
        self._past, self._putting = [], False
        self.add.on_click(lambda _: self._add_row("", prompt.labels[0]))
        self.undo.on_click(lambda _: self._put(self._past.pop()))
        self.reset.on_click(lambda _: self._put(self._start, undone=False))
        prompt_fields = [self.model, self.rows, self.add, self.query, self.true, self.separator]
        left = widgets.VBox([*prompt_fields, widgets.HBox([self.undo, self.reset])], layout={"min_width": "330px"})
        right = widgets.VBox([self.action, self.amount, self.heads, self.map])
        across = {"flex_flow": "row wrap", "justify_content": "space-between"}
        super().__init__(
            [widgets.HBox([left, right], layout={"flex_flow": "row wrap"}), self.error, self.sentence,
             widgets.HBox(self.panels, layout=across)]
        )  # fmt: skip
        self.add_class("twotowers-playground")
        self.refresh()

    def state(self) -> State:
        """What the widgets say. Raises TwoTowersError when it is no prompt."""
        rows = [(text.value.strip(), label.value.strip()) for text, label in map(self._fields, self.rows.children)]
        rows = [row for row in rows if row[0]]  # a line just added
        labels = tuple(dict.fromkeys([*(label for _, label in rows), self.true.value.strip()]))
        prompt = Prompt(
            tuple(Demonstration(*row) for row in rows), self.query.value.strip(), self.true.value.strip(), labels,
            separator=self.separator.value,
        )  # fmt: skip
        return State(prompt, heads_from_text(self.heads.value), self.action.value, self.amount.value)

    def _model(self, name: str) -> Model:
        """The model of that name; only the last one is kept."""
        if name not in self._loaded:
            self._loaded = {name: loading.load(name, **self._how)}
        return self._loaded[name]

    def refresh(self) -> None:
        """Compute and show; an error appears in one line and leaves the last results in sight."""
        if (now := self._setting()) != self._now:
            self._past.append(self._now)
            self._now = now
        self.undo.disabled = not self._past
        try:
            model = self._model(self.model.value.strip())
            self.found = results(model, self.state())
        except Exception as error:  # in a callback of a widget it would vanish unseen
            name = "" if isinstance(error, TwoTowersError) else f"{type(error).__name__}: "
            line = (str(error).strip().splitlines() or [""])[0]
            self.error.value = f"<span style='color:#c0392b' role='alert'>{html.escape(name + line)}</span>"
            return
        self.error.value = ""
        self._show(model)

    def _setting(self) -> tuple[list[tuple[str, str]], list]:
        """What the reader can undo: the rows, and the value of every other field."""
        rows = [(text.value, label.value) for text, label in map(self._fields, self.rows.children)]
        return rows, [widget.value for widget in self._fixed]

    def _put(self, setting: tuple, undone: bool = True) -> None:
        """Bring a setting back; one that is `undone` leaves nothing to undo."""
        self._putting = True
        self.rows.children = ()
        for row in setting[0]:
            self._add_row(*row)
        for widget, value in zip(self._fixed, setting[1], strict=True):
            widget.value = value
        self._putting = False
        if undone:
            self._now = setting
        self.refresh()

    def _show(self, model: Model) -> None:
        found = self.found
        self.sentence.value = f"<b>{html.escape(found.sentence)}</b>"
        words = [(r.word, r.before, r.after) for r in found.words.itertuples()]
        labels = [(f"label {r.label}", r.before, r.after) for r in found.labels.itertuples()]
        places = [(f"{r.demonstration} : {r.label}", r.before, r.after) for r in found.attention.itertuples()]
        names = ", ".join(f"{layer}-{head}" for layer, head in found.shown)
        said = "".join(f"<div>{r.head}: {html.escape(r.words)}</div>" for r in found.says.itertuples())
        top = found.heads.sort_values("after", ascending=False).head(6)
        limit = float(found.heads[["before", "after"]].abs().to_numpy().max()) or 1.0
        gains = list(zip(top["name"], top["before"], top["after"], strict=True))
        self.panels[0].value = _bars_html("next word, before → after", words + labels)
        self.panels[1].value = _bars_html(f"attention on each label (heads {names})", places)
        self.panels[2].value = _bars_html("largest increases (nats)", gains, limit) + f"<b>these heads write</b>{said}"
        self._draw_map(model, found.heads)

    def _draw_map(self, model: Model, table: pd.DataFrame) -> None:
        if self._mapped is not model:
            strongest = table.groupby("layer")["before"].max().sort_values(ascending=False).index
            layers = sorted(strongest[: max(1, MOST_BUTTONS // model.n_heads)], reverse=True)
            self.buttons = {(layer, h): self._button(layer, h) for layer in layers for h in range(model.n_heads)}
            self.map.children = [
                widgets.HBox([widgets.Label(f"layer {layer}", layout={"width": "4.5em"}),
                              *(self.buttons[layer, h] for h in range(model.n_heads))])
                for layer in layers
            ]  # fmt: skip
            self._mapped = model
        limit, take_distinct = float(table["after"].abs().max()), set(heads_from_text(self.heads.value))
        for row in table.itertuples():
            button = self.buttons.get((row.layer, row.head))
            if button is not None:
                button.style.button_color = _shade(row.after, limit)
                button.tooltip = f"head {row.layer}-{row.head}: {row.after:+.3f} nats"
                button.description = "●" if (row.layer, row.head) in take_distinct else ""

    def _button(self, layer: int, head: int) -> widgets.Button:
        button = widgets.Button(layout={"width": "26px", "height": "24px", "padding": "0", "margin": "1px"})
        button.on_click(lambda _: self._toggle(f"{layer}-{head}"))
        return button

    def _toggle(self, name: str) -> None:
        names = [word for word in re.split(r"[,\s]+", self.heads.value) if word]
        self.heads.value = ", ".join([n for n in names if n != name] if name in names else [*names, name])

    @staticmethod
    def _fields(row: widgets.HBox) -> tuple[widgets.Text, widgets.Text]:
        return row.children[0], row.children[1]

    def _add_row(self, text: str, label: str) -> None:
        fields = [
            widgets.Text(value=text, placeholder="text", continuous_update=False, layout={"width": "150px"}),
            widgets.Text(value=label, placeholder="label", continuous_update=False, layout={"width": "80px"}),
        ]
        up = widgets.Button(icon="arrow-up", tooltip="move up", layout={"width": "32px"})
        away = widgets.Button(icon="times", tooltip="take away", layout={"width": "32px"})
        row = widgets.HBox([*fields, up, away])
        for one in fields:
            one.observe(self._changed, "value")
        up.on_click(lambda _: self._move_up(row))
        away.on_click(lambda _: self._set_rows([r for r in self.rows.children if r is not row]))
        self.rows.children = (*self.rows.children, row)  # empty still: nothing to compute

    def _move_up(self, row: widgets.HBox) -> None:
        rows = list(self.rows.children)
        at = rows.index(row)
        if at:
            rows[at - 1], rows[at] = rows[at], rows[at - 1]
            self._set_rows(rows)

    def _set_rows(self, rows: list) -> None:
        self.rows.children = tuple(rows)
        self.refresh()

    def _changed(self, _) -> None:
        if not self._putting:
            self.refresh()
