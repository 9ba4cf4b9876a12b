"""The playground: change a prompt or some heads and see prediction, attention, increases and top words change together.

    found = results(model, State(prompt, heads=(Head(3, 1),), action="zero"))     # a state in, tables out
    found.sentence, found.attention
    figures(found)                                                            # the same as static charts

The widgets of `playground` are thin: all that they show is computed here, without a browser.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch

from twotowers.analysis import locate, mitigate
from twotowers.analysis.edit_heads import Edit, check_heads, edited
from twotowers.errors import TwoTowersError
from twotowers.exhibits.claim import code
from twotowers.heads import Head, named
from twotowers.model import unembed
from twotowers.model.capture import Capture, capture
from twotowers.model.model import Model
from twotowers.model.proof import finished
from twotowers.prompts.prompt import Prompt, encode
from twotowers.stats import charts
from twotowers.stats.agreement import top as top_heads

ACTIONS = ("leave", "zero", "scale", "patch", "mend recency", "mend majority")  # the first four as in the page
SHOWN = 3  # heads shown when none is picked: those with the largest increase


@dataclass(frozen=True)
class State:
    """What the reader has set. `action` is done to `heads`; `amount` is the factor of "scale", a_c of "mend majority".

    "zero" and "scale" act at all positions; a "patch"ed head writes, at the last position, what it writes there with the
    labels exchanged; "mend recency" is the position-free shortcut (mean), "mend majority" the minority shortcut of
    chapter 7.
    """

    prompt: Prompt
    heads: tuple[Head, ...] = ()
    action: str = "zero"
    amount: float = 0.5


@dataclass(frozen=True)
class Results:
    """Before the action and after it, as tidy tables.

    `words`: word, before, after (probability), the top words after. `labels`: label, before, after (probability),
    change (nats). `attention`: demonstration, label, before, after: weight on the label, mean over `shown` heads.
    `heads`: layer, head, name, before, after (increase of the true label, nats). `says`: head, words: what the shown
    heads write. `sentence` says the main thing.
    """

    words: pd.DataFrame
    labels: pd.DataFrame
    attention: pd.DataFrame
    heads: pd.DataFrame
    says: pd.DataFrame
    shown: tuple[Head, ...]
    sentence: str

    @property
    def told(self) -> str:
        """`sentence` for a page, where words of the vocabulary are no Markdown, and the true label's probability."""
        true = self.labels.iloc[0]
        return (
            f"{code(self.sentence)}. The probability of the label {code(true['label'])} goes from {true['before']:.1%} to "
            f"{true['after']:.1%}."
        )


@torch.inference_mode()
def results(model: Model, state: State, top: int = 6) -> Results:
    """Two forward passes, without and with the action, and what they show. Raises TwoTowersError in one line."""
    if state.action not in ACTIONS:
        raise TwoTowersError(f"action '{state.action}': choose one of {', '.join(ACTIONS)}")
    heads = tuple(Head(*head) for head in check_heads(state.heads, model)) if state.heads else ()
    encoded = encode(state.prompt, model.tokenizer, model.context)
    record = {"weights", "values", "streams"}
    before, logits = capture(model, [encoded], record), None
    with ExitStack() as stack:
        if heads and state.action in ("zero", "scale"):
            factor = 0.0 if state.action == "zero" else mitigate.check_a_c(state.amount)
            stack.enter_context(edited(model, [Edit(heads, scale=factor)]))
        elif heads and state.action == "patch":
            source = capture(model, [encode(exchanged(state.prompt), model.tokenizer, model.context)])
            instead = torch.stack([source.attention_out_input[layer, 0, head] for layer, head in heads])
            stack.enter_context(edited(model, [Edit(heads, positions="last", replacement=instead)]))
        elif heads and state.action == "mend recency":
            stack.enter_context(mitigate.position_free(model, heads, "mean"))
        after = capture(model, [encoded], record)
    if heads and state.action == "mend majority":
        shortcut = mitigate.check_a_c(state.amount) * mitigate.minority_shortcut(after, model, heads)
        logits = finished(model, after.resid_final + shortcut)
    p = [_probabilities(x) for x in (before.logits, after.logits if logits is None else logits)]
    gains = [locate.head_increases(seen, model)[0].cpu().numpy() for seen in (before, after)]
    table = _heads_table(*gains)
    shown = heads or tuple(top_heads(gains[0], min(SHOWN, len(table))))
    labels = pd.DataFrame(
        {"label": label, "before": p[0][word], "after": p[1][word], "change": np.log(p[1][word] / p[0][word])}
        for label, word in encoded.label_ids.items()
    )
    best = np.argsort(-p[1], kind="stable")[:top]
    words = pd.DataFrame(
        {"word": _word(model, word), "before": p[0][word], "after": p[1][word]} for word in best.tolist()
    )
    weights = [_weights(seen, model, state, shown, i) for i, seen in enumerate((before, after))]
    attention = pd.DataFrame(
        {"demonstration": f"{i + 1}. {d.text}", "label": d.label, "before": weights[0][at], "after": weights[1][at]}
        for i, (d, at) in enumerate(zip(state.prompt.demonstrations, encoded.label_positions, strict=True))
    )
    return Results(
        words, labels, attention, table, _says(after, model, shown), shown, _sentence(model, state, heads, p)
    )


def exchanged(prompt: Prompt) -> Prompt:
    """The label of every demonstration exchanged for the next one in play, the true label being the first."""
    labels = list(dict.fromkeys((prompt.true_label, *prompt.labels)))
    after = dict(zip(labels, [*labels[1:], labels[0]], strict=True))
    return replace(prompt, demonstrations=tuple(replace(d, label=after[d.label]) for d in prompt.demonstrations))


def _probabilities(logits: torch.Tensor) -> np.ndarray:
    return logits[0].double().softmax(-1).cpu().numpy()


def _word(model: Model, word: int) -> str:
    return model.tokenizer.decode([word]).strip() or "␣"


def _heads_table(before: np.ndarray, after: np.ndarray) -> pd.DataFrame:
    layer, head = (axis.ravel() for axis in np.indices(before.shape))
    names = [f"{a}-{b}" for a, b in zip(layer, head, strict=True)]
    return pd.DataFrame({"layer": layer, "head": head, "name": names, "before": before.ravel(), "after": after.ravel()})


def _weights(seen: Capture, model: Model, state: State, shown: tuple[Head, ...], after: int) -> np.ndarray:
    """Weights that act, (position,), mean over the shown heads."""
    weights = torch.stack([seen.weights[layer, 0, head] for layer, head in shown])
    if after and state.heads and state.action == "mend recency":
        keep, share = mitigate.SHORTCUTS["mean"]
        weights = (keep * weights + share * mitigate.free_weights(seen, model, shown)[:, 0]) / (keep + share)
    return weights.mean(0).cpu().numpy()


def _says(seen: Capture, model: Model, shown: tuple[Head, ...], k: int = 5) -> pd.DataFrame:
    """The top words of what each of the first few shown heads writes at the last position; none when it is zero."""
    rows = []
    for layer, head in shown[:SHOWN]:
        vector = seen.z[layer, 0, head] @ model.output_weight(layer)[head].to(seen.z)
        ids = unembed.top_words(vector, k, model.unembedding)[1].tolist() if vector.any() else []
        rows.append({"head": f"{layer}-{head}", "words": ", ".join(_word(model, i) for i in ids) or "nothing"})
    return pd.DataFrame(rows)


def _sentence(model: Model, state: State, heads: tuple[Head, ...], p: list[np.ndarray]) -> str:
    said = [f"“{_word(model, int(one.argmax()))}” ({one.max():.0%})" for one in p]
    if not heads or state.action == "leave":
        return f"The model says {said[0]}. Pick heads on the map to act on them."
    names = ", ".join(named(heads))
    done = {"scale": f"scaled by {state.amount:g}", "zero": "zeroed", "patch": "patched"}
    what = done.get(state.action, f"used to {state.action}")
    return f"The model says {said[0]}; with {names} {what} it says {said[1]}."


def figures(found: Results) -> list:
    """Static charts of the same results, for readers without a running Python."""

    def long(table: pd.DataFrame, keep: list[str], value: str) -> pd.DataFrame:
        return table.melt(keep, ["before", "after"], "when", value)

    prompt_of = found.attention.assign(place=found.attention.demonstration + " : " + found.attention.label)
    names = ", ".join(named(found.shown))
    return [
        charts.bars(
            long(found.words, ["word"], "probability"), x="word", y="probability", group="when",
            sort=list(found.words.word), x_title="word", y_title="probability", height=200,
            title="What the model says next", description=f"Probabilities of the top words. {found.sentence}",
        ),
        charts.bars(
            long(prompt_of, ["place"], "weight"), x="place", y="weight", group="when", sort=list(prompt_of.place),
            x_title="demonstration", y_title="attention weight", title=f"Attention on each label, heads {names}",
            description="Weight of the last position on the label of each demonstration, mean over the heads.",
            height=200,
        ),
        charts.head_map(
            found.heads, value="after", value_title="increase (nats)", title="Increase of the true label, head by head",
            description="One cell for each head; colour is its log-probability increase in nats.",
        ),
    ]  # fmt: skip


def heads_from_text(text: str) -> tuple[Head, ...]:
    """((3, 1), (2, 5)) from "3-1, 2-5". Raises TwoTowersError on anything else."""
    return tuple(dict.fromkeys(Head.parse(word) for word in re.split(r"[,\s]+", text.strip()) if word))
