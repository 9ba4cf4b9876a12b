"""The counted operations of the works that `benchmarks.run` times."""

from transformers import GPT2Config


def operations(config: GPT2Config, work: str, n: int, tokens: int, book: bool = False) -> float:
    """Return the operations of a work on some prompts, its forward pass included.

    These are multiplications and additions in matrix products, two for each weight and token.
    Norms, activations and softmaxes are not counted.

    Args:
        config: Shape of the model.
        work: "forward", "heads", "ablate all" or "ablate last".
        n: Number of prompts.
        tokens: Number of tokens of a prompt.
        book: Whether the work is done as in this book. Otherwise it is done in the plain way.
    """
    layers, n_heads, d, words = config.n_layer, config.n_head, config.n_embd, config.vocab_size
    block = 12 * d**2  # weights: query, key, value and output maps, and an FFN four times as wide
    # number of blocks above a head, summed over all layers
    every, above = layers * n_heads, sum(range(layers))

    def blocks(count: float, queries: int, keys: int) -> float:
        return count * (2.0 * queries * block + 4.0 * queries * keys * d)

    out = 2.0 * words * d  # logits at one position
    forward = n * (blocks(layers, tokens, tokens) + out)
    if work == "forward":
        return forward
    # a forward pass for each head, or a row of logits for each vector: the residual stream alone,
    # with the blocks, and with each head
    if not book:
        return forward + (
            every * forward if work.startswith("ablate") else n * layers * (n_heads + 3) * out
        )
    # The last layer's W_O and FFN run at the last position only, whose query, key and value are
    # computed a second time for this.
    left_out = 2.0 * (tokens - 1) * 9 * d**2 - 2.0 * 3 * d**2
    forward -= n * left_out
    if work == "heads":
        # E goes through each W_O once for all prompts if that is cheaper than each head's vector.
        factored = layers * d * (out + 2.0 * words * n)
        return forward + n * (layers + 1) * out + min(n * every * out, factored)
    # One position from the head's layer on. The keys of the other versions are masked.
    if work == "ablate last":
        # The plain answer is also a row.
        riding = (1 + n_heads * (layer + 1) for layer in range(layers))
        return forward + n * (
            sum(blocks(1, rows, tokens - 1 + rows) for rows in riding) + (every + 1) * out
        )
    # At all positions, a head's run begins at its layer.
    runs = n_heads * blocks(above + layers, tokens, tokens) + every * (out - left_out)
    return forward + n * runs
