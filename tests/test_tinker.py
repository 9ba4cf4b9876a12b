"""The playground in the page: its engine beside PyTorch, and the page in a headless browser, opened as a file."""

import json
import random
import sys
from pathlib import Path

import pytest
import torch
from playwright.sync_api import sync_playwright
from test_pages import CHROMIUM, FLAGS, needs_browser
from twotowers.analysis import locate
from twotowers.analysis.edit_heads import Edit, edited
from twotowers.analysis.project import key_inputs, value_outputs
from twotowers.model import unembed
from twotowers.model.capture import captures
from twotowers.model.loading import load
from twotowers.prompts.datasets import paper_example, swapped_labels
from twotowers.prompts.prompt import SEPARATORS, Demonstration, Prompt, encode_all

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "book/_page"
sys.path.insert(0, str(ROOT / "book/_ext"))
import tinker  # noqa: E402

pytestmark = needs_browser
ODD = ["Zürich — 東京 🙂", "12.50!", "he's  won", "(a) b", "שלום עולם", "<b>bold</b>", "don't & won't", "e\u0301x"]
ENGINE = """<!doctype html><meta charset="utf-8"><script>window.errors = []; onerror = (m) => errors.push(m)</script>
{scripts}<script>
  const {{ files }} = twotowersData, bytes = (name) => Uint8Array.from(atob(files[name]), (c) => c.charCodeAt(0));
  const json = (name) => JSON.parse(new TextDecoder().decode(bytes(name)));
  const model = twotowers.loadModel(json("config.json"), bytes("model.safetensors"));
  const tokenizer = new twotowers.Tokenizer(json("tokenizer.json"));
</script>"""


@pytest.fixture
def open_page():
    """Open an address in a browser that reaches no network; what its console says wrong fails the test."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        wrong = []

        def opened(address: str, width: int = 1280, mode: str = "light", javascript: bool = True):
            context = browser.new_context(
                viewport={"width": width, "height": 900}, color_scheme=mode, java_script_enabled=javascript, offline=True
            )
            page = context.new_page()
            page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.goto(address)
            return page

        yield opened
        browser.close()
        assert wrong == []


def engine_page(folder: Path, name: str) -> str:
    """A bare page with the engine and one model."""
    (folder / "data.js").write_text(tinker.script(ROOT / "data/models" / name, []))
    sources = [folder / "data.js", PAGE / "tinker-engine.js", PAGE / "tinker-prompt.js"]
    scripts = "".join(f'<script src="{source.as_uri()}"></script>' for source in sources)
    (folder / "engine.html").write_text(ENGINE.format(scripts=scripts))
    return (folder / "engine.html").as_uri()


def random_prompts(tokenizer, n: int) -> list[Prompt]:
    draw = random.Random(0)
    words = [tokenizer.decode([i]).strip() for i in range(257, 1900)]
    words = [word for word in words if word.isalpha()] * 2 + ODD * 20
    out = []
    for _ in range(n):
        labels = draw.sample(["foo", "bar", "baz"], draw.choice([2, 3]))
        rows = [Demonstration(draw.choice(words), draw.choice(labels)) for _ in range(draw.randint(1, 8))]
        used = tuple(dict.fromkeys([labels[0], *(row.label for row in rows)]))
        used = used if len(used) > 1 else tuple(labels)
        if len({row.label for row in rows} | {labels[0]}) < 2:
            rows[0] = Demonstration(rows[0].text, labels[1])
        out.append(Prompt(rows, draw.choice(words), labels[0], used, separator=draw.choice(list(SEPARATORS.values()))))
    return out


def state_of(prompt: Prompt) -> dict:
    separator = {sign: name for name, sign in SEPARATORS.items()}[prompt.separator]
    rows = [[d.text, d.label] for d in prompt.demonstrations]
    return {"demonstrations": rows, "query": prompt.query, "true_label": prompt.true_label, "separator": separator}


MEASURE = """(states) => JSON.stringify(states.map((state) => {
  const prompt = twotowers.encode(state, model, tokenizer), seen = model.run(prompt.ids);
  return { ids: prompt.ids, labelAt: prompt.labelAt, trueId: prompt.trueId, logits: [...seen.logits],
    weights: seen.weights.map((w) => [...w]), increases: [...model.increases(seen, prompt.trueId)] };
}))"""  # as text: Playwright takes half a minute for so many numbers


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mini-gpt2", "mini-llama"])
def test_the_engine_equals_pytorch_on_100_prompts(name, tmp_path, open_page):
    model = load(name)
    prompts = random_prompts(model.tokenizer, 100)
    encoded = encode_all(prompts, model.tokenizer, model.context)
    states = [state_of(prompt) for prompt in prompts]
    found = json.loads(open_page(engine_page(tmp_path, name)).evaluate(MEASURE, states))
    assert [tuple(one["ids"]) for one in found] == [one.ids for one in encoded]
    assert [tuple(one["labelAt"]) for one in found] == [one.label_positions for one in encoded]
    assert [one["trueId"] for one in found] == [one.true_id for one in encoded]
    seen_prompts = 0
    for seen in captures(model, encoded, {"weights"}):
        increases = locate.head_increases(seen, model).flatten(1)
        for row, at in enumerate(seen.index):
            seen_prompts += 1
            close(found[at]["logits"], seen.logits[row])
            close(found[at]["weights"], seen.weights[:, row].flatten(1))
            close(found[at]["increases"], increases[row])
    assert seen_prompts == 100


def close(ours, theirs) -> None:
    torch.testing.assert_close(torch.tensor(ours, dtype=torch.float32), theirs.float().cpu(), rtol=0, atol=1e-4)
