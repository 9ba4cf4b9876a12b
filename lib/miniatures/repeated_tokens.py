"""The induction score: attention to the token after the last occurrence of the present one (Olsson et al. 2022)."""

import random

import numpy as np
from jaxtyping import Bool, Float
from twotowers.model.capture import Capture, read_all
from twotowers.model.model import Model
from twotowers.prompts.prompt import Demonstration, Encoded, Prompt

from miniatures.episodes import Text

SEQUENCES = 240


def repeated(model: Model, training_seed: int, n: int = SEQUENCES, seed: int = 0) -> list[Encoded]:
    """n rows of repeated tokens as the stage "repeats" of a training draws them, cut before a token that it asks for.

    `label_positions` holds the one position to look at: the token that followed the first occurrence of the last one.
    Rows are those of the training (its 800 tokens, its lengths and distances), since learned positions make a model
    good at these only: in rows one token longer a model with a training loss of 0.8 nats copies 1 in 10.
    """
    vocabulary = model.tokenizer.get_vocab()
    words = {piece[1:]: i for piece, i in vocabulary.items() if piece.startswith("Ġ") and len(piece) > 1}
    text = Text(words, training_seed)
    text.random = random.Random(f"repeated {training_seed} {seed}")  # none of the rows of the training
    prompt = Prompt((Demonstration("one", "foo"),), "two", "foo", ("foo", "bar"))  # stands in for a text
    out: list[Encoded] = []
    while len(out) < n:
        for row, asked in zip(*text.repeats(8, hide_distance=True), strict=True):
            end = text.random.choice(np.flatnonzero(asked).tolist())
            target = end - (int(asked.sum()) + 1)  # of a copy every token but the first is asked
            ids = tuple(row[:end].tolist())
            labels = {"foo": int(row[end]), "bar": text.colon}
            out.append(Encoded(prompt, ids, (target,), ((0, 1),), (end - 1, end), end - 1, labels))
    return out[:n]


def induction(
    model: Model, training_seed: int, n: int = SEQUENCES, seed: int = 0
) -> tuple[Float[np.ndarray, "sequence layer head"], Bool[np.ndarray, " sequence"]]:
    """Induction scores, and whether the model says the token that comes: one value for each sequence of `repeated`.

    A score is the attention weight of the last position on the token that followed the first occurrence of its own
    token. Even attention gives 1 over the length of the sequence, 0.07 on average.
    """
    scores, copied = np.empty((n, model.n_layers, model.n_heads)), np.empty(n, dtype=bool)

    def read(seen: Capture) -> None:
        at = seen.label_positions[None, :, None].expand(model.n_layers, -1, model.n_heads, -1)
        scores[seen.index] = seen.weights.gather(3, at)[..., 0].transpose(0, 1).cpu().numpy()
        copied[seen.index] = (seen.logits.argmax(-1) == seen.true_ids).cpu().numpy()

    read_all(model, repeated(model, training_seed, n, seed), {"weights"}, read)
    return scores, copied
