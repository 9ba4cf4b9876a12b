"""The playground in the page, in a headless browser, opened as a file."""

import base64
import json
import os
import re

import numpy as np
from browser import HEADS, PAGE, browser, fields, needs_browser, refuses, text
from tolerances import near
from towerlab.effects import SCENES, SWITCH_OFF, head_logit_differences
from towerlab.model.capture import capture
from towerlab.model.edits import edited, everywhere, zero_ablate
from towerlab.model.loading import load
from towerlab.prompts.paper_sets import CASE as EXAMPLE
from towerlab.prompts.prompt import encode_all
from towerlab_experiments.head_values import increases
from twotowers.heads import Head

pytestmark = needs_browser


def nats_in(label: str) -> float:
    """The number that a head's label says; three decimals."""
    return float(re.search(r"(\S+) nats", label)[1])


def test_the_page_shows_what_python_computes_and_keeps_the_answer_before(address):
    """And its file has its first drawing, for readers without JavaScript: TWOTOWERS_DRAW=1 writes
    it again."""
    model = load("mini-gpt2")
    (e,) = encode_all([EXAMPLE], model.tokenizer)
    plain, increase = capture(model, [e], {"weights"}), increases(model, [e])["increase"]
    with edited(model, zero_ablate([*map(Head.parse, HEADS)], everywhere([e]))):
        shares = [
            f"{of.logits[0].softmax(-1)[e.true_id]:.0%}" for of in (plain, capture(model, [e]))
        ]
    fragment = PAGE / "playground-page.html"
    with browser(address) as page:
        picture = page.locator(".playground-arcs").evaluate("(picture) => picture.outerHTML")
        cells = page.locator(".playground-map button").evaluate_all(
            "all => all.map((cell) => cell.ariaLabel)"
        )
        arcs = dict(
            re.findall(r"head (\S+): ([^;]+)", page.get_attribute(".playground-arcs", "aria-label"))
        )
        page.get_by_label("over all words").check()
        label = page.get_attribute('[data-head="3-1"]', "aria-label")
        near(nats_in(label), increase[0, 3, 1], atol=6e-4)
        page.get_by_role("button", name="zero").click()  # all heads with arcs
        assert " → ".join(shares) in text(page, "answer")
        assert "3-1, 3-2, 3-0, 3-5, 3-7 switched off" in text(page, "sentence")
    nats = {re.search(r"head (\S+?),", label)[1]: nats_in(label) for label in cells}
    for (layer, head), value in np.ndenumerate(head_logit_differences(plain, model).numpy()):
        near(nats[f"{layer}-{head}"], value, atol=6e-4)
    if os.environ.get("TWOTOWERS_DRAW"):  # the arcs alone; words stand beside them
        fragment.write_text(
            re.sub("<svg.*</svg>", lambda _: picture, fragment.read_text("utf8")), "utf8"
        )
    assert re.search("<svg.*</svg>", fragment.read_text("utf8")).group() == picture
    for name in HEADS:
        weights = plain.weights[:, 0][Head.parse(name)][list(e.label_positions)].tolist()
        near([float(w) for w in re.findall(r" (\d?\.\d+)", arcs[name])], weights, atol=0.0051)


def test_scenes_are_guessed_first_and_say_what_the_model_does(address):
    expected = ["bar", "foo", "foo", "bar", "foo", "", "bar"]
    with browser(address) as page:
        buttons = page.locator(".playground-scenes button")
        # those of the playground in notebooks, and one
        names = [*SCENES, SWITCH_OFF, "Steer the query towards the other class"]
        assert buttons.all_text_contents() == names
        for i, answer in enumerate(expected, 1):
            buttons.nth(i - 1).click()
            pressed = page.locator(".playground-scenes [aria-pressed=true]")
            assert pressed.all_text_contents() == [names[i - 1]]
            assert text(page, "says") == "?" and text(page, "sentence") == ""
            page.locator(
                ".playground-question button", has_text=answer or "another word"
            ).first.click()
            assert text(page, "score") == f"{i} of {i} right"
            assert text(page, "says") == answer or not answer


def test_the_slider_moves_the_query_and_turns_the_answer(address):
    at = "(word) => { const { x, y } = word.getBoundingClientRect(); return [x, y].join(); }"
    now = f"({at})(document.querySelector('.playground-plane .word'))"  # the plane is drawn later
    with browser(address) as page:
        word, slider = page.locator(".playground-plane .word"), page.get_by_label("steer the query")
        start = word.evaluate(at)
        colours = page.locator(".playground-small", has_text="Keys:").text_content()
        assert "● sentiment, ● number" in colours  # as in the class pair, and so on *Heads*
        slider.fill("3")
        assert text(page, "says") == "bar" and "steered" in text(page, "sentence")
        page.wait_for_function(f"(start) => {now} !== start", arg=start)
        page.get_by_role("button", name="undo").click()
        page.wait_for_function(f"(start) => {now} === start", arg=start)
        assert text(page, "says") == "foo"


BAD = {
    "": "The query is empty",
    "\u202eabc": "The query holds a character that cannot",
    "🙂" * 80: "The prompt has 334 tokens",
}


def test_bad_input_gives_a_line_and_undo_goes_step_by_step(address):
    with browser(address) as page:
        start = fields(page)
        good = text(page, "sentence")
        query = page.get_by_label("query", exact=True)
        for entry, line in BAD.items():
            query.fill(entry)
            assert text(page, "error").startswith(line)
            assert not page.locator(".playground-result").is_visible()  # it is of other words
            page.get_by_role("button", name="undo").click()
            assert text(page, "error") == "" and fields(page) == start
            assert (
                text(page, "sentence") == good and page.locator(".playground-result").is_visible()
            )
        query.fill("<img src=x onerror=alert(1)> שלום")
        assert text(page, "error") == "" and page.locator("#playground-page img").count() == 0
        page.get_by_role("button", name="undo").click()
        page.get_by_role("button", name="redo").click()
        assert fields(page)[-2].startswith("<img")


def test_the_address_holds_the_state_and_refuses_another(address):
    with browser(address) as page:
        page.get_by_label("query", exact=True).fill("שלום & <b>")
        page.locator('[data-head="2-4"]').click()
        page.get_by_label("scale", exact=True).check()
        page.get_by_role("button", name="share").click()
        link, before = page.url, (fields(page), text(page, "sentence"))
    code = link.partition("=")[2]
    state = json.loads(base64.urlsafe_b64decode(code + "=="))
    bad = [
        {**state, **fields}
        for fields in ({"extra": 1}, {"heads": {"9-1": "zero"}}, {"steering": 9})
    ]
    codes = [base64.urlsafe_b64encode(json.dumps(b).encode()).decode().rstrip("=") for b in bad]
    with browser(link) as page:
        assert (fields(page), text(page, "sentence")) == before and "2-4 scaled by 0.5" in before[1]
        for broken in [*codes, code[:-9], ""]:
            refuses(page, f"playground={broken}")
            assert fields(page) == before[0]


def test_without_javascript_a_picture_stands_there(address):
    with browser(address, java_script_enabled=False) as page:
        assert page.locator("#playground-page svg").is_visible()
