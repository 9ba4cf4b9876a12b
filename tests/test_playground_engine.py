"""The playground's engine in a headless browser, beside PyTorch."""

import json
import random
from dataclasses import replace

import playground_page
import torch
from browser import browser, needs_browser
from tolerances import LOGITS, near
from towerlab.effects import head_logit_differences
from towerlab.measure.design import SELECTION
from towerlab.measure.pipeline import Pipeline
from towerlab.model.capture import capture
from towerlab.model.edits import Edit, edited, everywhere, patch_z, zero_ablate
from towerlab.model.increase import increases_along
from towerlab.model.loading import load
from towerlab.prompts.prompt import Demonstration, Prompt, encode_all
from towerlab.prompts.variants import exchanged_labels
from towerlab_experiments.tower_grid import BLOCKS, class_directions
from twotowers.settings import Settings, Template

pytestmark = needs_browser
ODD = [
    "Zürich — 東京 🙂",
    "12.50!",
    "he's  won",
    "(a) b",
    "שלום עולם",
    "<b>bold</b>",
    "Don't & WON'T",
    "e\u0301x",
]
ENGINE = """(states) => {
  const { model, tokenizer } = twotowers.opened(twotowersData);
  return JSON.stringify(states.map((state) => {
    const prompt = twotowers.encode(state, model, tokenizer);
    const [a, b] = prompt.labels, { dHead } = model;
    const source = model.run(twotowers.exchanged(prompt)), plain = model.run(prompt.ids);
    const patch = { "1-2": { scale: 0 }, "2-3": { scale: -0.5 },
      "3-1": { instead: source.z[3].subarray(dHead, 2 * dHead) } };
    const up = model.increases(plain, a.id);
    const edited = model.run(prompt.ids, patch), again = model.run(prompt.ids, {}, source);
    return { ids: prompt.ids, labelAt: prompt.labelAt, up,
      logits: [...plain.logits], again: [...again.logits],
      weights: plain.weights.map((w) => [...w]),
      differences: [...model.differences(plain, a.id, b.id)],
      edited: [...edited.logits] };
  }));
}"""  # as text: Playwright takes half a minute for so many numbers
DIRECTION = """([pair, name]) => {
  const { model, tokenizer } = twotowers.opened(twotowersData);
  const { prompts, classes } = twotowersData;
  const towers = new twotowers.Towers(model, tokenizer, prompts, classes);
  return [...towers.direction(...pair, name)];
}"""


def random_prompts(tokenizer, n: int) -> list[Prompt]:
    draw = random.Random(0)
    words = [tokenizer.decode([i]).strip() for i in range(257, 1900)]
    words, out = [word for word in words if word.isalpha()] * 2 + ODD * 20, []
    for _ in range(n):
        labels = draw.sample(["foo", "bar", "baz"], 2)
        said = [*(draw.choice(labels) for _ in range(draw.randint(1, 8))), labels[1]]
        rows = [Demonstration(draw.choice(words), label) for label in said]
        out.append(Prompt(rows, draw.choice(words), labels[0], labels))
    return out


def test_the_engine_equals_pytorch_on_random_prompts(address):
    model = load("mini-gpt2")
    prompts = random_prompts(model.tokenizer, 30)
    states = [{"demonstrations": [[d.text, d.label] for d in p.demonstrations], "query": p.query,
               "true_label": p.true_label}
              for p in prompts]  # fmt: skip
    with browser(address) as page:
        results = json.loads(page.evaluate(ENGINE, states))
    for result, p in zip(results, prompts, strict=True):  # capitals are lowered
        p = replace(
            p,
            demonstrations=[replace(d, text=d.text.lower()) for d in p.demonstrations],
            query=p.query.lower(),
        )
        e, exchanged = encode_all([p, exchanged_labels(p)], model.tokenizer, model.context)
        assert (tuple(result["ids"]), tuple(result["labelAt"])) == (e.ids, e.label_positions)
        plain, source = capture(model, [e], {"weights"}), capture(model, [exchanged])
        near(result["logits"], plain.logits[0], atol=LOGITS)
        near(result["again"], plain.logits[0], atol=LOGITS)
        near(result["weights"], plain.weights[:, 0].flatten(1), atol=LOGITS)
        near(result["differences"], head_logit_differences(plain, model).flatten(), atol=LOGITS)
        scale = model.unembedding.norm.scale(plain.resid_final)
        parts = plain.resid_pre, plain.z, plain.ffn_output
        near(
            result["up"],
            increases_along(model, *parts, scale, plain.true_ids)[2].flatten(),
            atol=LOGITS,
        )
        halved = Edit([(2, 3)], lambda _, head, state: -0.5 * state.z[:, head], everywhere([e]))
        given = patch_z([(3, 1)], {3: source.z[3]})
        with edited(model, zero_ablate([(1, 2)], everywhere([e])), halved, given):
            near(result["edited"], capture(model, [e]).logits[0], atol=LOGITS)


def test_the_query_is_moved_along_the_direction_of_chapter_11(address):
    """Its prompts and its direction, at a head that the slider moves."""
    run = Pipeline(Settings())
    n = BLOCKS * len(run.design.class_pairs)
    selection = run.design.encode(run.design.blocks(n, SELECTION, Template(2, "space")))
    assert [e.prompt.text for e in selection] == playground_page.prompts()["selection"]
    expected = class_directions(run.model, selection)["query"].sel(class_pair="sentiment/number")
    with browser(address) as page:  # from the second class to the first
        result = page.evaluate(DIRECTION, [["number", "sentiment"], "3-1"])
    near(result, torch.tensor(expected.values[3, 1]), atol=LOGITS)
