"""The card of a miniature: what it was trained on, how it was chosen, and what it was measured to do."""

import platform
from pathlib import Path

import torch
from twotowers.prompts.datasets import WORD_SETS

from miniatures.episodes import BOOK_PAIRS, VALIDATION_PAIRS
from miniatures.measure import ORDERS, mean, measure
from miniatures.tokenizer import CONTEXT, LABELS

COUNT, SEED = 1000, 0
SEEN = ("fruit/vehicle", "body/colour", "bird/drink")
ORIGINAL = ("original",)
KIND = {
    "mini-gpt2": "GPT-2 (`GPT2LMHeadModel`): learned positions, LayerNorm, biases, GELU, tied embeddings",
    "mini-llama": "Llama (`LlamaForCausalLM`): rotary positions, RMSNorm, SwiGLU, grouped-query attention, "
    "tied embeddings",
}


def write_card(folder: Path, trainer) -> None:
    """Measure the trainer's model on the book's word sets and write README.md into `folder`."""
    model, tokenizer = trainer.model, trainer.tokenizer
    tables = (
        book_table(measure(model, tokenizer, WORD_SETS, COUNT, SEED)),
        short_table(measure(model, tokenizer, WORD_SETS, COUNT, SEED, words="heldout", orders=ORIGINAL)),
        short_table(measure(model, tokenizer, SEEN, COUNT, SEED, words="seen", orders=ORIGINAL)),
    )
    (folder / "README.md").write_text(card_text(trainer, *tables), encoding="utf-8")


def book_table(rows: list[dict]) -> str:
    """The table of the four word sets, each with foo and with bar true, and their mean."""
    lines = [
        "| set (false/true) | true label | original | imbalanced | fall | reordered | fall |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    average = {"set": "**mean**", "label": ""} | {kind: mean(rows, kind) for kind in ORDERS}
    for row in [*rows, average]:
        base, less, far = row["original"], row["imbalanced"], row["reordered"]
        cells = (f"{number:.1f}" for number in (base, less, base - less, far, base - far))
        lines.append(f"| {row['set']} | {row['label']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def short_table(rows: list[dict]) -> str:
    """One row per set: the original order only, foo true and bar true."""
    lines = ["| set (false/true) | foo true | bar true |", "|---|---:|---:|"]
    for foo, bar in zip(rows[::2], rows[1::2], strict=True):
        lines.append(f"| {foo['set']} | {foo['original']:.1f} | {bar['original']:.1f} |")
    return "\n".join(lines)


def pairs(names) -> str:
    """Pairs of classes in words."""
    return ", ".join(" and ".join(pair) for pair in names)


def card_text(trainer, book: str, heldout: str, seen: str) -> str:
    """The card in Markdown; the three arguments are tables."""
    name, config, uneven = trainer.name, trainer.model.config, trainer.text.uneven
    numbers = sum(parameter.numel() for parameter in trainer.model.parameters())
    choice, best = trainer.choice, trainer.choice.best
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", heads)
    low, high = uneven.stay
    history = "\n".join(f"| {stage} | {step:,} |" for stage, step in trainer.stages)
    return f"""# {name}

A small transformer that learns in context, trained from nothing for this book. It is a model organism: it is
neither GPT2-large nor Llama, and no finding about it is a finding about them. The command that trains the model
writes this card, and measured every number in it.

| | |
|---|---|
| architecture | {KIND[name]} |
| size | {numbers:,} parameters, float32 |
| shape | {layers} layers, {heads} heads ({groups} key-value heads), width {config.hidden_size} |
| vocabulary | {config.vocab_size:,} tokens: the word lists, {len(LABELS)} labels, common words, bytes |
| context | {CONTEXT} tokens; the longest training text has 51 |
| licence | MIT, as the book |
| retrain | `python -m miniatures.train {name}` (seed {trainer.seed}) |

## What it does

Prompts as in the paper: two false and two true demonstrations and a query, five distinct words, for example
`love : bar like : bar eight : foo two : foo one :`. The table gives the percentage of {COUNT:,} prompts (seed
{SEED}) whose most probable next token, of the whole vocabulary, is the true label.

- *Original*: the true demonstrations stand nearest the query.
- *Imbalanced*: the last true demonstration is removed.
- *Reordered*: the true demonstrations come first.
- *Fall*: points lost against the original.

Ambiguous words are left out; held-out words are in.

{book}

Only held-out words, which never stood next to a label in training; original order:

{heldout}

Pairs of classes that could meet in training, words that could stand in an episode; original order:

{seen}

## What it was trained on

Text drawn anew at every step from the word lists and {len(LABELS)} label words; no real sentences. Stages, and
the update at which each ended:

| stage | update |
|---|---:|
| random weights | 0 |
{history}

- *repeats* (*few*: of 100 tokens only): arbitrary tokens twice over.
- *recall*: `word label` pairs with arbitrary words for labels; the same pairs again in another order.
- *echoes*: `word : label word`, so that a label looks two places back.
- *half*, *colon*: recall again, with a colon in the first copy, then in both.
- *episodes*: 4 to 17 demonstrations `word : label` of 2, 3, 4 or 6 classes. Labels are drawn anew for each
  episode, so that nothing but the demonstrations says which label is right. At first most words repeat earlier
  ones exactly, then fewer and fewer, at last none on purpose. Beside the episodes: a little of *colon*, and
  plain lists of words of one class.

Never together in an episode: {pairs(BOOK_PAIRS)} (the book asks about them); {pairs(VALIDATION_PAIRS)} (the
validation prompts). Held-out words never stand in an episode; they do stand in the plain lists.

## Where its biases come from

The training text is uneven, as text is. The prompts above are even. In an episode

- class frequencies are drawn from a Dirichlet distribution (concentration {uneven.dirichlet:g});
- classes come in runs: the class stays with a chance drawn per episode between {low:g} and {high:g};
- words follow a Zipf law (exponent {uneven.zipf:g}) over the order of the lists: many are known only a little;
- {uneven.wrong_label:.0%} of the demonstrations bear a label drawn at random;
- {uneven.wrong_word:.0%} of the words belong to no class of the episode;
- some words belong to several classes.

So a model that is unsure of a word does well to lean on the more frequent and on the more recent label.
Training is also short: with much more of it such a model becomes sure, and order and balance matter less and
less.

## How the weights were chosen

By validation prompts of other classes and another seed, every {choice.EVERY} batches of episodes. The rule: of
the steps that are right on at least {choice.FLOOR:g}% of the original prompts in the weakest validation set,
and that fall by at least {choice.FALL:g} points both when imbalanced and when reordered, take the one that is
right most often over the three orders. In words: the best learner to which balance and order still matter. So
the size of the biases is partly our choice. The classes and prompts of the book chose no step.

The settings (how uneven the text is, how many steps, the percentages of this rule) were tried in several
variants. They were kept when a model met what was asked of it beforehand on the word sets of the book: 90% in
every row of the first table, and both mean falls at least five points. So that the models pass these two marks
is by selection. No number of the paper was aimed at.

Chosen: update {best["step"]:,}. On validation it is right on {best["original"]:.1f}% (weakest set
{best["weakest"]:.1f}%), with falls of {best["balance"]:.1f} (imbalanced) and {best["order"]:.1f} (reordered)
points. The tables above were measured afterwards.

## Limits

- It knows the lower-case words of the lists. Other text is read as bytes and means nothing to it.
- Real language models meet words, labels and tasks amid ordinary text; this one met hardly anything but the
  task.
- It has {layers * heads} heads in all: "one percent of the heads" has no counterpart here.
- One thread and a fixed seed: the weights come out the same bit for bit only on the same machine with the same
  version of torch (here torch {torch.__version__}, Python {platform.python_version()}).
"""
