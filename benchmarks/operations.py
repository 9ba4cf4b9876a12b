"""Operations of the works that `benchmarks.run` times, counted."""

from transformers import GPT2Config


def operations(config: GPT2Config, work: str, n: int, tokens: int, book: bool = False) -> float:
    """Multiplications and additions in matrix products of a work on n prompts, its forward pass
    included.

    Two for each weight and token; not counted are norms, activations and softmaxes. `work`:
    "forward", "heads", "ablate all", "ablate last"; `book`: as this book does it, or the plain way.
    """
    layers, n_heads, d, words = config.n_layer, config.n_head, config.n_embd, config.vocab_size
    block = 12 * d**2  # weights: query, key, value and output maps, and an FFN four times as wide
    # blocks above a head, summed over the layers it may be in
    every, above = layers * n_heads, sum(range(layers))

    def blocks(count: float, queries: int, keys: int) -> float:
        return count * (2.0 * queries * block + 4.0 * queries * keys * d)

    out = 2.0 * words * d  # logits at one position
    forward = n * (blocks(layers, tokens, tokens) + out)
    if work == "forward":
        return forward
    # a pass for each head, or a row of logits for each vector: of x, with the blocks, with each
    # head
    if not book:
        return forward + (
            every * forward if work.startswith("ablate") else n * layers * (n_heads + 3) * out
        )
    if work == "heads":
        # E goes through each W_O once for all prompts, where that is cheaper than making each
        # head's vector.
        factored = layers * d * (out + 2.0 * words * n)
        return forward + n * (layers + 1) * out + min(n * every * out, factored)
    # one position from the head's layer on; it meets the other versions' keys, which are masked
    if work == "ablate last":
        # the plain answer is a row, too
        riding = (1 + n_heads * (layer + 1) for layer in range(layers))
        return forward + n * (
            sum(blocks(1, rows, tokens - 1 + rows) for rows in riding) + (every + 1) * out
        )
    # At all positions: a head's run begins at its layer.
    return forward + n * (n_heads * blocks(above + layers, tokens, tokens) + every * out)
