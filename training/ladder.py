"""The ladder: models that differ in one thing each, measured at every checkpoint, gathered in one file. Appendix E.

`make ladder` runs training/Snakefile, a job a model. A model that does not learn is reported, not replaced.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
import xarray as xr
from towerlab.measure import label_sources as sources
from towerlab.measure.answers import answers
from towerlab.measure.looks import CONTRASTS, one_by_one
from towerlab.model.attention_edits import blocked
from towerlab.model.loading import load
from towerlab.prompts.blocks import draw_blocks
from towerlab.prompts.prompt import Encoded, encode_all
from twotowers import forms, schema, store
from twotowers.errors import TwoTowersError
from twotowers.recording import Recording

from training import prompts
from training.configuration import CONFIGURATIONS, DEPTHS, LADDER
from training.text import RECALL_EDGES, Text, recall_edges
from training.tokenizer import LABELS, word_ids
from training.trainer import Trainer

PILOT = (DEPTHS[4].name, DEPTHS[8].name)
BLOCKS, SEED = 40, 37  # two blocks of every pair of classes, drawn for this alone
CHANCE = 60.0  # percent right on validation: not better than a guess between two labels
LATER = 0, 1, 2
"""Demonstrations: where classes take turns, one later stands the other class, and two later the same"""
CHOICE = 0.6  # share of prompts in which the true label comes before the other, from which on there is a choice (appendix E)
FALLS = [f"episodes, {percent}% repeats" for percent in range(90, -1, -10)]
FIFTHS = [f"episodes, {percent}% done" for percent in (20, 40, 60, 80)]
CHECKPOINTS = ["few repeats", "repeats", "recall", "echoes", "half", "colon", *FALLS, *FIFTHS, "end"]
"""Where models of all shapes have about the same loss: ends of stages and falls of the exact repeats; then fifths of the episodes"""


def train(name: str, seed: int, out: Path, steps: Path) -> str:
    """Train a model of the ladder, from where it was interrupted, unless it is there; its outcome."""
    try:
        if (out / "training.json").is_file():
            return outcome(out)
        Trainer(CONFIGURATIONS[name], seed, steps).run(out)
    except TwoTowersError as error:
        return str(error)
    return outcome(out)


def outcome(out: Path) -> str:
    """ "learned", or why a trained model counts as one that did not."""
    record = json.loads((out / "training.json").read_text(encoding="utf-8"))
    chosen = next(row for row in record["validation"] if row["step"] == record["step"])
    right = chosen["original"] - chosen["order"] / 2  # as often in one order as in the other: who answers by place is at chance
    return "learned" if right >= CHANCE else f"at chance: {right:.0f}% right on validation, reordered or not"


def label_pairs() -> list[str]:
    """Of the label words of the training, those in no prompt of the book."""
    book_labels = {label for pair in forms.label_pairs() for label in pair.split("/")}
    free = [label for label in LABELS if label not in book_labels]
    return [f"{one}/{other}" for one, other in zip(free[::2], free[1::2], strict=True)]


def checkpoints(steps: Path) -> dict[str, Path]:
    """Those of CHECKPOINTS that a model has -> folder of weights."""
    folders = sorted(steps.glob("step-*"))
    return {json.loads((folder / "training.json").read_text(encoding="utf-8"))["checkpoint"]: folder for folder in folders}


def measure(name: str, seed: int, steps: Path, outcome: str) -> xr.Dataset:
    """Means over prompts at every checkpoint of one model: see `twotowers.schema`."""
    tokens, of_checkpoints = CONFIGURATIONS[name].test_tokens, []
    blocks = draw_blocks(BLOCKS, forms.Form(prompts.K, "space"), seed=SEED, labels=label_pairs())
    for checkpoint, folder in checkpoints(steps).items():
        model = load(str(folder))
        encoded = encode_all([prompts.with_long_texts(one, tokens) for one in blocks], model.tokenizer)
        updates = json.loads((folder / "training.json").read_text(encoding="utf-8"))["step"]
        measured = means(model, encoded, updates)
        measured["recall_accuracy"] = recall_accuracy(model, Text(word_ids(model.tokenizer), seed, CONFIGURATIONS[name]))
        of_checkpoints.append(measured.expand_dims(checkpoint=[checkpoint]))
    measured = xr.concat(of_checkpoints, "checkpoint") if of_checkpoints else xr.Dataset()
    measured["outcome"] = (), outcome, {"units": schema.TABLES["ladder"]["outcome"].units}
    return measured.expand_dims(model=[name], seed=[seed])


def means(model, encoded: list[Encoded], updates: int) -> xr.Dataset:
    """What the ladder keeps of a model; where it makes no choice, that alone."""
    answered = answers(model, encoded)
    difference = answered.log_prob_true - answered.log_prob_other
    accuracy = (difference > 0).mean()
    out = of_heads(model, encoded) if accuracy >= CHOICE else xr.Dataset({"logit_difference": difference.mean()})
    out["accuracy"] = accuracy.assign_attrs(units="share")
    out["updates"] = (), updates, {"units": schema.TABLES["ladder"]["updates"].units}
    out["megabytes"] = (), sum(4 * p.numel() for p in model.hf.parameters()) / 1e6, {"units": "megabytes"}
    return out.drop_vars([name for name in out.coords if name not in out.dims])


def of_heads(model, encoded: list[Encoded]) -> xr.Dataset:
    """Means over prompts of what `looks`, `label_sources` and `later` measure."""
    every = one_by_one(model, encoded, CONTRASTS[:3]).assign(sources.label_sources(model, encoded).data_vars)
    out = every[[name for name in schema.TABLES["ladder"] if name in every]].mean("prompt", keep_attrs=True)
    by_turns = [e for e in encoded if e.prompt.is_true[0] == e.prompt.is_true[2] != e.prompt.is_true[1]]
    values = np.mean([later(model, by_turns, n) for n in LATER], axis=2).T
    out["logit_difference_later"] = ("later_part", "demonstrations_later"), values, {"units": "nats"}
    return out.assign_coords(demonstrations_later=list(LATER), later_part=["prompt", sources.QUERY])


def later(model, batch: list[Encoded], demonstrations: int) -> tuple[np.ndarray, np.ndarray]:
    """Logit differences (prompt,): of the whole prompt, later by so many demonstrations; and of the prompt where it is whose last
    position finds at the query's text the values of the later one, and keys of its own. Told an absolute position, it looks so
    many too far; told an order or a distance, it does not."""
    steps = demonstrations * (batch[0].label_positions[1] - batch[0].label_positions[0])
    own = sources.keys_and_values(model, batch)
    hook = model.hf.transformer.wpe.register_forward_pre_hook(lambda module, positions: (positions[0] + steps,))
    try:
        whole, moved = sources.differences(model, batch), sources.keys_and_values(model, batch)
    finally:
        hook.remove()
    parts = {layer: (key, moved[layer][1]) for layer, (key, _) in own.items()}
    readers = sources.reader_positions(batch, sources.READERS[0])
    with sources.finding(model, parts, readers, sources.source_positions(batch, sources.QUERY)):
        return whole, sources.differences(model, batch)


@torch.inference_mode()
def recall_accuracy(model, text: Text, batches: int = 8) -> xr.DataArray:
    """Right answers (edges,) in the recall drill without colons, where attention is knocked out along some edges."""
    right = np.zeros((batches, len(RECALL_EDGES)))
    for row in range(batches):
        ids = torch.from_numpy(text.recall(64, False, False)[0])
        asked = torch.arange(ids.shape[1] // 2, ids.shape[1], 2)
        for column, name in enumerate(RECALL_EDGES):
            with blocked(model, range(model.n_layers), recall_edges(ids, name)):
                answers = model.hf(ids).logits[:, asked].argmax(-1)
            right[row, column] = (answers == ids[:, asked + 1]).float().mean()
    return xr.DataArray(right.mean(0), coords={"edges": list(RECALL_EDGES)}, attrs={"units": "share"})


def gather(measured: Iterable[xr.Dataset], path: Path, note: str) -> None:
    """All models in one file; layers and checkpoints that a model does not have, and seeds that were not run, have no numbers."""
    of_one_form = [one.reindex(checkpoint=CHECKPOINTS) if "checkpoint" in one.dims else one for one in measured]
    whole = xr.merge(of_one_form, join="outer", compat="no_conflicts").sortby("seed")
    whole["updates"] = whole.updates.fillna(-1).astype(int).assign_attrs(whole.updates.attrs)
    whole["outcome"] = whole.outcome.fillna("not run").astype(str).assign_attrs(units=schema.TABLES["ladder"]["outcome"].units)
    store.save(Recording(whole), path, {"measurement": "ladder", "note": note, "blocks": BLOCKS, "licence": "MIT"})


def models(pilot: bool) -> list[tuple[str, int]]:
    """(name, seed) of the models of the ladder, or of its pilot."""
    names = PILOT if pilot else [one.name for one in LADDER]
    return [(name, seed) for name in names for seed in CONFIGURATIONS[name].seeds[: 2 if pilot else None]]
