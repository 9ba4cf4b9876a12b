"""A model made by hand in which it is known what every head asks, sends and does."""

import torch
import transformers
from towerlab.model.architectures import ARCHITECTURES
from towerlab.model.attention import implementation
from towerlab.model.model import Model

CLASS, LABEL, IS_LABEL, TEXT, FOUND, ANSWER, BALANCE, POSITION = 0, 1, 2, 3, 4, 5, 8, 16


def relay_and_suppressor():
    """A GPT-2 whose head 1-0 compares texts and says only to later heads which label it found; 2-0
    then looks for that label and writes it; 2-1 looks for it as well and holds it down; 1-1 looks
    where 1-0 looks and sends nothing.

    Layer 0 brings the class of a text to its label and to the last position. MLPs do nothing.
    """
    width, d_head, foo, bar = 64, 32, 2, 3
    config = transformers.GPT2Config(
        vocab_size=28, n_layer=3, n_head=2, n_embd=width, n_positions=16,
        tie_word_embeddings=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    row = ARCHITECTURES["gpt2"]
    hf = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=implementation(row), dtype=torch.float64
    )
    weights = hf.state_dict()
    with torch.no_grad():
        for name, x in weights.items():
            # Two large numbers in every vector: the norm divides all by the same, and its weight
            # multiplies by that.
            x.fill_(20 * (2 / width) ** 0.5 if ".ln_" in name and name.endswith("weight") else 0)
        words = weights["transformer.wte.weight"]
        words[:, [6, 7]] = torch.tensor([20.0, -20.0], dtype=torch.float64)
        words[4:16, CLASS], words[16:, CLASS] = 1, -1
        words[foo, LABEL], words[bar, LABEL], words[[foo, bar], IS_LABEL] = 1, -1, 1
        weights["transformer.wpe.weight"][:, POSITION:32] = torch.eye(16)
        weights["lm_head.weight"][foo, ANSWER], weights["lm_head.weight"][bar, ANSWER] = 3, -3

        def plant(layer, head, ask, offer, value, to, size):
            """(residual coordinate, head coordinate, size) of query and key; the value is one
            coordinate, written into another."""
            maps, bias, out = (
                weights[f"transformer.h.{layer}.attn.{n}"]
                for n in ("c_attn.weight", "c_attn.bias", "c_proj.weight")
            )
            for which, entries in enumerate((ask, offer)):
                for source, target, strength in entries:
                    column = which * width + head * d_head + target
                    if source is None:
                        bias[column] = strength
                    else:
                        maps[source, column] = strength
            maps[value, 2 * width + head * d_head] = 1
            column = out[head * d_head]
            column[to], column[BALANCE] = size, -size  # the norm's mean stays

        for head, back in ((0, 2), (1, 1)):
            at = [(POSITION + i, i, 12.0) for i in range(16)]
            plant(0, head, at, [(p, i + back, s) for p, i, s in at[:-back]], CLASS, TEXT, 1)
        asks_label, is_label = (None, 1, 7.0), (IS_LABEL, 1, 7.0)
        for layer, head, asked, offered, to, size in (
            (1, 0, TEXT, TEXT, FOUND, 1.0),
            (1, 1, TEXT, TEXT, FOUND, 0.0),
            (2, 0, FOUND, LABEL, ANSWER, 1.0),
            (2, 1, FOUND, LABEL, ANSWER, -0.4),
        ):
            ask, offer = [(asked, 0, 4.0), asks_label], [(offered, 0, 4.0), is_label]
            plant(layer, head, ask, offer, LABEL, to, size)
    return Model("planted", hf.eval().requires_grad_(False), None, row, "planted")
