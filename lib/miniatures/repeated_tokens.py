"""The induction score: attention to the token after the last occurrence of the present one (Olsson et al. 2022)."""

import numpy as np
from jaxtyping import Float
from twotowers.model.capture import captures
from twotowers.model.model import Model
from twotowers.prompts.prompt import Demonstration, Encoded, Prompt

from miniatures.tokenizer import LABELS, read_words

LENGTH, SEQUENCES = 24, 240


def repeated(model: Model, n: int = SEQUENCES, length: int = LENGTH, seed: int = 0) -> list[Encoded]:
    """n sequences of `length` tokens that end within the second copy of a row of 4 to 10 words.

    The words are drawn at random from the lists, all different but for the copy; others stand in front, so that place
    and distance differ. `label_positions` holds the one position to look at: that after the first occurrence of the
    last token.
    """
    rng = np.random.default_rng([seed, 2022])
    words = sorted({row["word"] for row in read_words()} - set(LABELS))
    ids = [model.tokenizer(word).input_ids[-1] for word in words]
    prompt = Prompt((Demonstration("one", "foo"),), "two", "foo", ("foo", "bar"))  # stands in for a text
    out = []
    for _ in range(n):
        size = int(rng.integers(4, 11))
        seen = int(rng.integers(1, size))
        front = length - size - seen
        tokens = [ids[i] for i in rng.choice(len(ids), front + size, replace=False)]
        tokens += tokens[front : front + seen]
        out.append(
            Encoded(prompt, tuple(tokens), (front + seen,), ((0, 1),), (length - 2, length - 1), length - 1,
                    {"foo": ids[0], "bar": ids[1]})
        )  # fmt: skip
    return out


def induction_scores(model: Model, n: int = SEQUENCES, seed: int = 0) -> Float[np.ndarray, "sequence layer head"]:
    """Attention weight of the last position on the token that followed the first occurrence of its own token.

    Each sequence of `repeated` gives one value; even attention gives 1 / LENGTH.
    """
    out = np.empty((n, model.n_layers, model.n_heads))
    for seen in captures(model, repeated(model, n, seed=seed), {"weights"}):
        at = seen.label_positions[None, :, None].expand(model.n_layers, -1, model.n_heads, -1)
        out[seen.index] = seen.weights.gather(3, at)[..., 0].transpose(0, 1).cpu().numpy()
    return out
