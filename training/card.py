"""The measured parts of a model's card (data/models/NAME/README.md).

The prose of the card is written by hand. The parts that depend on a training are between two
comments, `<!-- NAME -->` and `<!-- end -->`, and the training writes them anew.
"""

import re
from pathlib import Path

from training.prompts import LABELS, ORDERS, WORD_SETS, accuracy, word_prompts
from training.tokenizer import DATA

BLOCK = re.compile(r"<!-- (\w+) -->\n.*?<!-- end -->", re.DOTALL)
SEED, COUNT = 0, 1000  # of the prompts behind a row
# Pairs of classes that could occur together in training
SEEN = ("fruit/vehicle", "body/colour", "bird/drink")


def write(folder: Path, model, tokenizer, summary: dict) -> None:
    """Measure a model, and write its card with all blocks replaced to FOLDER/README.md.

    Args:
        folder: Folder of the model.
        model: Trained model.
        tokenizer: Tokenizer of the model.
        summary: Summary of the training (`trainer.Trainer.summary`).
    """
    best = next(row for row in summary["validation"] if row["step"] == summary["step"])
    blocks = {
        "book": table(accuracies(model, tokenizer, WORD_SETS)),
        "heldout": table(accuracies(model, tokenizer, WORD_SETS, "heldout", ("original",))),
        "seen": table(accuracies(model, tokenizer, SEEN, "seen", ("original",))),
        "chosen": f"Chosen: update {best['step']:,}. On validation it is right on "
        f"{best['original']:.1f}% (weakest set\n{best['weakest']:.1f}%), with falls of "
        f"{best['balance']:.1f} (imbalanced) and "
        f"{best['order']:.1f} (reordered)\npoints. The tables above were measured afterwards.",
        "facts": facts(model, summary),
        "stages": stages(summary),
    }
    text = (DATA / "models" / summary["name"] / "README.md").read_text(encoding="utf-8")
    (folder / "README.md").write_text(fill(text, blocks), encoding="utf-8")


def accuracies(
    model, tokenizer, sets, words: str = "all", orders=tuple(ORDERS), n: int = COUNT
) -> list[dict]:
    """Return the accuracies on sets of prompts, and their means.

    Args:
        model: Trained model.
        tokenizer: Tokenizer of the model.
        sets: Names of word sets.
        words: Kind of words (`prompts.word_prompts`).
        orders: Names of orders of the demonstrations (`prompts.ORDERS`).
        n: Number of prompts of each set and label.

    Returns:
        A row for each set and true label with the accuracy in each order (percent), then a row of
            means.
    """
    rows = []
    for name in sets:
        for label in LABELS:
            prompts = word_prompts(name, n, SEED, label, words)
            percent = {order: accuracy(model, tokenizer, prompts, order) for order in orders}
            rows.append({"set (false/true)": name, "true label": label, **percent})
    mean = {order: sum(row[order] for row in rows) / len(rows) for order in orders}
    return [*rows, {"set (false/true)": "**mean**", "true label": "", **mean}]


def fill(text: str, blocks: dict[str, str]) -> str:
    """Return a text in which every block is replaced.

    Args:
        text: Text of a card.
        blocks: Contents by name.
    """
    return BLOCK.sub(
        lambda match: f"<!-- {match[1]} -->\n\n{blocks[match[1]]}\n\n<!-- end -->", text
    )


def table(rows: list[dict]) -> str:
    """Return rows as a Markdown table.

    Fractions have one decimal, and columns of words are aligned on the left.

    Args:
        rows: Cells by title.
    """
    names = list(rows[0])
    is_text = [
        isinstance(value, str) and not re.fullmatch(r"[\d,]+", value) for value in rows[0].values()
    ]
    lines = [
        "| " + " | ".join(names) + " |",
        "|" + "|".join("---" if word else "---:" for word in is_text) + "|",
    ]
    for row in rows:
        cells = (
            f"{value:.1f}" if isinstance(value, float) else str(value) for value in row.values()
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def facts(model, summary: dict) -> str:
    """Return a table of the size, the shape and the origin of a model.

    Args:
        model: Trained model.
        summary: Summary of the training.
    """
    config = model.config
    heads, context = config.num_attention_heads, config.max_position_embeddings
    rows = {
        "size": f"{sum(p.numel() for p in model.parameters()):,} parameters, float32",
        "shape": f"{config.num_hidden_layers} layers, {heads} heads "
        f"({getattr(config, 'num_key_value_heads', heads)} key-value heads), width "
        f"{config.hidden_size}",
        "vocabulary": f"{config.vocab_size:,} tokens",
        "context": f"{context:,} tokens",
        "labels": f"{len(summary['labels'])} words: {', '.join(summary['labels'])}",
        "retrain": f"`python -m training.train {summary['name']}` (seed {summary['seed']}, "
        f"{summary['made_with']})",
    }
    return table([{"": name, " ": value} for name, value in rows.items()])


def stages(summary: dict) -> str:
    """Return a table of the update at which each stage ended.

    Args:
        summary: Summary of the training.
    """
    ends = [["random weights", 0], *summary["stages"]]
    return table([{"stage": name, "update": f"{step:,}"} for name, step in ends])
