"""The paper's prompt on the opening page and in the story: attention on each label, and the answer.

    drawn(Path("_build"))

The numbers are computed with the included model when the pages are put together. In the page,
`opening-page.js` loads the playground's engine, which computes them for a changed prompt.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

import playground_page
from towerlab.effects import SCENES, SWITCH_OFF, Effect, strongest, zeroing_effect
from towerlab.model import loading
from towerlab.prompts.paper_sets import CASE as EXAMPLE
from twotowers.heads import Head

BUTTONS = {
    "Put the true demonstrations first": "put the numbers first",
    "Swap the labels": "swap labels",
    SWITCH_OFF: "{} heads off",
}
"""Button of each scene of the playground"""
NUMBERS = ("no", "one", "two", "three", "four", "five")
LOADED = playground_page.SCRIPTS[:5]  # scripts that the first press of a button loads


def percent(p: float) -> str:
    """Return a percentage as `percent` of playground-draw.js does.

    Args:
        p: Share.
    """
    return "<1%" if 0 < p < 0.005 else f"{int(100 * p + 0.5)}%"


def kind(label: str) -> str:
    """Return the class of a label in style sheets: the right one, or another.

    Args:
        label: Label.
    """
    return "right-label" if label == EXAMPLE.true_label else "other-label"


def bar(label: str, share: float) -> str:
    """Return a share as a picture, in the colour of right or other labels.

    It is a picture because a policy may forbid styles in a tag.

    Args:
        label: The label.
        share: Attention on it, or its probability.
    """
    rect = f'<rect class="{kind(label)}" width="{share:.5f}" height="1"/>'
    view = 'viewBox="0 0 1 1" preserveAspectRatio="none"'
    return f'<svg class="opening-bar" {view} aria-hidden="true">{rect}</svg>'


def _titles(*names: str) -> str:
    """Return titles of columns."""
    return "".join(f'<th scope="col">{name}</th>' for name in names)


def chosen_heads(build: Path) -> tuple[Head, ...]:
    """Return the heads of the included model that write most.

    Args:
        build: Folder of built files.
    """
    named, _ = playground_page.heads(playground_page.latest(build))
    model = loading.load(playground_page.MODEL)
    return tuple(map(Head.parse, named)) or strongest(zeroing_effect(model, EXAMPLE).heads)


def prompt_table(effect: Effect, n_heads: int, told: str = "") -> str:
    """Return the paper's prompt with the attention on each label, and the answer.

    Args:
        effect: Effect of the heads, whose columns `before` are shown.
        n_heads: Number of the heads.
        told: Text after the answer.
    """
    p = effect.answer.set_index("token")["before"]
    answers, said = p[sorted(EXAMPLE.labels, reverse=True)], p.idxmax()
    rows = "".join(
        f'<tr><th scope="row">{d.text}</th><td>: <b class="{kind(d.label)}">{d.label}</b></td>'
        f"<td>{bar(d.label, look)}<span>{escape(percent(look))}</span></td></tr>"
        for d, look in zip(EXAMPLE.demonstrations, effect.attention["before"], strict=True)
    )
    query_cell = f'<th scope="row" rowspan="{len(answers)}">{EXAMPLE.query}</th>'
    query = "".join(
        f'<tr class="opening-query">{query_cell if i == 0 else ""}'
        f'<td>: <b class="{kind(label)}">{label}</b></td>'
        f"<td>{bar(label, share)}<span>{escape(percent(share))}</span></td></tr>"
        for i, (label, share) in enumerate(answers.items())
    )
    columns = _titles("text", "label", f"attention of {NUMBERS[n_heads]} heads")
    answer_columns = _titles("query", "answer", "probability")
    return (
        f"<table><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody>"
        f'<tbody><tr class="opening-head">{answer_columns}</tr>{query}</tbody></table>'
        f'<p class="opening-says" aria-live="polite"><span>It says <b>{said}</b>.</span> '
        f'<span class="opening-told">{told}</span></p>'
    )


def in_words(effect: Effect, without_heads: bool) -> str:
    """Return the probabilities of both labels.

    Args:
        effect: Effect of heads on a prompt.
        without_heads: Whether the probabilities are those without the heads.
    """
    p = effect.answer.set_index("token")["after" if without_heads else "before"]
    labels = sorted(EXAMPLE.labels, reverse=True)
    return ", ".join(f"{label} {percent(p[label])}" for label in labels)


def still(build: Path) -> str:
    """Return the paper's prompt as it is, without buttons.

    Args:
        build: Folder of built files.
    """
    heads = chosen_heads(build)
    effect = zeroing_effect(loading.load(playground_page.MODEL), EXAMPLE, heads)
    return f'<div class="opening-live">{prompt_table(effect, len(heads))}</div>'


def drawn(build: Path) -> str:
    """Return the paper's prompt with three buttons that change it.

    Args:
        build: Folder of built files.
    """
    model, heads = loading.load(playground_page.MODEL), chosen_heads(build)
    effects = {
        scene: zeroing_effect(model, SCENES[scene](EXAMPLE))
        if scene in SCENES
        else zeroing_effect(model, EXAMPLE, heads)
        for scene in BUTTONS
    }
    buttons = {scene: text.format(NUMBERS[len(heads)]) for scene, text in BUTTONS.items()}
    pressed = "".join(
        f'<button type="button" aria-pressed="false" data-scene="{scene}">{text}</button>'
        for scene, text in buttons.items()
    )
    without = "".join(
        f"<li>{text}: {escape(in_words(effects[scene], scene == SWITCH_OFF))}.</li>"
        for scene, text in buttons.items()
    )
    told = (
        "Press a button: a small model runs in this page. It is the one that solves the task in "
        "both orders."
    )
    off = (
        f"These {NUMBERS[len(heads)]} heads are off and copy no label. "
        "In larger models, later heads can make up for some of it."
    )
    return (
        f'<section class="opening-live" data-heads="{" ".join(map(str, heads))}" '
        f'data-scripts="{" ".join(LOADED)}" data-off="{off}">'
        f"<h2>Try it: which label follows “{EXAMPLE.query}”?</h2>"
        f"{prompt_table(effects[SWITCH_OFF], len(heads), told)}"
        '<div class="opening-buttons" role="group" aria-label="Change the prompt or the '
        f'model">{pressed}</div>'
        f"<noscript><style>.opening-buttons, .opening-told {{ display: none }}</style><p>What a "
        f"change of it does:</p><ul>{without}</ul></noscript></section>"
    )
