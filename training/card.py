"""The measured parts of a model's card (data/models/NAME/README.md).

The card's prose stands in the file itself. What depends on a training stands between two comments,
`<!-- NAME -->` and `<!-- end -->`, and is written anew by the training.
"""

import re
from pathlib import Path

from training.prompts import LABELS, ORDERS, WORD_SETS, accuracy, word_prompts
from training.tokenizer import DATA

BLOCK = re.compile(r"<!-- (\w+) -->\n.*?<!-- end -->", re.DOTALL)
SEED, COUNT = 0, 1000  # of the prompts behind a row
# pairs of classes that could meet in training
SEEN = ("fruit/vehicle", "body/colour", "bird/drink")


def write(folder: Path, model, tokenizer, record: dict) -> None:
    """Measure the model; its card, with all blocks replaced, as FOLDER/README.md."""
    best = next(row for row in record["validation"] if row["step"] == record["step"])
    blocks = {
        "book": table(accuracies(model, tokenizer, WORD_SETS)),
        "heldout": table(accuracies(model, tokenizer, WORD_SETS, "heldout", ("original",))),
        "seen": table(accuracies(model, tokenizer, SEEN, "seen", ("original",))),
        "chosen": f"Chosen: update {best['step']:,}. On validation it is right on "
        f"{best['original']:.1f}% (weakest set\n{best['weakest']:.1f}%), with falls of "
        f"{best['balance']:.1f} (imbalanced) and "
        f"{best['order']:.1f} (reordered)\npoints. The tables above were measured afterwards.",
        "facts": facts(model, record),
        "stages": stages(record),
    }
    text = (DATA / "models" / record["name"] / "README.md").read_text(encoding="utf-8")
    (folder / "README.md").write_text(fill(text, blocks), encoding="utf-8")


def accuracies(
    model, tokenizer, sets, words: str = "all", orders=tuple(ORDERS), n: int = COUNT
) -> list[dict]:
    """A row for each set and true label: accuracy in each of `orders` (percent); then their
    means."""
    rows = []
    for name in sets:
        for label in LABELS:
            prompts = word_prompts(name, n, SEED, label, words)
            percent = {order: accuracy(model, tokenizer, prompts, order) for order in orders}
            rows.append({"set (false/true)": name, "true label": label, **percent})
    mean = {order: sum(row[order] for row in rows) / len(rows) for order in orders}
    return [*rows, {"set (false/true)": "**mean**", "true label": "", **mean}]


def fill(text: str, blocks: dict[str, str]) -> str:
    """A text with every block replaced."""
    return BLOCK.sub(
        lambda match: f"<!-- {match[1]} -->\n\n{blocks[match[1]]}\n\n<!-- end -->", text
    )


def table(rows: list[dict]) -> str:
    """Rows as a Markdown table: fractions with one decimal, words on the left."""
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


def facts(model, record: dict) -> str:
    """Size, shape and origin."""
    config = model.config
    heads, context = config.num_attention_heads, config.max_position_embeddings
    rows = {
        "size": f"{sum(p.numel() for p in model.parameters()):,} parameters, float32",
        "shape": f"{config.num_hidden_layers} layers, {heads} heads "
        f"({getattr(config, 'num_key_value_heads', heads)} key-value heads), width "
        f"{config.hidden_size}",
        "vocabulary": f"{config.vocab_size:,} tokens",
        "context": f"{context:,} tokens",
        "labels": f"{len(record['labels'])} words: {', '.join(record['labels'])}",
        "retrain": f"`python -m training.train {record['name']}` (seed {record['seed']}, "
        f"{record['made_with']})",
    }
    return table([{"": name, " ": value} for name, value in rows.items()])


def stages(record: dict) -> str:
    """The update at which each stage ended."""
    ends = [["random weights", 0], *record["stages"]]
    return table([{"stage": name, "update": f"{step:,}"} for name, step in ends])
