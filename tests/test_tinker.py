"""The playground in the page: its engine beside PyTorch, and the page in a headless browser, opened as a file."""

import base64
import contextlib
import importlib.util
import json
import os
import random
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from playwright.sync_api import sync_playwright
from twotowers.heads import Head
from twotowers.measure.chain import Run
from twotowers.measure.settings import Settings
from twotowers.measure.steering import class_directions, steering
from twotowers.model.ablated_runs import Ablation
from twotowers.model.capture import capture
from twotowers.model.hooks import changing_z
from twotowers.model.increase import increases_along
from twotowers.model.loading import load
from twotowers.model.unembed import norm_scale
from twotowers.playground import EXAMPLE, head_logit_differences, true_label
from twotowers.prompts.blocks import Form
from twotowers.prompts.prompt import Demonstration, Prompt, encode_all
from twotowers.prompts.variants import exchanged_labels

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "book/_page"
sys.path.insert(0, str(ROOT / "book/_ext"))
import tinker  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
AXE = Path(importlib.util.find_spec("axe_playwright_python").origin).parent / "axe.min.js"
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (Debian and Ubuntu: apt install chromium)")
HEADS = ["3-1", "3-2", "3-0", "3-5", "3-7"]
PUSHED = ["3-5", *HEADS[:3], "3-7"]
ODD = ["Zürich — 東京 🙂", "12.50!", "he's  won", "(a) b", "שלום עולם", "<b>bold</b>", "Don't & WON'T", "e\u0301x"]
HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>t</title>
<meta name="viewport" content="width=device-width"><meta http-equiv="Content-Security-Policy"
content="default-src 'none'; script-src file:; style-src file:">"""  # no inline script, handler or eval
ENGINE = """(states) => {
  const bytes = (name) => Uint8Array.from(atob(twotowersData.files[name]), (c) => c.charCodeAt(0));
  const json = (name) => JSON.parse(new TextDecoder().decode(bytes(name)));
  const model = twotowers.loadModel(json("config.json"), bytes("model.safetensors"));
  const tokenizer = new twotowers.Tokenizer(json("tokenizer.json"));
  return JSON.stringify(states.map((state) => {
    const prompt = twotowers.encode(state, model, tokenizer), [a, b] = prompt.labels, { dHead } = model;
    const source = model.run(twotowers.exchanged(prompt)), plain = model.run(prompt.ids);
    const patch = { "1-2": { scale: 0 }, "2-3": { scale: -0.5 }, "3-1": { instead: source.z[3].subarray(dHead, 2 * dHead) } };
    const up = model.increases(plain, a.id);
    const edited = model.run(prompt.ids, patch), again = model.run(prompt.ids, {}, source);
    return { ids: prompt.ids, labelAt: prompt.labelAt, logits: [...plain.logits], again: [...again.logits],
      weights: plain.weights.map((w) => [...w]), differences: [...model.differences(plain, a.id, b.id)], up,
      edited: [...edited.logits], label: twotowers.labelByClass(state, twotowersData.classes) };
  }));
}"""  # as text: Playwright takes half a minute for so many numbers
STEER = """([state, pair, name, dose]) => {
  const bytes = (name) => Uint8Array.from(atob(twotowersData.files[name]), (c) => c.charCodeAt(0));
  const json = (name) => JSON.parse(new TextDecoder().decode(bytes(name)));
  const model = twotowers.loadModel(json("config.json"), bytes("model.safetensors"));
  const tokenizer = new twotowers.Tokenizer(json("tokenizer.json"));
  const towers = new twotowers.Towers(model, tokenizer, twotowersData.recorded, twotowersData.classes);
  const edits = Object.fromEntries(twotowersData.pushed.map((name) =>
    [name, { push: towers.direction(...pair, name).map((x) => dose * x) }]));
  const prompt = twotowers.encode(state, model, tokenizer), plain = model.run(prompt.ids);
  const found = [model.run(prompt.ids, edits), model.run(prompt.ids, edits, plain)].map(({ logits }) =>
    prompt.labels.map(({ id }) => logits[id] - twotowers.logSumExp(logits)));
  return { direction: [...towers.direction(...pair, name)], found };
}"""


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    """The playground's own files, and the site's script, in a page without the book around it, as a file."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "data.js").write_text(tinker.script(ROOT / "data/models/mini-gpt2", HEADS, PUSHED))
    sources = [folder / "data.js", *(PAGE / name for name in (*tinker.SCRIPTS[1:], "page.js"))]
    head = "".join(f'<script defer src="{source.as_uri()}"></script>' for source in sources)
    head += "".join(f'<link rel="stylesheet" href="{(PAGE / n).as_uri()}">' for n in ("book.css", "tinker.css"))
    body = (
        f"<body class='bd-article'><main><h1>t</h1><h2>t</h2>{(PAGE / 'tinker.html').read_text('utf8')}</main></body>"
    )
    (folder / "page.html").write_text(HEAD + head + body)
    return (folder / "page.html").as_uri()


@contextlib.contextmanager
def browser(address: str, width: int = 1280, height: int = 800, **how):
    """The page in a browser that reaches no network; what its console says wrong fails the test."""
    with sync_playwright() as playwright:  # closed before the test ends: pytest cannot report beside an open one
        chromium, wrong = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS), []
        page = chromium.new_context(viewport={"width": width, "height": height}, offline=True, **how).new_page()
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(address)
        yield page
        chromium.close()
    assert wrong == []


def text(page, kind: str) -> str:
    return re.sub("[\u2068\u2069]", "", page.text_content(f".tinker-{kind}"))


def fields(page) -> list[str]:
    return page.locator("#tinker input[type=text]").evaluate_all("all => all.map((field) => field.value)")


def random_prompts(tokenizer, n: int) -> list[Prompt]:
    draw = random.Random(0)
    words = [tokenizer.decode([i]).strip() for i in range(257, 1900)]
    words, out = [word for word in words if word.isalpha()] * 2 + ODD * 20, []
    for _ in range(n):
        labels = draw.sample(["foo", "bar", "baz"], 2)
        rows = [Demonstration(draw.choice(words), draw.choice(labels)) for _ in range(draw.randint(1, 8))]
        out.append(Prompt([*rows, Demonstration(draw.choice(words), labels[1])], draw.choice(words), labels[0], labels))
    return out


def close(ours, theirs) -> None:
    torch.testing.assert_close(torch.tensor(ours, dtype=torch.float64), theirs.double().cpu(), rtol=0, atol=1e-4)


def test_the_engine_equals_pytorch_on_100_prompts(address):
    model = load("mini-gpt2")
    prompts = random_prompts(model.tokenizer, 100)
    states = [{"demonstrations": [[d.text, d.label] for d in p.demonstrations], "query": p.query, "true_label": p.true_label}
              for p in prompts]  # fmt: skip
    with browser(address) as page:
        results = json.loads(page.evaluate(ENGINE, states))
    for result, p in zip(results, prompts, strict=True):  # capitals are lowered
        p = replace(
            p, demonstrations=[replace(d, text=d.text.lower()) for d in p.demonstrations], query=p.query.lower()
        )
        e, exchanged = encode_all([p, exchanged_labels(p)], model.tokenizer, model.context)
        assert (tuple(result["ids"]), tuple(result["labelAt"])) == (e.ids, e.label_positions)
        assert result["label"] == (true_label([(d.text, d.label) for d in p.demonstrations], p.query) or "")
        seen, source = capture(model, [e], {"weights"}), capture(model, [exchanged])
        close(result["logits"], seen.logits[0])
        close(result["again"], seen.logits[0])
        close(result["weights"], seen.weights[:, 0].flatten(1))
        close(result["differences"], head_logit_differences(seen, model).flatten())
        scale = norm_scale(seen.resid_final, model.unembedding)
        parts = seen.resid_pre, seen.z[:, :, :, None], seen.ffn_output
        close(result["up"], increases_along(model, *parts, scale, seen.true_ids)[2][0, :, :, 0].flatten())
        with changing_z(model, {1: lambda z: z[..., 2, :].zero_(), 2: lambda z: z[..., 3, :].mul_(-0.5),
                                3: lambda z, new=source.z[3, :, 1]: z[:, -1, 1].copy_(new)}):  # fmt: skip
            close(result["edited"], capture(model, [e]).logits[0])


def test_a_push_of_the_query_is_the_steering_of_chapter_6(address):
    """The same prompts, directions and answers as `measure.steering` has, at every dose."""
    run = Run(Settings())
    locating = run.locating(Form(2, "space"))
    assert [e.prompt.text for e in locating] == tinker.recorded()
    directions = class_directions(run.model, locating)
    cls = {"love": "sentiment", "like": "sentiment", "eight": "number", "two": "number"}
    shown = [replace(d, cls=cls[d.text]) for d in EXAMPLE.demonstrations]
    prompt = replace(EXAMPLE, demonstrations=shown, cls="number", dataset="sentiment/number")
    heads = {"pushed": list(map(Head.parse, PUSHED))}
    measured = steering(run.model, run.encode([prompt]), directions, heads, towers=("query",), random=0).isel(
        tower=0, heads=0, prompt=0
    )
    state = {"demonstrations": [[d.text, d.label] for d in prompt.demonstrations], "query": "one", "true_label": "foo"}
    with browser(address) as page:
        for dose in measured.dose.values:
            pair = ["sentiment", "number"]  # a positive dose goes to the first class: here from the second
            result = page.evaluate(STEER, [state, pair[::-1], "3-1", float(dose)])
            at = measured.sel(dose=dose)
            for found in result["found"]:
                assert found == pytest.approx([float(at.log_prob_true), float(at.log_prob_other)], abs=1e-4)
    close(result["direction"], torch.tensor(directions["query"].sel(pair="sentiment/number").values[3, 1]))


def test_the_page_shows_what_python_computes_and_keeps_the_answer_before(address):
    model = load("mini-gpt2")
    (e,) = encode_all([EXAMPLE], model.tokenizer)
    seen = capture(model, [e], {"weights"})
    with changing_z(model, {3: lambda z: Ablation(frozenset(map(Head.parse, HEADS))).apply(3, z)}):
        shares = [f"{of.logits[0].softmax(-1)[e.true_id]:.0%}" for of in (seen, capture(model, [e]))]
    with browser(address) as page:
        cells = page.locator(".tinker-map button").evaluate_all("all => all.map((cell) => cell.ariaLabel)")
        described = dict(re.findall(r"head (\S+): ([^;]+)", page.get_attribute(".tinker-arcs", "aria-label")))
        page.get_by_role("button", name="zero").click()  # all heads with arcs
        assert " → ".join(shares) in text(page, "answer") and "3-1 zeroed, 3-2 zeroed" in text(page, "sentence")
    shown = dict(re.search(r"head (\S+?),.* (\S+) nats", label).groups() for label in cells)
    for (layer, head), value in np.ndenumerate(head_logit_differences(seen, model).numpy()):
        assert shown[f"{layer}-{head}"] == f"{value:.3f}"
    for name in HEADS:
        weights = seen.weights[:, 0][Head.parse(name)][list(e.label_positions)].tolist()
        assert [float(w) for w in re.findall(r" (\d?\.\d+)", described[name])] == pytest.approx(weights, abs=0.0051)


def test_the_true_label_follows_the_query_and_capitals_are_lowered(address):
    with browser(address) as page:
        small = text(page, "sentence")
        page.get_by_label("query", exact=True).fill("ONE")
        assert text(page, "sentence") == small and text(page, "note") == ""
        page.get_by_label("query", exact=True).fill("Happy")
        assert fields(page)[-1] == "bar" and "“bar”" in text(page, "sentence")
        page.get_by_label("query", exact=True).fill("qwx")  # of no known class: the label stays
        assert fields(page)[-1] == "bar" and "“qwx”" in text(page, "note")


def test_scenes_are_guessed_first_and_say_what_the_model_does(address):
    expected = ["bar", "foo", "foo", "bar", "foo", "", "bar"]
    with browser(address) as page:
        buttons = page.locator(".tinker-scenes button")
        for i, answer in enumerate(expected):
            buttons.nth(i).click()
            before = text(page, "told")
            assert text(page, "says") == "?"
            assert not page.locator(".tinker-answer").is_visible() and text(page, "sentence") == ""
            page.locator(".tinker-question button", has_text=answer or "another word").first.click()
            assert page.locator(".tinker-answer").is_visible() and text(page, "told").startswith(before + " ")
            assert text(page, "score") == f"{i + 1} of {i + 1} right"
            assert text(page, "says") == answer or not answer


BAD = {
    "": "The query is empty",
    "\u202eabc": "The query holds a character that cannot",
    "🙂" * 80: "The prompt has 334 tokens",
}


def test_bad_input_gives_a_line_and_undo_goes_step_by_step(address):
    with browser(address) as page:
        start, good, query = fields(page), text(page, "sentence"), page.get_by_label("query", exact=True)
        for written, line in BAD.items():
            query.fill(written)
            assert text(page, "error").startswith(line) and text(page, "sentence") == good
            page.get_by_role("button", name="undo").click()
            assert text(page, "error") == "" and fields(page) == start
        query.fill("<img src=x onerror=alert(1)> שלום")
        assert text(page, "error") == "" and page.locator("#tinker img").count() == 0
        page.get_by_label("move example 1 down", exact=True).click()
        for _ in range(2):
            page.get_by_role("button", name="undo").click()
        assert fields(page) == start and text(page, "sentence") == good
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
        {**state, "extra": 1},
        {**state, "heads": {"9-1": "zero"}},
        {**state, "factor": "1"},
        {**state, "query": ""},
        [],
    ]
    codes = [base64.urlsafe_b64encode(json.dumps(b).encode()).decode().rstrip("=") for b in bad]
    with browser(link) as page:
        assert (fields(page), text(page, "sentence")) == before and "2-4 scaled by 0.5" in before[1]
        for broken in [*codes, code[:-9], ""]:
            page.evaluate("(code) => { location.hash = `playground=${code}`; }", broken)
            page.wait_for_function("document.querySelector('.tinker-error').textContent")
            assert "cannot read" in text(page, "error") and fields(page) == before[0]


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_it_fits_the_screen_and_breaks_no_rule_of_accessibility(address, width, height):
    with browser(address, width, height, bypass_csp=True) as page:
        page.evaluate("document.querySelector('#tinker').scrollIntoView()")
        box = lambda part: page.locator(part).first.bounding_box()  # noqa: E731
        if width > 1000:
            for part in (".tinker-map", ".tinker-answer", ".tinker-arcs"):
                assert box(part)["y"] + box(part)["height"] <= height
        else:
            page.get_by_role("button", name="leave all").scroll_into_view_if_needed()
            assert 0 <= box(".tinker-answer")["y"] < height / 2  # it stays in view
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        sizes = "all => all.map((e) => e.getBoundingClientRect()).map(({ width, height }) => Math.min(width, height))"
        assert min(page.locator("#tinker :is(button, input)").evaluate_all(sizes)) >= 24
        page.add_script_tag(path=AXE)
        rules = "async () => (await axe.run({ preload: false })).violations.map((v) => [v.id, v.nodes[0].html])"
        assert page.evaluate(rules) == []
        page.focus('[data-head="3-1"]')
        page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.ariaLabel").startswith("head 2-1, ")


def test_without_javascript_a_picture_stands_there(address):
    """The picture is the page's own first drawing: TWOTOWERS_DRAW=1 writes it again."""
    fragment = PAGE / "tinker.html"
    with browser(address) as page:
        drawn = page.locator(".tinker-arcs").evaluate("(picture) => picture.outerHTML")
    if os.environ.get("TWOTOWERS_DRAW"):
        fragment.write_text(re.sub("<svg.*</svg>", lambda _: drawn, fragment.read_text("utf8")), "utf8")
    with browser(address, java_script_enabled=False) as page:
        assert page.locator("#tinker svg").is_visible()
    assert re.search("<svg.*</svg>", fragment.read_text("utf8")).group() == drawn
