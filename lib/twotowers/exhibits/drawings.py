"""Drawings as inline SVG, from saved tables: they take the page's ink, light or dark, and read on a phone. No torch.

in_context_head(t)     # Figure 1, of the table 01-locate-apart
sum_apart(t)           # the same table: the margin as a sum
variants(t)            # of 05-imbalanced-and-reorder-accuracy
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

import pandas as pd

from twotowers.errors import TwoTowersError
from twotowers.prompts.datasets import imbalanced, paper_example, reordered, swapped_labels
from twotowers.prompts.prompt import Demonstration, Prompt
from twotowers.stats.charts import BLUE, GREY, ORANGE

WIDTH = 400  # of every drawing, in its own units: about a pixel each on a phone
LONGEST = 9  # signs of a word in a box
APART = {"of", "part", "margin", "role", "weight", "true_label", "other_label", "p_true"}


@dataclass
class Drawing:
    """An SVG in the making: `title` and `description` are its text for who cannot see it."""

    title: str
    description: str
    height: float = 0
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: object, size: int = 13, **given: object) -> None:
        self._add("text", {"x": x, "y": y, "font_size": size, "fill": "currentColor"} | given, escape(str(words)))

    def box(self, x: float, y: float, width: float, height: float, colour: str, **given: object) -> None:
        shape = {"x": x, "y": y, "width": max(width, 0), "height": height, "rx": 4}
        self._add("rect", shape | {"fill": colour, "fill_opacity": 0.22, "stroke": colour, "stroke_width": 1.5} | given)

    def line(self, path: str, colour: str = GREY, width: float = 1.5, **given: object) -> None:
        self._add("path", {"d": path, "fill": "none", "stroke": colour, "stroke_width": round(width, 2)} | given)

    def head(self, x: float, y: float, colour: str = GREY, down: bool = False) -> None:
        """The tip of an arrow that ends at (x, y), pointing right or down."""
        shape = f"M{x} {y} l-4 -6 h8 z" if down else f"M{x} {y} l-6 -4 v8 z"
        self._add("path", {"d": shape, "fill": colour})

    def dot(self, x: float, y: float) -> None:
        self._add("circle", {"cx": x, "cy": y, "r": 4, "fill": "currentColor"})

    def _add(self, tag: str, given: dict[str, object], inside: str = "") -> None:
        said = " ".join(f'{name.replace("_", "-")}="{escape(str(value))}"' for name, value in given.items())
        self.parts.append(f"<{tag} {said}>{inside}</{tag}>")

    @property
    def svg(self) -> str:
        name = re.sub(r"\W+", "-", self.title.lower())[:40].strip("-")
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" viewBox="0 0 {WIDTH} {self.height:g}" role="img" '
            f'aria-labelledby="{name}-title {name}-about"><title id="{name}-title">{escape(self.title)}</title>'
            f'<desc id="{name}-about">{escape(self.description)}</desc>{"".join(self.parts)}</svg>'
        )

    def _repr_html_(self) -> str:
        return self.svg


def signed(number: float) -> str:
    return f"{number:+.2f}" if abs(number) >= 0.005 else "0.00"


def short(word: object) -> str:
    word = " ".join(str(word).split())
    return word if len(word) <= LONGEST else f"{word[: LONGEST - 1]}…"


def _example(t: pd.DataFrame) -> tuple[Prompt, pd.DataFrame, str]:
    """The prompt, the rows of its label positions in the first located head, and that head."""
    if t.empty or not set(t.columns) >= APART:
        raise TwoTowersError("the table of the example lacks columns: run chapter 1 again")
    prompt = paper_example((str(t["true_label"].iloc[0]), str(t["other_label"].iloc[0])))
    heads = [name for name in dict.fromkeys(t["of"]) if re.fullmatch(r"\d+-\d+", str(name))]
    rows = t[t["of"] == heads[0]]
    labels = rows[rows["role"].isin(["true label", "false label"])]
    if len(labels) != len(prompt.demonstrations):
        raise TwoTowersError("the table of the example has not one row for each label: run chapter 1 again")
    return prompt, labels, heads[0]


def in_context_head(t: pd.DataFrame) -> Drawing:
    """Figure 1: how one located head brings a label to the prediction, on the paper's example."""
    prompt, labels, head = _example(t)
    true, p = prompt.true_label, float(t["p_true"].iloc[0])
    shares = ", ".join(
        f"{w:.0%} on {d.label} after {d.text}" for w, d in zip(labels["weight"], prompt.demonstrations, strict=True)
    )
    drawn = Drawing(
        "How an in-context head answers",
        f"Head {head} on the prompt “{prompt.text}”. Each text's features gather at its label. Query and keys give the "
        f"attention of the last position: {shares}. Weighted by it, the values of the labels flow to the last position; "
        f"the next word is “{true}” with probability {p:.0%}.",
    )  # fmt: skip
    first, step, key = 42, 46, 128
    last = first + step * len(labels) + 12
    drawn.text(6, 16, "demonstrations", 12, fill_opacity=0.8)
    drawn.text(key + 12, 16, f"head {head}: attention", 12, fill_opacity=0.8)
    drawn.text(336, 16, "adds nats", 12, fill_opacity=0.8, text_anchor="end")
    drawn.line(f"M{key} {last - 5} V{first + 22}", "currentColor", 1.2, stroke_dasharray="3 3")
    widest = max(labels["weight"].max(), 1e-9)
    strongest = max(labels["margin"].abs().max(), 1e-9)
    for i, (row, d) in enumerate(zip(labels.itertuples(), prompt.demonstrations, strict=True)):
        y, colour = first + step * i, BLUE if d.label == true else ORANGE
        drawn.text(6, y, f"{short(d.text)} :")
        drawn.line(f"M16 {y + 5} V{y + 22} H50")
        drawn.head(56, y + 22)
        drawn.box(57, y + 11, 54, 22, colour)
        drawn.text(84, y + 27, short(d.label), text_anchor="middle")
        drawn.dot(key, y + 22)
        long = 96 * row.weight / widest
        drawn.box(key + 12, y + 14, long, 16, colour)
        drawn.text(key + 17 + long, y + 27, f"{row.weight:.0%}", 12)
        drawn.text(336, y + 27, signed(row.margin), 12, text_anchor="end")
        x, width = 386 - 12 * i, 0.6 + 7 * abs(row.margin) / strongest
        drawn.line(f"M340 {y + 22} H{x} V{last + 20}", colour, width, stroke_opacity=0.75, stroke_linejoin="round")
    drawn.text(6, last, f"{short(prompt.query)} :", font_weight="bold")
    drawn.text(key + 12, last, "query of the last position", 12)
    drawn.dot(key, last - 5)
    drawn.box(196, last + 20, 200, 26, BLUE)
    drawn.text(296, last + 38, f"next word: {short(true)}, {p:.0%}", text_anchor="middle", font_weight="bold")
    steps = (
        "1 Texts gather at labels.   2 Values: what is read there.",
        "3 Query meets keys: attention.   4 Sum: the answer.",
    )
    for i, said in enumerate(steps):
        drawn.text(6, last + 70 + 18 * i, said, 12, fill_opacity=0.85)
    for number, x, y in ((1, 26, first + 18), (2, 62, first + 8), (3, key - 12, last - 12), (4, 366, last + 14)):
        drawn.text(x, y, number, 11, font_weight="bold")
    drawn.height = last + 98
    return drawn


def sum_apart(t: pd.DataFrame) -> Drawing:
    """The margin of the example as a sum: blocks, then the heads of the attention blocks, then one head's positions."""
    prompt, labels, head = _example(t)
    true, other = prompt.true_label, next(label for label in prompt.labels if label != prompt.true_label)
    whole, attention = (list(dict.fromkeys(t["of"]))[i] for i in (0, 1))
    of_head = t[t["of"] == head]
    by_label = [(f"{d.label} after {d.text}", m) for d, m in zip(prompt.demonstrations, labels["margin"], strict=True)]
    rest = float(of_head["margin"].sum() - labels["margin"].sum())
    groups: list[tuple[str, list[tuple[str, float]]]] = [
        (str(of), [(f"head {name}" if re.fullmatch(r"\d+-\d+", str(name)) else str(name), float(m))
                   for name, m in zip(rows["part"], rows["margin"], strict=True)])
        for of, rows in ((whole, t[t["of"] == whole]), (attention, t[t["of"] == attention]))
    ]  # fmt: skip
    groups.append((f"head {head}, by position", [*by_label, ("all other positions", rest)]))
    sums = "; ".join(f"{of}: " + ", ".join(f"{name} {signed(m)}" for name, m in rows) for of, rows in groups)
    drawn = Drawing(
        "The prediction is a sum",
        f"By how many nats “{true}” leads “{other}” after “{prompt.text}”, taken apart into blocks, heads and positions. "
        f"{sums}.",
    )
    sizes = [m for _, rows in groups for _, m in rows]
    low, high = min(0.0, *sizes), max(0.0, *sizes)
    scale = 165 / max(high - low, 1e-9)
    zero, y = 170 - low * scale, 4
    for of, rows in groups:
        y += 24
        drawn.text(6, y, f"{of} = {signed(sum(m for _, m in rows))}", 13, font_weight="bold")
        for name, m in rows:
            y += 21
            long = abs(m) * scale
            drawn.text(16, y, name if len(name) <= 23 else f"{name[:22]}…", 12)
            drawn.box(zero if m >= 0 else zero - long, y - 11, long, 14, BLUE if m >= 0 else ORANGE)
            drawn.text(max(zero, zero + m * scale) + 5, y, signed(m), 12)
        drawn.line(f"M{zero} {y - 21 * len(rows) + 6} V{y + 6}", "currentColor", 1)
        y += 8
    drawn.height = y + 8
    return drawn


CHANGES: dict[str, Callable[[Prompt], Prompt]] = {
    "original": lambda prompt: prompt,
    "last true one removed": imbalanced,
    "true ones first": reordered,
    "labels exchanged": swapped_labels,
}
"""form, as tables name it -> what becomes of a prompt"""


def variants(t: pd.DataFrame) -> Drawing:
    """What each form of a prompt removes, moves or swaps, with the accuracy over all sets where the table has it."""
    prompt = paper_example()
    accuracy = t.groupby("form", sort=False)["accuracy"].mean()
    drawn = Drawing("What the variants change", "", 8)
    said = []
    for form, change in CHANGES.items():
        new = change(prompt)
        found = f": right in {accuracy[form]:.0%}, mean of the sets" if form in accuracy else ""
        said.append(f"{form}: {new.text}{found.removeprefix(':')}")
        drawn.text(6, drawn.height + 14, f"{form}{found}", font_weight="bold")
        drawn.height += 40
        _strip(drawn, prompt.demonstrations, new, drawn.height)
        drawn.height += 62
    drawn.description = "One prompt in each form. " + "; ".join(said) + "."
    return drawn


def _strip(drawn: Drawing, before: Sequence[Demonstration], new: Prompt, y: float) -> None:
    """The demonstrations of a form in their places; what is gone is struck out, what moved has an arrow."""
    texts = [d.text for d in new.demonstrations]
    gone = [d for d in before if d.text not in texts]
    shown = list(new.demonstrations) if not gone else list(before)
    for i, d in enumerate(shown):
        x, was = 6 + 82 * i, [b.text for b in before].index(d.text)
        lost, old = d in gone, before[was]
        colour = BLUE if d.label == new.true_label else ORANGE
        dashed = {"stroke_dasharray": "4 3", "fill_opacity": 0.05} if lost else {}
        drawn.box(x, y, 76, 44, colour, **dashed)
        drawn.text(x + 38, y + 18, f"{short(d.text)} :", text_anchor="middle")
        swapped = not lost and d.label != old.label
        drawn.text(x + 38, y + 36, f"⇄ {short(d.label)}" if swapped else short(d.label), text_anchor="middle")
        if lost:
            drawn.line(f"M{x} {y + 44} L{x + 76} {y}", "currentColor", 1.5)
        if was > i:  # moved to the front: an arrow from its old place
            start, end = 6 + 82 * was + 38, x + 38
            drawn.line(f"M{start} {y - 2} C{start} {y - 18} {end} {y - 18} {end} {y - 7}", "currentColor", 1.2)
            drawn.head(end, y - 1, "currentColor", down=True)
    drawn.text(6 + 82 * len(before) + 2, y + 27, f"{short(new.query)} : ?", font_weight="bold")
