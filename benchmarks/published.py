"""The numbers that the authors' own notebooks print for a plain prompt, measured again.

They are measured on the same model.

    make verify MODEL=gpt2-large          # or: python -m benchmarks.published gpt2-large

The prompt has no demonstrations and no labels: the followed word is the model's top prediction
(paper, Definitions: log-probability increase; frozen norm). Increases are in nats.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import pandas as pd
import torch
from pydantic import field_validator
from towerlab import cli
from towerlab.model import loading, unembed
from towerlab.model.capture import Capture, capture
from towerlab.model.increase import increases_along
from towerlab.model.model import Model
from towerlab.prompts.prompt import Encoded, Prompt
from twotowers.errors import TwoTowersError
from twotowers.paths import data_folder
from twotowers.tables import Row, Text, read_table

SOURCE = "authors' notebook"
HUB = {"gpt2-large": "openai-community/gpt2-large", "llama-7b": "huggyllama/llama-7b"}
"""Hub ids of the models whose numbers are printed"""
TOLERANCE = 0.002
"""Maximum difference from rounding to three digits and float32 on another machine, in nats"""

_BLOCKS = re.compile(r"sum of (attention|FFN) block increases")
_BLOCK = re.compile(r"increase of (attention|FFN) block (\d+)")
_HEAD = re.compile(r"(increase|attention) of head (\d+)-(\d+)(?: position (\d+))?")
_NEURON = re.compile(r"increase of neuron (\d+)-(\d+)")


class PublishedNumber(Row):
    """A printed number, as it is printed ("18-31" is also a number)."""

    source: Text
    model: Text
    where: str
    quantity: Text
    value: Text
    note: str

    @field_validator("value")
    @classmethod
    def _has_a_point(cls, value: str) -> str:
        """Check that a number has no decimal comma."""
        if re.search(r"\d,\d", value):
            raise ValueError("expected a decimal point, as in 0.94")
        return value


def printed() -> pd.DataFrame:
    """Return the numbers that the authors' notebooks print (data/published.csv).

    Returns:
        Columns model, where, quantity, value and others, all as text.
    """
    table = pd.DataFrame(
        [row.model_dump() for row in read_table(data_folder() / "published.csv", PublishedNumber)]
    )
    return table[table["source"] == SOURCE]


def _paper_model(name: str) -> str:
    """Return the last part of a model's hub id or folder, which alone identifies a model of HUB.

    Args:
        name: Hub id or folder.
    """
    return name.rstrip("/").split("/")[-1].split("--")[-1].lower().removesuffix("-hf")


def plain(ids: Sequence[int]) -> Encoded:
    """Return the token ids of a text without demonstrations as an encoded prompt for `capture`.

    It has no followed words. Give them yourself.

    Args:
        ids: Token ids.
    """
    last = len(ids) - 1
    return Encoded(
        Prompt((), "text", "a", ("a", "b")), tuple(ids), (), (), (0, last), last, {"a": 0, "b": 0}
    )


def measure(
    model: Model, ids: Sequence[int], quantities: Sequence[str]
) -> tuple[int, dict[str, float]]:
    """Return the top predicted word and the values of some quantities.

    Args:
        model: The paper's model.
        ids: Token ids of a text, whose last position predicts.
        quantities: Quantities in words, as in data/published.csv.

    Returns:
        Token id of the word, and value by quantity (increases in nats).

    Raises:
        TwoTowersError: If this function cannot read a quantity, or if the model does not have it.
    """
    plain_run = capture(model, [plain(ids)], {"weights", "values", "neurons"})
    word = plain_run.logits.argmax(-1)
    scale = model.unembedding.norm.scale(plain_run.resid_final)
    parts = plain_run.resid_pre, plain_run.z, plain_run.ffn_output
    attention, ffn, heads = (x[0] for x in increases_along(model, *parts, scale, word))
    blocks = {"attention": attention, "FFN": ffn}
    values = {}
    for quantity in quantities:
        try:
            values[quantity] = float(_value(model, plain_run, word, scale, quantity, blocks, heads))
        except IndexError:
            raise TwoTowersError(
                f"unknown part '{quantity}' of '{model.name}': expected a part of the paper's "
                "model; choose that model"
            ) from None
    return int(word), values


def _value(
    model: Model,
    capture: Capture,
    word: torch.Tensor,
    scale: torch.Tensor,
    quantity: str,
    blocks: dict,
    heads: torch.Tensor,
):
    """Return the value of one quantity."""

    def increase(x: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        both = unembed.bs_values(
            torch.stack([x, x + vector]), model.unembedding, scale
        ).log_softmax(-1)
        return both[1, word] - both[0, word]

    if match := _BLOCKS.fullmatch(quantity):
        return blocks[match[1]].sum()
    if match := _BLOCK.fullmatch(quantity):
        return blocks[match[1]][int(match[2])]
    if match := _NEURON.fullmatch(quantity):
        layer, neuron = int(match[1]), int(match[2])
        x = capture.resid_pre[layer, 0] + capture.attention_output[layer, 0]
        return increase(x, capture.neurons[layer, 0, neuron] * model.ffn_weight(layer)[neuron])
    if match := _HEAD.fullmatch(quantity):
        layer, head, position = int(match[2]), int(match[3]), match[4]
        if match[1] == "attention" and position is not None:
            return capture.weights[layer, 0, head, int(position)]
        if match[1] == "increase" and position is None:
            return heads[layer, head]
        if match[1] == "increase":
            z = (
                capture.weights[layer, 0, head, int(position)]
                * capture.values[layer, 0, model.value_head(head), int(position)]
            )
            return increase(
                capture.resid_pre[layer, 0], z.to(capture.z) @ model.output_weight(layer)[head]
            )
    raise TwoTowersError(
        f"unknown quantity '{quantity}': expected a quantity of data/published.csv; correct the "
        "name"
    )


def authors_numbers(model: Model) -> pd.DataFrame:
    """Return the numbers that the authors print for a model, next to the measured ones.

    Args:
        model: The paper's model.

    Returns:
        A row for each number: where (the prompt), predicted, quantity, published, measured, agrees.

    Raises:
        TwoTowersError: If the authors print no numbers for a model of this name.
    """
    own = printed()[printed()["model"] == _paper_model(model.name)]
    if own.empty:
        names = " or ".join(printed()["model"].unique())
        raise TwoTowersError(
            f"unknown model '{model.name}': expected {names}, for which the authors print numbers"
        )
    rows = []
    for text, part in own.groupby("where", sort=False):
        word, measured = measure(
            model, model.tokenizer(text)["input_ids"], part["quantity"].tolist()
        )
        predicted = model.tokenizer.decode([word]).strip()
        for quantity, value in zip(part["quantity"], part["value"].astype(float), strict=True):
            close = abs(measured[quantity] - value) <= TOLERANCE
            numbers = {"published": value, "measured": measured[quantity], "agrees": close}
            rows.append({"where": text, "predicted": predicted, "quantity": quantity, **numbers})
    return pd.DataFrame(rows)


def main(name: str) -> int:
    """Print every published number of a model next to the measured number.

    Args:
        name: Name, hub id or folder of the model.

    Returns:
        1 if a number differs, otherwise 0.

    Raises:
        TwoTowersError: If the authors print no numbers for the model.
    """
    model = HUB.get(name, name)
    if _paper_model(model) not in HUB:
        raise TwoTowersError(
            f"unknown model '{model}': expected {' or '.join(HUB)}, for which the authors print "
            "numbers"
        )
    table = authors_numbers(loading.load(model))
    print(table.to_string(index=False))
    off = int((~table["agrees"]).sum())
    print(f"{len(table) - off} of {len(table)} numbers agree within {TOLERANCE}")
    return int(off > 0)


if __name__ == "__main__":
    sys.exit(cli.guarded(lambda: main(*(sys.argv[1:2] or ["gpt2-large"]))))
