"""The card of mini-sentences: what it was trained on, and what it was measured to do."""

from pathlib import Path

import pandas as pd
import torch
from twotowers.prompts import datasets, sentences
from twotowers.prompts.corpora import SETS
from twotowers.stats.intervals import bootstrap

from miniatures.card import KIND
from miniatures.measure import ORDERS
from miniatures.sentence_text import CONTEXT, DROPPED, NAMES, VALIDATION
from miniatures.tokenizer import LABELS

COUNT, SEED = 500, 0


@torch.no_grad()
def right(model, tokenizer, prompts) -> list[bool]:
    """Whether the most probable next token, of the whole vocabulary, is the true label, for every prompt."""
    out = []
    for prompt in prompts:
        ids = torch.tensor([tokenizer(prompt.text).input_ids])
        top = model(ids, logits_to_keep=1).logits[0, -1].argmax().item()
        out.append(top == tokenizer(prompt.true_label).input_ids[-1])
    return out


def measure(model, tokenizer, name: str, orders, table: pd.DataFrame | None = None) -> dict:
    """set, kept, and "percent [low, high]" under each order, foo the true label in half of the prompts."""
    half = COUNT // 2
    prompts = [
        prompt
        for seed, label in enumerate(("foo", "bar"))
        for prompt in datasets.draw(name, half, seed=SEED + seed, true_label=label, table=table)
    ]
    kept, _ = sentences.fit(prompts, tokenizer, CONTEXT)
    row = {"set": name, "prompts": len(kept)}
    for order in orders:
        found = bootstrap([float(x) for x in right(model, tokenizer, [ORDERS[order](p) for p in kept])])
        row[order] = f"{100 * found.estimate:.0f} [{100 * found.low:.0f}, {100 * found.high:.0f}]"
    return row


def all_held_out(name: str) -> pd.DataFrame:
    """The rows of a set's inputs, every second one as a demonstration: no text of a prompt was in training."""
    rows = sentences.rows(name).query("part == 'input'").reset_index(drop=True)
    rows["part"] = rows.groupby("class").cumcount().mod(2).map({0: "pool", 1: "input"})
    return rows


def table(rows: list[dict]) -> str:
    """Rows as a Markdown table."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|---" + "|---:" * (len(names) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(str(row[name]) for name in names) + " |" for row in rows])


def write_card(folder: Path, trainer) -> None:
    """Measure the trainer's model on the book's sets and write README.md into `folder`."""
    model, tokenizer = trainer.model.eval(), trainer.tokenizer
    tables = (
        table([measure(model, tokenizer, name, ORDERS) for name in NAMES]),
        table([measure(model, tokenizer, name, ("original",), all_held_out(name)) for name in NAMES]),
        table([measure(model, tokenizer, name, ORDERS) for name in SETS if name not in NAMES]),
        table([measure(model, tokenizer, name, ORDERS) for name in datasets.WORD_SETS]),
    )
    (folder / "README.md").write_text(card_text(trainer, *tables), encoding="utf-8")


def card_text(trainer, seen: str, held_out: str, unseen: str, words: str) -> str:
    """The card in Markdown; the last four arguments are tables."""
    config = trainer.model.config
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    numbers = sum(parameter.numel() for parameter in trainer.model.parameters())
    history = "\n".join(f"| {stage} | {step:,} |" for stage, step in trainer.stages)
    sizes = "\n".join(f"| {cls} | {count:,} |" for cls, count in trainer.sizes.items())
    return f"""# {trainer.name}

A small transformer that learns in context from real sentences, trained from nothing for this book. It is a model
organism: it is not Llama 7B, and no finding about it is a finding about that model. The command that trains the model
writes this card, and measured every number in it.

| | |
|---|---|
| architecture | {KIND["mini-llama"]} |
| size | {numbers:,} parameters, float32 |
| shape | {layers} layers, {heads} heads ({config.num_key_value_heads} key-value heads), width {config.hidden_size} |
| vocabulary | {config.vocab_size:,} tokens: byte-level BPE of the training sentences |
| context | {CONTEXT} tokens; the longest training row has 512 |
| licence | MIT, as the book; see *licences* below |
| retrain | `python -m miniatures.train {trainer.name}` (seed {trainer.seed}); needs the sentence sets |

## What it does

Prompts as in the paper: two false and two true demonstrations `sentence : label`, the true ones nearest the query,
whole sentences. The tables give the percentage of prompts (up to {COUNT}, half of them with `foo` and half with `bar`
as the true label, seeds {SEED} and {SEED + 1}) whose most probable next token, of the whole vocabulary, is the true
label, with a 95% bootstrap interval over prompts. Guessing one of the two labels gives 50. Prompts over the context are
left out.

- *original*: the true demonstrations stand nearest the query.
- *imbalanced*: the last true demonstration is removed.
- *reordered*: the true demonstrations come first.

Sets it was trained on, the book's own prompts. The query was never in training. The demonstrations
of SST-2 and TREC were (their pool is the train file), under other labels in every episode:

{seen}

The same sets, demonstrations also from the held-out side:

{held_out}

Sets no sentence of which it has seen:

{unseen}

The book's sets of single words (their words stood in training, one to four at a time; these pairs of classes too):

{words}

## What it was trained on

| class | texts |
|---|---:|
{sizes}

SST-2: the sentences of the train file of the book's set, and the labelled phrases of its sentences as GLUE has them,
of three words or more. TREC: the train file. AG News: 10,001 descriptions of its train set (no titles), so that the
book's pool and inputs, both of its test file, are unseen. Left out: texts near an input of the book (half of their word
triples shared), phrases that stand in one, and every {VALIDATION}th text of a class, for validation. Beside the
sentences, one to four words of a class of the book's word lists.

| stage | ended at update |
|---|---:|
{history}

- The stages before *episodes* are those of the other miniatures: arbitrary tokens repeated, then looked up.
- *Episodes*: rows of `text : label` of two to six classes, of the word lists, of one set or of several. Labels (of
  {len(LABELS)}) are drawn anew for each row, so that nothing but the demonstrations says which label is right; the
  loss is on labels that were seen before in the row. Texts grow from 4 to 64 tokens, rows from 160 to 512. Class
  frequencies differ from row to row (Dirichlet), and classes come in runs. A token of a text is left out with chance
  {DROPPED:g}.
- **A probe beside the loss.** After the third of six layers a linear map has to tell the class of each text at its
  colon; its loss is added (weight 1, at the end 0.3) and the map thrown away afterwards. In an earlier attempt without
  it (4 layers, 4,400 updates) drawn labels stayed at chance. So *that* the class is known at the colon in the middle
  layers is our doing; how heads then use it is not.

The shipped weights are those of the last update; no step was chosen. Settings were chosen on the validation texts.

**Licences.** None of the sentences is in this repository. They have licences of their own, as
[the card of the sets](../../sentences/README.md) states them; AG News is given for research and other non-commercial
activity. Whoever uses these weights for anything else should make up their own mind about that.

## Limits

- It knows these three kinds of sentences. It is no language model: it was asked for nothing but labels.
- What it says of other sets shows how far the classes it knows reach, for instance sentiment.
- {layers * heads} heads in all: "one percent of the heads" has no counterpart here.
- One thread and a fixed seed: the weights come out the same bit for bit only on the same machine with the same
  libraries (here {trainer.made_with}).
"""
