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
    "Swap the labels": "swap the labels",
    SWITCH_OFF: "switch off {} heads",
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


def kind(word: str) -> str:
    """Return the class of a word in style sheets: the right label, another label, or other words.

    Args:
        word: Word, or "other".
    """
    if word not in EXAMPLE.labels:
        return "of-other"
    return "of-true" if word == EXAMPLE.true_label else "of-false"


def bar(parts: dict[str, float]) -> str:
    """Return shares side by side as a picture, in the colours of right and other labels.

    It is a picture because a policy may forbid styles in a tag.

    Args:
        parts: Shares by label.
    """
    rects, at = "", 0.0
    for label, part in parts.items():
        rects += f'<rect class="{kind(label)}" x="{at:.5f}" width="{part:.5f}" height="1"/>'
        at += part
    view = 'viewBox="0 0 1 1" preserveAspectRatio="none"'
    return f'<svg class="opening-bar" {view} aria-hidden="true">{rects}</svg>'


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


def prompt_table(effect: Effect, n_heads: int) -> str:
    """Return the paper's prompt with the attention on each label, and the answer.

    Args:
        effect: Effect of the heads, whose columns `before` are shown.
        n_heads: Number of the heads.
    """
    p = effect.answer.set_index("token")["before"]
    answers = p[sorted(EXAMPLE.labels)].to_dict()
    said, answers["other"] = p.idxmax(), max(0.0, 1 - sum(answers.values()))
    shares = ", ".join(f"{word} {percent(share)}" for word, share in answers.items()).replace(
        "other", "other words"
    )
    rows = "".join(
        f'<tr><th scope="row">{d.text}</th><td>: <b class="{kind(d.label)}">{d.label}</b></td>'
        f"<td>{bar({d.label: look})}<span>{escape(percent(look))}</span></td></tr>"
        for d, look in zip(EXAMPLE.demonstrations, effect.attention["before"], strict=True)
    )
    query = (
        f'<tr class="opening-query"><th scope="row">{EXAMPLE.query}</th><td>: <b '
        f'class="{kind(said)}">{said}</b></td>'
        f"<td>{bar(answers)}<span>{escape(percent(p[said]))}</span></td></tr>"
    )
    columns = _titles("text", "label", f"attention of {NUMBERS[n_heads]} heads")
    answer_columns = _titles("query", "answer", "its probability")
    return (
        f"<table><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody>"
        f'<tbody><tr class="opening-head">{answer_columns}</tr>{query}</tbody></table>'
        f'<p class="opening-says" aria-live="polite">It says <b>{said}</b>: {escape(shares)}.</p>'
    )


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
        f"<li>{text}: {escape(effects[scene].sentence)}</li>" for scene, text in buttons.items()
    )
    told = "Press a button: a small model runs in this page."
    return (
        f'<section class="opening-live" data-heads="{" ".join(map(str, heads))}" '
        f'data-scripts="{" ".join(LOADED)}"><h2>Try it: which label follows “{EXAMPLE.query}”?</h2>'
        f"{prompt_table(effects[SWITCH_OFF], len(heads))}"
        '<div class="opening-buttons" role="group" aria-label="Change the prompt or the '
        f'model">{pressed}</div><p class="opening-told" role="status">{told}</p>'
        f"<noscript><style>.opening-buttons, .opening-told {{ display: none }}</style><p>What a "
        f"change of it does:</p><ul>{without}</ul></noscript></section>"
    )
